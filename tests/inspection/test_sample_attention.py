"""The attention of a validation sample: its choice, its numbers in every family, and the sentence where a model has none."""

from typing import Any

import pytest
import torch
from torch import Tensor

import transom
from tests.inspection.lenses.test_rollout import IMAGES, half, model_of
from tests.models.combinations import ENCODERS, FAMILIES, SET_RECURRENT, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.config.data import TokenizerConfig
from transom.config.vision import VisionTransformerConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.inspection.sample_attention import (
    MAX_TOKENS,
    NoAttention,
    PatchAttention,
    SamplePicture,
    TextAttention,
    choose_sample,
    patch_attention,
    text_attention,
)

TOKENIZER = Tokenizer.train(["abcdefgh"] * 2, TokenizerConfig(kind="char"))
BOTH = Tokenizers(TOKENIZER, TOKENIZER)
PICTURE = SamplePicture("data:,", "image")


def maps(model: Any, tokens: Any, names: str) -> dict[str, Tensor]:
    """Return the weights of all heads of some layers for one sequence or pair of sequences."""
    return dict(transom.trace(model, tokens, [names])[1])


def language_batch(*rows: list[int]) -> LanguageBatch:
    read = PaddedSequences.pad(rows)
    return LanguageBatch(read, read.tokens, tuple(range(len(rows))))


@pytest.mark.parametrize("family", [FAMILIES[3], *every(3, ENCODERS, 2)], ids=lambda each: f"{each['kind']} {each.get('pooling', '')}")
def test_self_attention_is_that_of_the_sample_alone(family: dict[str, Any]) -> None:
    model, batch = model_of(family)
    found = text_attention(model, [batch], BOTH)
    assert isinstance(found, TextAttention) and found.error <= 1 and found.n_maps == 12
    tokens = (batch.decoder_input if family["kind"] == "decoder" else batch.source).tokens[0].tolist()
    n = len(found.queries)
    assert found.queries == found.keys == TOKENIZER.symbols(tokens[:n]) and (found.n_tokens, found.n_read) == (n, n)
    alone = torch.tensor([tokens[:n]])
    inputs = model.make_batch(alone, None, alone, None) if family["kind"] == "text-embedder" else alone
    first, second = maps(model, inputs, "attn.weights").values()
    assert torch.allclose(found.weights.double(), second[0], rtol=1e-5)
    if "pooling" not in family:
        assert found.shares is None and not found.no_shares
        return
    product = half(second.mean(1)) @ half(first.mean(1))
    expected = product[0, 0] if family["pooling"] == "cls" else product[0].mean(0)
    assert found.shares is not None and torch.allclose(found.shares.double(), expected, rtol=1e-5)


def test_a_translator_shows_the_layer_closest_to_one_to_one() -> None:
    model, batch = model_of(FAMILIES[0])
    found = text_attention(model, [batch], BOTH)
    assert isinstance(found, TextAttention)
    crosses = maps(model, batch, "cross.weights")
    sharpest = {address: float(x[0].mean(0).amax(0).mean()) for address, x in crosses.items()}
    address = max(sharpest, key=lambda each: sharpest[each])
    assert found.address == address.removesuffix(".weights")
    assert torch.allclose(found.weights.double(), crosses[address][0, :, : len(found.queries), : len(found.keys)], rtol=1e-5)
    assert found.n_tokens == len(found.queries) + len(found.keys)


def test_a_recurrent_translator_has_one_head() -> None:
    config = next(each for each in map(described, SET_RECURRENT) if getattr(each, "attention", None) and each.attention.kind == "additive")
    model, batch = built(config), model_of(FAMILIES[0])[1]
    found = text_attention(model, [batch], BOTH)
    assert isinstance(found, TextAttention) and found.address == "decoder.cross" and len(found.weights) == 1
    expected = maps(model, batch, "cross.weights")["decoder.cross.weights"][0]
    assert torch.allclose(found.weights.double(), expected[:, : len(found.queries), : len(found.keys)], rtol=1e-5)


def test_models_without_attention_say_so() -> None:
    recurrent = next(each for each in map(described, SET_RECURRENT) if each.kind == "recurrent-decoder")
    assert text_attention(built(recurrent), [], BOTH) == NoAttention("recurrent")
    convolutional = transom.build({"kind": "convolutional", "image_size": 8, "classes": ["a", "b"], "d_model": 8})
    assert patch_attention(convolutional, None, PICTURE) == NoAttention("convolutional")


def test_the_sample_is_neither_short_nor_long() -> None:
    model, _ = model_of(FAMILIES[3], max_seq_len=64)
    rows = [list(range(4, 4 + n % 8)) * (1 + n // 8) for n in (1, 4, 7)]
    long = language_batch([4, 5] * 30)
    chosen = choose_sample(model, [language_batch(*rows), long])
    assert chosen is not None and chosen.n_read == chosen.n_tokens == 7
    cut = choose_sample(model, [long])
    assert cut is not None and (cut.n_tokens, cut.n_read) == (60, MAX_TOKENS)
    assert cut.batch.decoder_input is not None and cut.batch.decoder_input.tokens.tolist() == [[4, 5] * 12]
    assert choose_sample(model, [language_batch([4])]) is None
    assert text_attention(model, [language_batch([4])], BOTH) == NoAttention("short")


@pytest.mark.parametrize("pooling", every(2, ["cls", "mean"]))
def test_patches_are_those_of_the_class_token_or_the_mean(pooling: str) -> None:
    torch.manual_seed(3)
    config = VisionTransformerConfig.model_validate(IMAGES | {"pooling": pooling})
    model = built(config)
    batch = model.as_batch(torch.rand(1, config.channels, 8, 8, dtype=torch.float64))
    found = patch_attention(model, batch, PICTURE)
    assert isinstance(found, PatchAttention) and found.from_class_token == (pooling == "cls") and found.error <= 1
    first, second = maps(model, batch, "attn.weights").values()
    expected = second[0, :, 0, 1:] if pooling == "cls" else second[0].mean(1)
    assert torch.allclose(found.weights.double().flatten(1), expected, rtol=1e-5)
    product = (half(second.mean(1)) @ half(first.mean(1)))[0]
    shares = product[0, 1:] if pooling == "cls" else product.mean(0)
    assert found.shares is not None and torch.allclose(found.shares.double().flatten(), shares, rtol=1e-5)


def test_approximations_and_weights_that_are_not_finite() -> None:
    model, batch = model_of(ENCODERS[0], attention={"approximation": {"kind": "nystrom", "n_landmarks": 2}})
    found = text_attention(model, [batch], BOTH)
    assert isinstance(found, TextAttention) and found.approximation == "nystrom"
    exact, batch = model_of(FAMILIES[3])
    with torch.no_grad():
        exact.get_parameter("decoder.blocks.1.attn.q.weight").fill_(torch.nan)
    broken = text_attention(exact, [batch], BOTH)
    assert isinstance(broken, TextAttention) and broken.error == float("inf") and bool(broken.weights.isnan().any())
