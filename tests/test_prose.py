"""The lint of prose finds what its rules forbid, in docstrings, comments, messages, recipes and pages."""

from pathlib import Path

import pytest

from tests.prose import Prose, every_piece, faults

BAD = {
    "The norm behind the block.": "write 'after'",
    "Go on with a text.": "write 'continue'",
    "The user is told.": "write 'report'",
    "Only answers are learnt from.": "write 'learned'",
    "Sample 5 tokens a step.": "write 'per'",
    "Files with one sentence a line.": "write 'per'",
    "The colour of a cell.": "use American spelling",
    "A brick of the house.": "write 'component'",
    "Done!": "end with a full stop",
    " ".join(["word"] * 46) + ".": "a sentence of 46 words",
}


@pytest.mark.parametrize("text", BAD)
def test_a_fault_is_found(text: str) -> None:
    assert [fault for fault in faults(Prose(Path("a.py"), 1, text, is_docstring=False)) if BAD[text] in fault]


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    def found(text: str, is_docstring: bool) -> bool:
        return any("begins with" in fault for fault in faults(Prose(Path("a.py"), 1, text, is_docstring)))

    assert found("What the model reads.", True) and not found("What the model reads.", False) and not found("Return the loss.", True)


def test_code_and_quotations_are_not_prose() -> None:
    text = 'Return ``colour`` and "learnt", as `go on` does.'
    assert not list(faults(Prose(Path("a.py"), 1, text, is_docstring=True)))


def test_all_kinds_of_files_are_read(tmp_path: Path) -> None:
    for name, content in {
        "transom/a/a.py": '"""Docstring."""\nx = 1  # comment\ny = "a string of words"\n',
        "transom/recipes/a.toml": "# header\n#     transom train a\nx = 1 # reason\n",
        "docs/a.md": "# Title\n\nA paragraph.\n\n```sh\nskipped\n```\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    texts = {prose.text.strip() for prose in every_piece(tmp_path)}
    assert {"Docstring.", "comment", "a string of words", "header", "reason", "A paragraph."} <= texts
    assert not [text for text in texts if "skipped" in text or "transom train" in text]
