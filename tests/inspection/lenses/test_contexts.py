"""Vectors of a word in context are those that the blocks return, found by hooks of PyTorch."""

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.inspection.lenses.test_embeddings import cosine, generator
from tests.inspection.test_trace import model_of
from tests.models.combinations import ENCODERS, FAMILIES
from transom.config.data import TokenizerConfig
from transom.data.batch import translation_batch
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.predictors.fill_mask import MaskFiller
from transom.decoding.predictors.translator import Translator
from transom.errors import ConfigError, DataError
from transom.inspection.lenses.contexts import contextual_similarity, find_word

FIELDS: list[dict[str, Any]] = [
    {},
    {"norm": "layernorm", "norm_placement": "post", "position": "learned"},
    {"norm_placement": "parallel", "position": "rotary"},
    {"depth": {"kind": "mod", "capacity": 0.5, "every": 2}},
]
TEXTS = ["the man saw the king by the river", "a river and a woman"]


def by_hooks(run: Any, stack: str, tokens: list[int], offset: int) -> list[Tensor]:
    """Run a text, and return what the embedding and each block return at its tokens."""
    found = list[Tensor]()
    modules = [run.model.embedding, *run.model.get_submodule(stack).blocks]
    hooks = [each.register_forward_hook(lambda _, __, out: found.append(out[0] if isinstance(out, tuple) else out)) for each in modules]
    with torch.no_grad():
        run.model(run.text_batch(tokens)[0])
    for hook in hooks:
        hook.remove()
    return [x[0, offset : offset + len(tokens)] for x in found]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_vectors_in_context_are_the_outputs_of_the_blocks(fields: dict[str, Any]) -> None:
    run = generator(**fields)
    found = contextual_similarity(run, TEXTS, "river")
    assert [(each.text, each.start, each.symbols) for each in found.occurrences] == [(0, 7, ["river"]), (1, 1, ["river"])]
    assert found.layers == ["static", "embedding", "decoder.blocks.0", "decoder.blocks.1"]
    tokens = [run.tokenizer.encode(text) for text in TEXTS]
    static = [run.model.embedding.tokens.weight.detach()[each] for each in tokens]
    layers = [static, *zip(*(by_hooks(run, "decoder", each, 1) for each in tokens), strict=True)]
    for row, (one, other) in enumerate(layers):
        assert float(found.cosines[row, 0, 1]) == pytest.approx(cosine(one[7], other[1]), rel=1e-9)
        assert float(found.self_similarity[row]) == pytest.approx(cosine(one[7], other[1]), rel=1e-9)
        rest = [(token, x) for i, (token, x) in enumerate(zip(tokens[0], one, strict=True)) if i != 7]
        rest += [(token, x) for i, (token, x) in enumerate(zip(tokens[1], other, strict=True)) if i != 1]
        others = [cosine(x, y) for (i, x), (j, y) in combinations(rest, 2) if i != j]
        assert float(found.anisotropy[row]) == pytest.approx(sum(others) / len(others), rel=1e-9)
    assert float(found.cosines[0, 0, 1]) == pytest.approx(1.0) and float(found.cosines[2, 0, 1]) < 0.999
    assert torch.equal(found.adjusted, found.self_similarity - found.anisotropy)


