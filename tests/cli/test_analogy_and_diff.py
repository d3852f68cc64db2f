"""``transom analogy``, ``contexts`` and ``diff`` print what the Python functions return."""

from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Call, Trained
from tests.cli.test_images import photos, seeing
from tests.cli.test_language import LanguageRun, spoken
from transom.checkpoints.run_folder import RunFolder
from transom.cli.analogy import VISIBLE
from transom.inspection.lenses.contexts import contextual_similarity
from transom.inspection.lenses.embeddings import analogy
from transom.tasks.load import load
from transom.tasks.load_checkpoint import load_run_or_checkpoint

__all__ = ["photos", "seeing", "spoken"]


def test_an_analogy_is_printed_with_and_without_its_words(transom: Call, spoken: LanguageRun) -> None:
    expected = analogy(load(spoken.folder, "fp32"), ["sun", "star"], ["moon"], n=4)
    for words in (("sun", "-", "moon", "+", "star"), ("sun - moon + star",)):
        lines = transom("analogy", spoken.folder, *words, "--top", "4").out.splitlines()
        assert lines[0] == "sun - moon + star in embedding.tokens, input and output embedding in one: 3CosAdd"
        rows = [line.split() for line in lines[lines.index("") + 2 :] if line[0].isdigit()]
        assert [row[-1] for row in rows] == [f"{each.score:.3f}" for each in expected.excluded]
        assert [row[1] for row in rows] == [each.symbol.translate(VISIBLE) for each in expected.included] and lines[-1] == "* query word"
    value = transom("analogy", spoken.folder, "sun", "-", "moon", "+", "star", "--method", "mul", "--output-embedding", "--json").json
    of_mul = analogy(load(spoken.folder, "fp32"), ["sun", "star"], ["moon"], method="mul", output=True)
    assert value["embedding"] == "unembedding" and [each["score"] for each in value["included"]] == [each.score for each in of_mul.included]
    assert [each["word"] for each in value["positive"]] == ["sun", "star"] and len(value["excluded"]) == 10


def test_tokens_that_are_control_characters_do_not_break_the_table(transom: Call, spoken: LanguageRun) -> None:
    outcome = transom("analogy", spoken.folder, "sun", "--top", "999")
    lines = outcome.out.split("\n")[3:-2]
    assert [line.split()[0] for line in lines] == [str(i) for i in range(1, len(lines) + 1)] and len(lines) > 256
    assert "␊" in outcome.out and "\x1b" not in outcome.out


def test_a_word_of_several_tokens_is_said_to_be_their_mean(transom: Call, spoken: LanguageRun) -> None:
    lines = transom("analogy", spoken.folder, "sunmoon", "--top", "3").out.splitlines()
    symbols = load(spoken.folder).tokenizer.symbols(load(spoken.folder).encode("sunmoon"))
    assert lines[0].endswith(": cosine similarity")
    assert lines[1] == f"sunmoon is the mean of {len(symbols)} tokens: {' '.join(symbols)}" and lines[4].split()[:3] == [
        "1",
        "sunmoon",
        "*",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("a", "b"), "expected words with + or - between them, such as king - man + woman, found 'a b'"),
        (("a", "+"), "expected words with + or - between them"),
        (("+", "a"), "expected words with + or - between them"),
        (("x",), "expected a word of the vocabulary, found 'x'; its characters x are unknown"),
    ],
)
def test_mistakes_of_an_analogy_are_one_line(words: tuple[str, ...], expected: str, transom: Call, trained: Trained) -> None:
    assert expected in transom("analogy", trained.folder, *words, "--side", "source").error


def test_a_model_without_words_has_no_analogies(transom: Call, trained: Trained, seeing: Path) -> None:
    assert "expected a model of texts with token embeddings, found a model of kind" in transom("analogy", seeing, "cat").error
    assert "expected a model of texts with token embeddings" in transom("contexts", seeing, "cat", "a cat", "the cat").error
    assert transom("analogy", trained.folder, "a", "--side", "target", "--json").json["embedding"] == "target_embedding.tokens"


def test_contexts_are_a_table_by_block(transom: Call, trained: Trained, spoken: LanguageRun, tmp_path: Path) -> None:
    texts = ["the sun of 3", "a sun"]
    expected = contextual_similarity(load(spoken.folder, "fp32"), texts, "sun")
    lines = transom("contexts", spoken.folder, "sun", *texts).out.splitlines()
    assert lines[0].endswith("of text 1: the sun of 3") and lines[1].startswith("2: token 2 (▁sun) of text 2: ")
    assert lines[3].split() == ["layer", "1-2", "mean", "other", "tokens", "adjusted"]
    for line, row in zip(lines[4:], range(len(expected.layers)), strict=True):
        numbers = (expected.cosines[row, 0, 1], expected.self_similarity[row], expected.anisotropy[row], expected.adjusted[row])
        assert line.split() == [expected.layers[row], *(f"{float(x):.3f}" for x in numbers)]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(texts))
    value = transom("contexts", spoken.folder, "sun", "--input", file, "--json").json
    assert [row["layer"] for row in value["layers"]] == expected.layers
    assert value["layers"][2]["cosines"][0][1] == float(expected.cosines[2, 0, 1])
    both = transom(
        "contexts", trained.folder, "ab", "ba ab", "ab", "--side", "target", "--target", "ab ba", "--target", "ba ba ab", "--json"
    ).json
    assert both["texts"] == ["ab ba", "ba ba ab"] and both["layers"][1]["layer"] == "embedding" and len(both["occurrences"]) == 2
    several = transom("contexts", trained.folder, "ab", "ab ab ba ab ab ab").out.splitlines()
    assert several[0].startswith("1: mean of tokens 0 to 1 (a b) of text 1: ")
    assert "1-2" not in several[6] and several[-1] == "mean: of all 10 pairs of occurrences, which --json lists"


