"""``transom explain``: the hand calculation of a run's own numbers, in every format, on the terminal or in a file."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli.conftest import Call, Trained
from tests.inspection.evaluate_explanation import READERS, holds, text_lines
from transom import explain
from transom.errors import DataError
from transom.tasks.load import load

COLOR = re.compile(r"\x1b\[\d*m")


def test_the_calculation_of_both_sides_is_printed_and_holds(transom: Call, trained: Trained) -> None:
    outcome = transom("explain", trained.folder, "ab ba", "--head", "1", "--query", "0")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "Hand calculation: block 0, head 1, token 0 of the encoder and token 0 of the decoder"
    assert lines[1].startswith("The target is the model's own translation: ")
    found = text_lines(outcome.out)
    assert len(found) > 100 and all(map(holds, found))
    for part in (
        r"\d+\. Encoder, tokens and embeddings\n  tokens: 0 \S+ \(id \d+\), ",
        r"\d+\. Encoder, self-attention, head 1: scores of query 0",
        r"\d+\. Decoder, cross-attention, head 1: output",
        r"  checked: weights x V equals the kernel's head output; the largest difference is 0\.\d+ of the bound of rounding",
        r"    p\(.+\) = \S+ / \S+ = 0\.\d+",
    ):
        assert re.search(part, outcome.out), part
    assert "\x1b" not in outcome.out, "a file has no colors"


def test_a_special_token_can_be_a_candidate(transom: Call, trained: Trained) -> None:
    outcome = transom("explain", trained.folder, "ab ba", "--stack", "decoder", "--candidate", "[SOS]", "--top", "1")
    assert outcome.code == 0 and re.search(r"    z\(\[SOS\]\) = ", outcome.out)


def test_a_chosen_key_candidate_and_target_are_worked_out(transom: Call, trained: Trained) -> None:
    asked = ("explain", trained.folder, "ab ba", "--stack", "decoder", "--target", "ba ab", "--key", "1", "--candidate", "a", "--every")
    outcome = transom(*asked)
    assert outcome.code == 0 and "translation" not in outcome.out
    assert all(map(holds, text_lines(outcome.out)))
    for part in (
        r"key 1 \(\S+\) is the chosen one; its key and value:",
        r"    k_1\[0\] = ",
        r"    scale = sqrt\(",
        r"    logsumexp = ln\(",
        r"    z_\d+ W_O\[0\] = ",
        r"    ln p\(a\) = \S+ / 1 - \S+ = -",
    ):
        assert re.search(part, outcome.out), part


@pytest.mark.parametrize(
    ("suffix", "format_"), [(".txt", "text"), (".md", "markdown"), (".tex", "latex"), (".html", "html"), (".json", "json")]
)
def test_the_suffix_of_the_file_or_the_option_gives_the_format(
    suffix: str, format_: str, transom: Call, trained: Trained, tmp_path: Path
) -> None:
    file = tmp_path / f"calculation{suffix}"
    asked = ("explain", trained.folder, "ab ba", "--stack", "encoder", "--dim", "5", "--temperature", "0.7", "--top", "2")
    outcome = transom(*asked, "--out", file)
    assert outcome.code == 0 and outcome.out == "" and re.search(rf"wrote \d+ steps to {re.escape(str(file))}", outcome.err)
    content = file.read_text(encoding="utf-8")
    printed = transom(*asked, "--format", format_)
    assert printed.out == content
    if format_ == "json":
        assert transom(*asked, "--json").json == printed.json
        assert printed.json["settings"]["dim"] == 5 and printed.json["notes"][0].startswith("the target is the model's own translation")
    else:
        lines = READERS[format_](content)
        assert len(lines) > 20 and all(map(holds, lines))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "expected TEXT, --input or --sample, found several or none"),
        (("a b", "--sample", "0"), "expected TEXT, --input or --sample, found several or none"),
        (("--sample", "0", "--target", "a"), "--target: expected none with --sample, whose target is that of the data, found both"),
        (("--sample", "99999999"), "--sample: expected a number from 0 to "),
        (("--sample", "cat.jpg"), "found 'cat.jpg'; choose another sample"),
        (("ab", "--block", "1"), "--block: expected a number from 0 to 0 of the encoder, found 1"),
        (("ab", "--head", "2"), "--head: expected a number from 0 to 1, found 2"),
        (("ab", "--dim", "16"), "--dim: expected a number from 0 to 15, found 16"),
        (("ab", "--key", "50"), "--key: expected a number from 0 to "),
        (("ab", "--candidate", "a b"), "expected a text of one token, found 'a b', which has "),
        (("ab", "--query", "50", "--stack", "encoder"), "--query: expected the position of a token, from 0 to 2 in the encoder, found 50"),
        (("ab", "--query", "50"), "choose one side, the encoder or the decoder"),
        (("ab", "--query", "-1"), "invalid value for '--query': expected a number greater than or equal to 0; see transom explain --help"),
        (("ab", "--query", "x"), "invalid value for '--query': expected a whole number; see transom explain --help"),
        (("ab", "--stack", "left"), "invalid value for '--stack': 'left' is not one of 'encoder', 'decoder'; see transom explain --help"),
        (("",), "TEXT: expected a text of at least one token, found none"),
        (("ab", "--out", "missing/x.html"), "expected an output file in a folder that exists, found no folder missing; create it first"),
        (
            ("ab", "--out", "calculation.pdf"),
            "--out: expected a file that ends in .txt, .md, .tex, .html, .htm, .json, found calculation.pdf",
        ),
        (("ab", "--json", "--format", "html"), "--format: expected json with --json, found html"),
    ],
)
def test_mistakes_are_one_line(options: tuple[str, ...], expected: str, transom: Call, trained: Trained) -> None:
    assert expected in transom("explain", trained.folder, *options).error


def test_an_edit_is_a_line_of_its_own(transom: Call, trained: Trained, tmp_path: Path) -> None:
    file = tmp_path / "edits.json"
    file.write_text('{"version": 1, "edits": [{"kind": "unscaled-scores", "stack": "encoder", "blocks": [0]}]}', encoding="utf-8")
    outcome = transom("explain", trained.folder, "ab ba", "--stack", "encoder", "--edit", file)
    assert outcome.code == 0 and outcome.err.count("unscaled-scores") == 2  # announced, and counted
    lines = text_lines(outcome.out)
    assert outcome.out.count("  edited: unscaled-scores, stack encoder, blocks 0") == 2 and "sqrt(d_k)" not in outcome.out
    assert len(lines) > 30 and all(map(holds, lines))


def test_a_text_that_is_too_long_is_truncated_and_noted(transom: Call, trained: Trained) -> None:
    outcome = transom("explain", trained.folder, "ab " * 300, "--stack", "encoder", "--query", "0")
    assert outcome.code == 0 and "was truncated to the context window of" in outcome.out
    assert all(map(holds, text_lines(outcome.out)))


@pytest.mark.parametrize("width", [50, 80, 100])
def test_wrapped_lines_fit_and_are_the_same_calculation(width: int, trained: Trained) -> None:
    explanation = explain(load(trained.folder, "fp32"), "ab ba", head=1, query=0)
    wrapped, words = explanation.text(width=width), explanation.text().split()
    assert max(map(len, wrapped.splitlines())) <= width and wrapped.split() == words
    assert text_lines(wrapped) == text_lines(explanation.text())
    assert re.search(r"\n {8}[+=] ", wrapped)


def test_python_gives_what_the_command_prints(transom: Call, trained: Trained) -> None:
    explanation = explain(load(trained.folder, "fp32"), "ab ba", head=1, query=0)
    assert explanation.text() == transom("explain", trained.folder, "ab ba", "--head", "1", "--query", "0").out
    fragment = explanation._repr_html_()
    assert fragment.startswith('<div class="transom">') and all(section.title in fragment for section in explanation.sections)
    with pytest.raises(DataError, match="expected at most 255 tokens, found 900"):
        explain(load(trained.folder, "fp32"), "ab " * 300)


@pytest.mark.long
@pytest.mark.parametrize(("environment", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_shows_colors_unless_they_are_switched_off(environment: dict[str, str], colored: bool, trained: Trained) -> None:
    words = ["-m", "transom", "explain", str(trained.folder), "ab", "--stack", "encoder"]
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    terminal: Any
    with pexpect.spawn(sys.executable, words, encoding="utf-8", timeout=120, env=inherited | {"TERM": "xterm"} | environment) as terminal:
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0 and bool(COLOR.search(terminal.before)) == colored
    lines = text_lines(COLOR.sub("", terminal.before).replace("\r", ""))
    assert len(lines) > 20 and all(map(holds, lines))
