"""Texts longer than the model reads: every command asks what becomes of them, counts them, and says it once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.conftest import Call, Trained
from tests.cli.test_encoders import classifying, filling, labelled
from tests.cli.test_instructions import asked, instruction_tuned
from tests.cli.test_language import LanguageRun, spoken
from tests.cli.test_tag import tagged, tagging
from tests.tiers import every
from transom.cli.commands import all_commands
from transom.decoding.predictors.translator import Translator
from transom.tasks.load import load

__all__ = ["asked", "classifying", "filling", "instruction_tuned", "labelled", "spoken", "tagged", "tagging"]
AB, SUN = "ab " * 400, "the sun of 3 is a sun " * 9


class Case(NamedTuple):
    """How a command is asked of one short and one long text, or of the long one where it takes only one.

    Attributes:
        arguments: of the command; capitals are places.
        said: the line on standard error, or on standard output where a command has notes there.
        counted: whether its JSON counts the long text.
    """

    arguments: tuple[str, ...]
    said: str
    counted: Callable[[Any], bool]


PAIRS = ("--source", "SOURCE", "--target", "TARGET")
CASES = {
    "translate": Case(
        ("TRANSLATING", "--input", "SOURCE"),
        "1 of 2 sentences exceed the context window of MOST tokens: split at sentence boundaries",
        lambda value: [record["translations"][0]["pieces"] > 1 for record in value] == [False, True],
    ),
    "translate --output": Case(
        ("TRANSLATING", "--input", "SOURCE", "--output", "OUT"),
        "1 of 2 sentences exceed the context window of MOST tokens: split",
        lambda value: value["n_too_long"] == 1,
    ),
    "evaluate": Case(
        ("TRANSLATING", *PAIRS),
        "1 of 2 sentences exceed the context window of MOST tokens: split",
        lambda value: value["n_too_long"] == 1,
    ),
    "evaluate --instructions": Case(
        ("ANSWERING", "--instructions", "INSTRUCTIONS", "--max-new-tokens", "2"),
        "1 of 2 prompts with their answers exceed the context window of 16 tokens: ",
        lambda value: value["n_too_long"] == 1,
    ),
    "compare": Case(
        ("TRANSLATING", "TRANSLATING", *PAIRS, "--resamples", "5"),
        " exceed the context window of MOST tokens: split",
        lambda value: (value["a_n_too_long"], value["b_n_too_long"]) == (1, 1),
    ),
    "compare --text": Case(
        ("GENERATING", "GENERATING", "--text", "MANY", "--document", "line", "--resamples", "5"),
        "1 of 31 texts by GENERATING exceed the context window of 15 tokens: read in windows",
        lambda value: (value["a_n_too_long"], value["b_n_too_long"]) == (1, 1),
    ),
    "compare --labeled-data": Case(
        ("CLASSIFYING", "CLASSIFYING", "--labeled-data", "LABELLED"),
        "1 of 2 texts by CLASSIFYING exceed the context window of 15 tokens: truncated, ",
        lambda value: (value["a_n_too_long"], value["b_n_too_long"]) == (1, 1),
    ),
    "generate": Case(
        ("GENERATING", "--input", "TEXTS", "--max-new-tokens", "2"),
        "1 texts exceeded the context window of 16 tokens",
        lambda value: [record["continuations"][0]["windows"] > 0 for record in value] == [False, True],
    ),
    "score": Case(
        ("GENERATING", "--text", "TEXTS", "--document", "line"),
        "1 of 2 texts exceed the context window of 15 tokens: read in windows",
        lambda value: value["n_too_long"] == 1 and value["texts"][1]["windows"] > 1,
    ),
    "score --too-long truncate": Case(
        ("GENERATING", "--text", "TEXTS", "--document", "line", "--too-long", "truncate"),
        "1 of 2 texts exceed the context window of 15 tokens: truncated, ",
        lambda value: value["n_too_long"] == 1 and value["n_dropped_tokens"] == value["texts"][1]["n_dropped_tokens"] > 0,
    ),
    "classify": Case(
        ("CLASSIFYING", "--input", "TEXTS"),
        "1 of 2 texts exceed the context window of 15 tokens: truncated, ",
        lambda value: [record["n_dropped_tokens"] > 0 for record in value] == [False, True],
    ),
    "classify --labeled-data": Case(
        ("CLASSIFYING", "--labeled-data", "LABELLED"),
        "1 of 2 texts exceed the context window of 15 tokens: truncated, ",
        lambda value: value["n_too_long"] == 1 and value["n_dropped_tokens"] > 0,
    ),
    "classify --labeled-data --too-long window": Case(
        ("CLASSIFYING", "--labeled-data", "LABELLED", "--too-long", "window"),
        "1 of 2 texts exceed the context window of 15 tokens: read in windows\n",
        lambda value: (value["n_too_long"], value["n_dropped_tokens"]) == (1, 0),
    ),
    "fill": Case(
        ("FILLING", "--input", "GAPS"),
        "1 of 2 texts exceed the context window of 15 tokens: read in a window around each mask, ",
        lambda value: [record["n_dropped_tokens"] > 0 for record in value] == [False, True],
    ),
    "embed": Case(
        ("FILLING", "--input", "TEXTS", "--output", "OUT"),
        "1 of 2 texts exceed the context window of 15 tokens: truncated, ",
        lambda value: value["n_too_long"] == 1 and value["n_dropped_tokens"] > 0,
    ),
    "embed --too-long window": Case(
        ("FILLING", "--input", "TEXTS", "--output", "OUT", "--too-long", "window"),
        "1 of 2 texts exceed the context window of 15 tokens: read in windows\n",
        lambda value: (value["n_too_long"], value["n_dropped_tokens"]) == (1, 0),
    ),
    "tag": Case(
        ("TAGGING", "--input", "TEXTS"),
        "1 of 2 texts exceed the context window of 15 tokens: read in windows\n",
        lambda value: [record["windows"] > 1 for record in value] == [False, True],
    ),
    "tag --tagged": Case(
        ("TAGGING", "--tagged", "TAGGED"),
        "1 of 2 sentences exceed the context window of 15 tokens: read in windows\n",
        lambda value: value["n_too_long"] == 1,
    ),
    "compare-attention": Case(
        ("GENERATING", "--input", "LONG", "--repeats", "1", "--features", "8", "--ranks", "4", "--windows", "4"),
        "was truncated to the context window of 15 tokens",
        lambda value: value["n_dropped_tokens"] > 0,
    ),
}
"""Each command that reads texts with a model; a test sees that none is left out."""


@pytest.fixture
def places(
    trained: Trained, spoken: LanguageRun, instruction_tuned: Path, classifying: Path, filling: Path, tagging: Path, tmp_path: Path
) -> dict[str, Path]:
    """Write a short and a long text in every form that is read."""
    files = {
        "SOURCE": f"ab ba\n{AB}\n",
        "TARGET": "ba\nab\n",
        "TEXTS": f"the sun\n{SUN}\n",
        "MANY": "the sun\n" * 30 + f"{SUN}\n",
        "LONG": f"{SUN}\n",
        "GAPS": f"the [MASK] of 3\n{SUN} [MASK]\n",
        "LABELLED": f"a wolf\twild\n{SUN}\tpet\n",
        "INSTRUCTIONS": f"the sun\tis\n{SUN}\tis\n",
        "TAGGED": "a\tO\ncat\tB-THING\n\n" + "the\tO\nmap\tB-THING\n" * 9,
    }
    found = {name: tmp_path / f"{name.lower()}.{'tsv' if name in ('LABELLED', 'INSTRUCTIONS') else 'txt'}" for name in files}
    for name, content in files.items():
        found[name].write_text(content)
    encoders = {"CLASSIFYING": classifying, "FILLING": filling, "TAGGING": tagging}
    runs = {"TRANSLATING": trained.folder, "GENERATING": spoken.folder, "ANSWERING": instruction_tuned, **encoders}
    return {**found, **runs, "OUT": tmp_path / "out"}


def test_every_command_that_reads_texts_is_here() -> None:
    assert {name.split()[0] for name in CASES} == set(all_commands()) - {
        "train",
        "average",
        "runs",
        "status",
        "chat",  # drops the oldest turns: test_chat.py
        "kernels",
        "plan",
        "rehearse",
        "profile",
        "find-batch",
        "find-lr",
        "sweep",
        "import",
        "export",
        "names",
        "explore",  # refuses it: tests/serving
        "analogy",
        "contexts",  # refuses it: test_analogy_and_diff.py
        "diff",  # refuses it: test_analogy_and_diff.py
        "ablate",  # refuses it: test_edits.py
        "lens",  # refuses it: test_lens.py
        "heads",  # notes what it truncates, as trace
        "align-error",
        "trace",  # notes what it truncates: test_trace.py
        "worked-examples",
        "doctor",  # reads the run's own data
        "explain",  # notes what it truncates: test_explain.py
        "plot",  # likewise
        "plugins",
        "compare-components",
        "recipes",
        "tokenizer",
        "demo",
    }


@pytest.mark.parametrize("name", every(3, CASES))
def test_it_is_asked_counted_and_said(name: str, transom: Call, places: dict[str, Path]) -> None:
    case, most = CASES[name], load(places["TRANSLATING"], "fp32", kind=Translator).max_tokens()
    command, *_ = name.split()
    arguments = [*(places.get(each, each) for each in case.arguments), *(() if command == "compare" else ("--precision", "fp32"))]
    told = transom(command, *arguments)
    assert told.code == 0, told
    shown = told.out if command == "compare-attention" else told.err
    said = case.said.replace("MOST", str(most))
    for place in ("GENERATING", "CLASSIFYING"):
        said = said.replace(place, str(places[place]))
    assert shown.count(said) == 1, shown
    counted = transom(command, *arguments, "--json")
    assert case.counted(counted.json), counted
    assert "longer than" not in counted.err and "exceeded" not in counted.err, "what counts has said it"
    if "--too-long" not in name:
        refused = transom(command, *arguments, "--too-long", "refuse").error
        assert "tokens" in refused and "expected" in refused


def test_a_text_that_fits_is_not_spoken_of(transom: Call, places: dict[str, Path]) -> None:
    for command, run in (("translate", "TRANSLATING"), ("generate", "GENERATING"), ("classify", "CLASSIFYING"), ("embed", "FILLING")):
        told = transom(command, places[run], "ab", *(("--max-new-tokens", "1") if command == "generate" else ()), "--precision", "fp32")
        assert told.code == 0 and "longer than" not in told.err and "exceeded" not in told.err
    record = transom("embed", places["FILLING"], SUN, "--json", "--too-long", "window").json
    assert record["windows"] > 1 and record["n_dropped_tokens"] == 0


@pytest.mark.parametrize(
    "flag", [("--suffix", ".py"), ("--document", "line"), ("--start", "0"), ("--overlap", "0"), ("--too-long", "refuse")]
)
def test_flags_of_texts_are_refused_with_pairs(flag: tuple[str, str], transom: Call, places: dict[str, Path]) -> None:
    refused = transom("score", places["TRANSLATING"], "--source", places["SOURCE"], "--target", places["TARGET"], *flag).error
    assert f"expected {flag[0]} only with --text, found {flag[0]} with --source and --target; leave {flag[0]} out" in refused