def test_one_text_may_have_the_word_twice() -> None:
    run = generator()
    found = contextual_similarity(run, ["the man and the woman and the king"], "the")
    assert [each.start for each in found.occurrences] == [0, 3, 6]
    off = [float(found.cosines[2, i, j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert float(found.self_similarity[2]) == pytest.approx(sum(off) / 3)


def test_an_encoder_and_words_of_several_tokens() -> None:
    tokenizer = Tokenizer.train(["the river"] * 2, TokenizerConfig(kind="char"))
    model = model_of({**ENCODERS[0], "vocab_size": tokenizer.vocab_size}, max_seq_len=32)[0]
    run = MaskFiller(model, tokenizer)  # type: ignore[arg-type]  # a masked language model
    texts = ["the river", "river here"]
    found = contextual_similarity(run, texts, "river")
    layers = [by_hooks(run, "encoder", tokenizer.encode(text), 1) for text in texts]
    for row, (one, other) in enumerate(zip(*layers, strict=True), 1):
        assert float(found.cosines[row, 0, 1]) == pytest.approx(cosine(one[4:9].mean(0), other[:5].mean(0)), rel=1e-9)


def test_a_translators_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.train([" ".join(TEXTS)] * 3, TokenizerConfig(kind="whitespace", vocab_size=300))
    sizes = {f"{side}_vocab_size": tokenizer.vocab_size for side in ("source", "target")}
    run = Translator(model_of(FAMILIES[0], max_seq_len=32, **sizes)[0], Tokenizers(tokenizer, tokenizer))  # type: ignore[arg-type]
    sources, targets = ["the man", "a woman and a king"], TEXTS
    found = contextual_similarity(run, sources, "river", "target", targets)
    assert found.texts == TEXTS and [each.start for each in found.occurrences] == [7, 1]
    vectors = list[list[Tensor]]()
    for source, target in zip(sources, targets, strict=True):
        seen = list[Tensor]()
        hooks = [
            each.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out[0] if isinstance(out, tuple) else out))
            for each in [run.model.target_embedding, *run.model.decoder.blocks]
        ]
        with torch.no_grad():
            run.model(translation_batch([tokenizer.encode(source)], [tokenizer.encode(target)], [0]))
        for hook in hooks:
            hook.remove()
        vectors.append([x[0, 1:] for x in seen])  # after the start token
    assert found.layers == ["static", "embedding", "decoder.blocks.0", "decoder.blocks.1"]
    for row, (one, other) in enumerate(zip(*vectors, strict=True), 1):
        assert float(found.cosines[row, 0, 1]) == pytest.approx(cosine(one[7], other[1]), rel=1e-9)
    monkeypatch.setattr(Translator, "translate", lambda self, texts: TEXTS if texts == sources else [])
    assert torch.equal(contextual_similarity(run, sources, "river", "target").cosines, found.cosines)
    with pytest.raises(ConfigError, match="targets: expected a translation of each of 2 texts, on the side target, found 1"):
        contextual_similarity(run, sources, "river", "target", targets[:1])
    with pytest.raises(ConfigError, match="targets: expected a translation of each of 2 texts, on the side target, found 2"):
        contextual_similarity(run, sources, "river", "source", targets)
    with pytest.raises(ConfigError, match="side: expected none for a model with one vocabulary, found target"):
        contextual_similarity(generator(), TEXTS, "river", "target")
    with pytest.raises(DataError, match="expected a source and target of at most 31 tokens, found 2 and 40; shorten them"):
        contextual_similarity(run, sources, "river", "target", ["river " * 40, TEXTS[1]])


@pytest.mark.parametrize(
    ("kind", "text", "word", "spans"),
    [
        ("char", "a bank, bankers", "bank", [(2, 6)]),
        ("whitespace", "bank bank. the bank", "bank", [(0, 1), (3, 4)]),
        ("bpe", "bank, the bank's banker", "bank", [(0, 1), (3, 4)]),
        ("bpe", "(bank)", "bank", [(2, 5)]),
    ],
)
def test_words_are_found_as_tokens(kind: Any, text: str, word: str, spans: list[tuple[int, int]]) -> None:
    tokenizer = Tokenizer.train(["the bank the bank"] * 9, TokenizerConfig(kind=kind, vocab_size=290))
    found = find_word(tokenizer, text, word)
    assert [(each.start, each.stop) for each in found] == spans
    if kind == "bpe":
        symbols = tokenizer.symbols(tokenizer.encode(text))
        assert all("".join(symbols[each.start : each.stop]).strip("▁") == word for each in found)


def test_case_is_ignored_where_the_tokenizer_ignores_it() -> None:
    lower, exact = (Tokenizer.train(["Bank bank"] * 2, TokenizerConfig(kind="char", lowercase=each)) for each in (True, False))
    assert len(find_word(lower, "Bank bank", "BANK")) == 2 and len(find_word(exact, "Bank bank", "bank")) == 1


def test_mistakes_have_a_remedy() -> None:
    run = generator()
    with pytest.raises(DataError, match="text 2: expected the word 'king', found none in 'a woman'; give texts that contain it"):
        contextual_similarity(run, ["the king", "a woman"], "king")
    with pytest.raises(DataError, match="texts: expected two occurrences of 'king' to compare, found 1"):
        contextual_similarity(run, ["the king"], "king")
    with pytest.raises(ConfigError, match="word: expected a word, found an empty text"):
        contextual_similarity(run, ["the king"], " ")
    with pytest.raises(ConfigError, match="expected a batch or tensor for a model without a tokenizer"):
        contextual_similarity(run.model, ["the king"], "king")
