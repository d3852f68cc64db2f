"""The server answers in the language of the page: formulas, hand calculations and notes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import transom
from transom.errors import ConfigError
from transom.inspection.explain.steps import Note
from transom.inspection.messages.tables import ENGLISH, LANGUAGES, templates
from transom.serving import explorer as explorer_module
from transom.serving.explorer import Explorer, request_key
from transom.serving.served_model import ServedModel

SMALL = ("model.d_model=16", "model.n_heads=2", "model.d_ff=24", "model.n_encoder_layers=1", "model.n_decoder_layers=2")
TRAINING = ("training.max_steps=1", "training.precision=fp32", "training.batch_tokens=256")

WORD = re.compile(r"[^\W\d_]{3,}(?!\w)")

TEXT = {"input": {"text": "a b c"}}
CELL = TEXT | {"name": "decoder.blocks.1.cross.weights", "index": {"n_heads": 1, "query": 0, "key": 2}}
HEAD = TEXT | {"attention": "decoder.blocks.0.attn", "head": 0, "query": 0, "position": 0}


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    """Answer questions about a translator that was trained for a step."""
    folder = tmp_path_factory.mktemp("language")
    transom.train("reverse", folder / "run", [*SMALL, *TRAINING])
    return Explorer([ServedModel.load(folder / "run")], folder)


def words(language: str) -> set[str]:
    """Return the words of the messages of calculations in a language."""
    return set(
        re.findall(r"[^\W\d_]{3,}", re.sub(r"\{\w+\}", "", json.dumps([*templates(language, "explain").values()], ensure_ascii=False)))
    )


def texts(answer: Any) -> Iterator[str]:
    """Yield all texts of an answer but names and code."""
    if isinstance(answer, str):
        yield answer
    elif isinstance(answer, list):
        for each in answer:
            yield from texts(each)
    elif isinstance(answer, dict):
        for name, each in answer.items():
            if name not in (
                "address",
                "name",
                "stack",
                "part",
                "queries",
                "keys",
                "kind",
                "axes",
                "command",
                "python",
                "alias",
                "cost",
                "data",
            ):
                yield from texts(each)


def numbers(answer: Any) -> Any:
    """Return an answer without its texts."""
    if isinstance(answer, dict):
        return {name: numbers(each) for name, each in answer.items()}
    return [numbers(each) for each in answer] if isinstance(answer, list) else None if isinstance(answer, str) else answer


BODIES = {"pass": TEXT, "calculation": CELL, "tensor": CELL, "head": HEAD}


@pytest.mark.parametrize("name", BODIES)
def test_an_answer_has_the_same_numbers_and_no_english_word(explorer: Explorer, name: str) -> None:
    body = BODIES[name]
    english, german = explorer.answer(name, body), explorer.answer(name, body | {"language": "de"})
    assert explorer.answer(name, body | {"language": ENGLISH}) == english
    assert numbers(german) == numbers(english)
    only_english = words(ENGLISH) - words("de")
    found = {word for text in texts(german) for word in WORD.findall(text)}
    assert found & only_english == set()
    assert name == "head" or {word for text in texts(english) for word in WORD.findall(text)} & only_english


def test_the_calculation_of_a_cell_is_told_in_german(explorer: Explorer) -> None:
    answer = explorer.answer("calculation", CELL | {"language": "de"})
    assert answer["title"] == "Handrechnung: Block 1, Head 1, Token 0 des Decoders"
    steps = [step for section in answer["sections"] for step in section["steps"]]
    (focus,) = [step for step in steps if step.get("focus") and "Summe" in step["formula"]]
    assert focus["formula"] == "Gewichte: A = e^S / Summe"
    assert any(step["kind"] == "check" and step["text"].startswith("geprüft: Gewichte x V ergibt") for step in steps)
    assert re.search(r" \(12 weitere: ", " ".join(step["expression"] for step in steps if step["kind"] == "calculation"))


def test_english_is_what_python_prints(explorer: Explorer) -> None:
    answer = explorer.answer("calculation", CELL)
    run = explorer.models[0].run
    found = transom.explain(run, "a b c", stack="decoder", block=1, head=1, query=0, key=2, temperatures=[1.0], every=True)
    assert [section["title"] for section in answer["sections"]] == [section.title for section in found.sections]
    assert (answer["title"], answer["summary"]) == (found.title, found.summary)
    notes = [step["text"] for section in answer["sections"] for step in section["steps"] if step["kind"] == "note"]
    assert notes == [step.text for section in found.sections for step in section.steps if isinstance(step, Note) and step.kind == "note"]


def test_notes_and_formulas_of_a_pass_are_told_in_german(explorer: Explorer) -> None:
    answer = explorer.answer("pass", TEXT | {"language": "de"})
    assert answer["notes"][0].startswith("Das Ziel ist die eigene Übersetzung des Modells: ")
    quantities = explorer.answer("quantities", TEXT | {"language": "de"})["quantities"]
    formulas = {each["address"]: each["formula"] for each in quantities}
    assert formulas["decoder.blocks.0.attn.weights"] == "Softmax der maskierten Scores"
    assert explorer.answer("tensor", CELL | {"language": "de"})["formula"] == "Softmax der maskierten Scores"


def test_a_pass_is_computed_once_for_all_languages(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(explorer_module, "run_pass", lambda *given, run=explorer_module.run_pass: calls.append(given) or run(*given))
    for language in LANGUAGES:
        explorer.answer("pass", {"input": {"text": "b a"}, "language": language})
        explorer.answer("calculation", CELL | {"input": {"text": "b a c"}, "language": language})
    assert len(calls) == 2


def test_a_language_without_a_table_is_refused(explorer: Explorer) -> None:
    with pytest.raises(ConfigError, match="language: expected en or de, found 'fr'"):
        explorer.answer("pass", TEXT | {"language": "fr"})


def test_an_exported_page_holds_the_answers_of_its_language(explorer: Explorer) -> None:
    body = CELL | {"language": "de"}
    page = explorer.answer("export", {"requests": [["calculation", body]], "state": {}, "language": "de"})["html"]
    (answers, language) = (json.loads(re.search(rf'id="{name}">(.*?)</script>', page)[1]) for name in ("answers", "language"))  # type: ignore[index]
    assert language == "de" and answers[request_key("calculation", body)]["title"].startswith("Handrechnung")
