"""Neighbors and analogies are those of formulas in float64, with and without the query words."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.inspection.test_trace import model_of
from tests.models.combinations import ENCODERS, FAMILIES, SET_RECURRENT, described
from tests.models.test_combinations import built
from transom.config.data import PairTokenizerConfig, TokenizerConfig
from transom.data.pairs.pairs import Pairs
from transom.data.tokenizer.special_tokens import PAD, SOS
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.predictors.generator import Generator
from transom.decoding.predictors.translator import Translator
from transom.errors import ConfigError
from transom.inspection.lenses.embeddings import analogy, embedding_table, neighbors, word_vector

TEXT = "the king and the queen saw a man and a woman by the river"


def cosine(x: Tensor, y: Tensor) -> float:
    return float(x @ y) / (math.sqrt(float(x @ x)) * math.sqrt(float(y @ y)))


def generator(kind: str = "whitespace", text: str = TEXT, **fields: Any) -> Generator:
    """Build a language model of the words of a text."""
    tokenizer = Tokenizer.train([text] * 3, TokenizerConfig(kind=kind, vocab_size=300))  # type: ignore[arg-type]  # a literal
    return Generator(model_of(FAMILIES[3], vocab_size=tokenizer.vocab_size, max_seq_len=64, **fields)[0], tokenizer)


@pytest.mark.parametrize("fields", [FAMILIES[3], FAMILIES[4], ENCODERS[0], SET_RECURRENT[-1]], ids=str)
@pytest.mark.parametrize("output", [False, True])
def test_tokens_are_ranked_by_cosine(fields: dict[str, Any], output: bool) -> None:
    model: Any = built(described(fields)) if "cell" in fields else model_of(fields)[0]
    e = (model.unembedding if output else model.embedding.tokens).weight.detach()[:9]
    found = neighbors(model, 5, n=9, output=output)
    expected = sorted(((cosine(e[i], e[5]), i) for i in range(9)), reverse=True)
    assert [each.token for each in found.included] == [i for _, i in expected]
    assert [each.score for each in found.included] == pytest.approx([score for score, _ in expected], rel=1e-9)
    assert found.included[0].token == 5 and found.excluded == found.included[1:]
    assert found.table.tied == (model.unembedding.weight is model.embedding.tokens.weight)


def test_analogies_are_the_formulas_of_both_papers() -> None:
    run = generator()
    e, words = run.model.get_parameter("embedding.tokens.weight").detach(), TEXT.split()
    index = {word: run.tokenizer.encode(word)[0] for word in words}
    unit = {word: e[i] / e[i].norm() for word, i in index.items()}
    target = unit["king"] - unit["man"] + unit["woman"]
    add = {word: cosine(x, target) for word, x in unit.items()}

    def shifted(x: str, y: str) -> float:
        return (1 + cosine(unit[x], unit[y])) / 2

    mul = {word: shifted(word, "king") * shifted(word, "woman") / (shifted(word, "man") + 0.001) for word in unit}
    for method, expected in (("add", add), ("mul", mul)):
        found = analogy(run, ["king", "woman"], ["man"], n=99, method=method)  # type: ignore[arg-type]  # a literal
        assert {each.symbol: each.score for each in found.included} == pytest.approx(expected, rel=1e-9)
        assert [each.symbol for each in found.included] == sorted(expected, key=lambda word: -expected[word])
        assert {each.symbol for each in found.included} - {each.symbol for each in found.excluded} == {"king", "man", "woman"}
        assert all(each.is_query == (each.symbol in ("king", "man", "woman")) for each in found.included)


def test_a_word_of_several_tokens_is_their_mean_and_a_candidate() -> None:
    run = generator("char")
    e = run.model.get_parameter("embedding.tokens.weight")
    tokens = run.tokenizer.encode("king")
    vector = word_vector(embedding_table(run), "king")
    assert vector.tokens == tokens and vector.symbols == list("king") and torch.allclose(vector.vector, e[tokens].mean(0), rtol=1e-12)
    found = neighbors(run, "king", n=99)
    assert found.included[0].symbol == "king" and found.included[0].token is None
    assert found.included[0].score == pytest.approx(1.0) and not {each.token for each in found.excluded} & {None, *tokens}
    assert PAD not in {each.token for each in found.included} and SOS not in {each.token for each in found.included}


def test_bytes_are_tokens_and_no_word_is_unknown_to_subwords() -> None:
    run = generator("bpe")
    found = neighbors(run, "é", n=999)
    assert [each.symbols for each in found.positive] == [["▁", "<0xC3>", "<0xA9>"]]
    assert {"<0xC3>", "<0xA9>", "<0xE2>"} <= {each.symbol for each in found.included}


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_translators_have_a_side(tie: str) -> None:
    pairs = Pairs([TEXT] * 2, ["der Mann sah die Frau am Fluss"] * 2, "pairs")
    tokenizers = Tokenizers.train(pairs, PairTokenizerConfig(kind="whitespace", vocab_size=99, joint=tie == "all"))
    sizes = {f"{side}_vocab_size": getattr(tokenizers, side).vocab_size for side in ("source", "target")}
    model = model_of({**FAMILIES[0], "tie_embeddings": tie, **sizes})[0]
    run = Translator(model, tokenizers)  # type: ignore[arg-type]  # a translator
    assert neighbors(run, "king", side="source").included[0].symbol == "king"
    assert neighbors(run, "Frau", side="target").included[0].symbol == "Frau"
    assert embedding_table(run, output=True).path == "unembedding" and embedding_table(run, output=True).tied == (tie != "none")
    if tie == "all":
        assert neighbors(run, "king").excluded == neighbors(run, "king", side="target").excluded
        return
    with pytest.raises(ConfigError, match="side: expected source or target for a translator with an embedding per side, found none"):
        neighbors(run, "king")
    with pytest.raises(ConfigError, match=r"expected a word of the vocabulary, found 'king'; choose a word of the training text"):
        neighbors(run, "king", side="target")
    with pytest.raises(ConfigError, match="output: expected a model or side that predicts tokens, found the source side"):
        neighbors(run, "king", side="source", output=True)


def test_mistakes_have_a_remedy() -> None:
    run = generator()
    for word, expected in (("kings", "did you mean king"), (" ", "expected a word, found an empty text")):
        with pytest.raises(ConfigError, match=expected):
            neighbors(run, word)
    with pytest.raises(ConfigError, match="its characters X are unknown"):
        neighbors(generator("char"), "kiXng")
    with pytest.raises(ConfigError, match="side: expected none for a model with one vocabulary, found source"):
        neighbors(run, "king", side="source")
    with pytest.raises(ConfigError, match="expected a token from 0 to 8, found 9"):
        neighbors(model_of(FAMILIES[3])[0], 9)
    with pytest.raises(ConfigError, match="expected the id of a token for a model without a tokenizer, found 'king'"):
        neighbors(model_of(FAMILIES[3])[0], "king")
    with pytest.raises(ConfigError, match="predicts tokens, found a model of kind 'text-classifier'"):
        neighbors(model_of(ENCODERS[2])[0], 4, output=True)
    with pytest.raises(ConfigError, match="positive: expected at least one word"):
        analogy(run, [], ["king"])