def test_mistakes_of_contexts_are_one_line(transom: Call, spoken: LanguageRun) -> None:
    for arguments, expected in (
        ((), "expected TEXT or --input, found both or neither"),
        (("the sun",), "texts: expected two occurrences of 'sun' to compare, found 1"),
        (("the sun", "the moon"), "text 2: expected the word 'sun', found none in 'the moon'"),
        (("the sun", "the sun " * 40), "tokens"),
    ):
        assert expected in transom("contexts", spoken.folder, "sun", *arguments).error


def test_a_run_does_not_differ_from_itself(transom: Call, spoken: LanguageRun) -> None:
    lines = transom("diff", spoken.folder, spoken.folder, "the sun").out.splitlines()
    assert lines[0] == "configuration: no difference" and lines[2].startswith("weights: no difference in ")
    assert lines[4].startswith("pass: no difference at ")
    assert transom("diff", spoken.folder, spoken.folder).out.splitlines() == lines[:3]


def test_two_prompts_part_at_the_token_that_differs(transom: Call, spoken: LanguageRun) -> None:
    run = load(spoken.folder)
    one, other = (run.tokenizer.symbols([2, *run.encode(text)]) for text in ("the sun", "the star"))
    position = next(i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y)
    lines = transom("diff", spoken.folder, spoken.folder, "the sun", "the star").out.splitlines()
    assert lines[4] == f"the passes part at embedding.resid, position {position} ({one[position]} / {other[position]})"
    assert lines[6] == "  it is the first site of the pass"
    value = transom("diff", spoken.folder, spoken.folder, "the sun", "the star", "--json").json
    assert value["first"]["address"] == "embedding.resid" and value["first"]["position"] == position
    assert all(not any(row[:position]) for each in value["sites"] for row in each["of_rounding_by_position"])


def test_dtypes_differ_by_rounding(transom: Call, trained: Trained) -> None:
    outcome = transom("diff", trained.folder, trained.folder, "ab ba", "--precision", "fp32,bf16", "--all")
    assert "pass: only rounding; the largest difference is 0." in outcome.out and "by no more than their cast" in outcome.out
    assert "both decoders read the translation of the first model: " in outcome.err


def test_checkpoints_are_compared_with_the_run(transom: Call, spoken: LanguageRun) -> None:
    step = RunFolder.open(spoken.folder).checkpoints.steps()[0]
    folder = spoken.folder / "checkpoints" / f"step-{step}"
    tensors = RunFolder.open(spoken.folder).checkpoints.load(step, only=["model"]).groups["model"]
    loaded = dict(load_run_or_checkpoint(folder, "fp32").model.named_parameters())
    assert tensors.keys() == loaded.keys() and all(torch.equal(x, loaded[name]) for name, x in tensors.items())
    value = transom("diff", folder, spoken.folder, "the sun", "--json").json
    own = load(spoken.folder, "fp32").model.state_dict()
    changes = {name: float((x.double() - own[name].double()).abs().max()) for name, x in tensors.items()}
    assert {each["name"]: each["max_difference"] for each in value["weights"]} == {name: x for name, x in changes.items() if x}
    missing = spoken.folder / "checkpoints" / "step-7"
    assert "expected the checkpoint step-7, found step-" in transom("diff", missing, spoken.folder).error


def test_other_architectures_are_compared_by_fields(transom: Call, spoken: LanguageRun, trained: Trained) -> None:
    lines = transom("diff", spoken.folder, trained.folder, "ab").out.splitlines()
    assert lines[0].startswith("configuration: ") and lines[0].endswith(" fields differ")
    assert "kind" in [line.split()[0] for line in lines[2:12]]


def test_the_passes_of_two_pictures_part(transom: Call, seeing: Path, photos: Path) -> None:
    dark, light = (next((photos / name).iterdir()) for name in ("dark", "light"))
    value = transom("diff", seeing, seeing, "--input", dark, "--input", light, "--json").json
    assert value["first"]["address"] == value["sites"][0]["address"] and value["first_unequal"] == value["first"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("a", "b", "c"), "expected one or two TEXT, or one or two --input, found 3 and 0"),
        (("a", "--input", "x.txt"), "expected one or two TEXT, or one or two --input, found 1 and 1"),
        (("a", "--precision", "fp32,int8"), "--precision: expected fp32, bf16 or fp16, or two of them as in fp32,bf16, found 'fp32,int8'"),
        (("the sun " * 40,), "tokens"),
    ],
)
def test_mistakes_of_diff_are_one_line(options: tuple[str, ...], expected: str, transom: Call, spoken: LanguageRun) -> None:
    assert expected in transom("diff", spoken.folder, spoken.folder, *options).error


def test_both_helps_tell_diff_from_compare(transom: Call) -> None:
    assert "transom compare" in transom("diff", "--help").out and "transom diff" in transom("compare", "--help").out
