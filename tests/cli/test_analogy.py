"""``transom analogy`` and ``transom contexts`` print what the Python functions return."""

from pathlib import Path

import pytest

from tests.cli.conftest import Call, Trained
from tests.cli.test_images import photos, seeing
from tests.cli.test_language import LanguageRun, spoken
from transom.inspection.lenses.contexts import contextual_similarity
from transom.inspection.lenses.embeddings import analogy
from transom.tasks.load import load

__all__ = ["photos", "seeing", "spoken"]


def test_an_analogy_is_printed_with_and_without_its_words(transom: Call, spoken: LanguageRun) -> None:
    expected = analogy(load(spoken.folder, "fp32"), ["sun", "star"], ["moon"], n=4)
    for words in (("sun", "-", "moon", "+", "star"), ("sun - moon + star",)):
        lines = transom("analogy", spoken.folder, *words, "--top", "4").out.splitlines()
        assert lines[0] == "sun - moon + star in embedding.tokens, input and output embedding in one: 3CosAdd"
        rows = [line.split() for line in lines[lines.index("") + 2 :] if line[0].isdigit()]
        assert [row[-1] for row in rows] == [f"{each.score:.3f}" for each in expected.excluded]
        assert [row[1] for row in rows] == [each.symbol for each in expected.included] and lines[-1] == "* query word"
    value = transom("analogy", spoken.folder, "sun", "-", "moon", "+", "star", "--method", "mul", "--output-embedding", "--json").json
    of_mul = analogy(load(spoken.folder, "fp32"), ["sun", "star"], ["moon"], method="mul", output=True)
    assert value["embedding"] == "unembedding" and [each["score"] for each in value["included"]] == [each.score for each in of_mul.included]
    assert [each["word"] for each in value["positive"]] == ["sun", "star"] and len(value["excluded"]) == 10


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
    assert lines[0].endswith("of text 1: the sun of 3") and lines[1].startswith("2: ") and "mean of tokens" in lines[0]
    assert lines[3].split() == ["layer", "1-2", "mean", "other", "tokens", "adjusted"]
    for line, row in zip(lines[4:], range(len(expected.layers)), strict=True):
        numbers = (expected.cosines[row, 0, 1], expected.self_similarity[row], expected.anisotropy[row], expected.adjusted[row])
        assert line.split() == [expected.layers[row], *(f"{float(x):.3f}" for x in numbers)]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(texts))
    value = transom("contexts", spoken.folder, "sun", "--input", file, "--json").json
    assert [row["layer"] for row in value["layers"]] == expected.layers
    assert value["layers"][2]["cosines"][0][1] == float(expected.cosines[2, 0, 1])
    many = transom("contexts", trained.folder, "ab", "ab ab ba ab ab").out.splitlines()
    assert many[-1] == "mean: of all 6 pairs of occurrences, which --json lists" or "1-2" in many[5]


def test_mistakes_of_contexts_are_one_line(transom: Call, spoken: LanguageRun) -> None:
    for arguments, expected in (
        ((), "expected TEXT or --input, found both or neither"),
        (("the sun",), "texts: expected two occurrences of 'sun' to compare, found 1"),
        (("the sun", "the moon"), "text 2: expected the word 'sun', found none in 'the moon'"),
        (("the sun", "the sun " * 40), "tokens"),
    ):
        assert expected in transom("contexts", spoken.folder, "sun", *arguments).error
