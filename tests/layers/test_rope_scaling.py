"""Rotary scalings: limits of their formulas, a base per layer, and the length by which frequencies are chosen."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from transom.config.components import RotaryConfig
from transom.config.model import DecoderConfig, MaskedLMConfig, Seq2SeqConfig
from transom.config.rope_scaling import block_scalings
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.decoding.backends.whole_passes import WholePassDecoder
from transom.layers.position_encoding import Rotary
from transom.layers.rope_scaling import RotaryFrequencies, rotary_frequencies
from transom.models.build import build_model
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.inputs import TokenSequences
from transom.models.seq2seq import Seq2SeqTransformer

VOCAB, LIMIT, LONGEST = 23, 8, 24
CLOSE = {"rtol": 0.0, "atol": 1e-10}
DYNAMIC: dict[str, Any] = {"kind": "dynamic", "factor": 3.0}
LONGROPE: dict[str, Any] = {
    "kind": "longrope",
    "short_factor": [1.0, 1.25, 1.5, 2.0],
    "long_factor": [1.5, 2.0, 3.5, 6.0],
    "original_max_seq_len": LIMIT,
}
BY_LENGTH: dict[str, Any] = {
    "dynamic": DYNAMIC,
    "longrope": LONGROPE,
    "a cycle": [DYNAMIC, "none", LONGROPE],
}
"""Scalings whose frequencies change above ``LIMIT`` tokens; the base alternates."""


def frequencies(scaling: dict[str, Any], length: int = LONGEST, base: float = 500.0) -> RotaryFrequencies:
    (each,) = block_scalings(RotaryConfig.model_validate({"rope_scaling": scaling}).rope_scaling)
    return rotary_frequencies(each, base, 8, LONGEST, torch.tensor(length))


PLAIN = 500.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)


@pytest.mark.parametrize("kind", ["linear", "ntk", "dynamic", "yarn", "llama3"])
def test_factor_1_scales_nothing(kind: str) -> None:
    theta, scale = frequencies({"kind": kind, "factor": 1.0})
    assert torch.allclose(theta, PLAIN, rtol=1e-15, atol=0) and scale == 1.0


def test_longrope_with_equal_lengths_and_factors_of_1_scales_nothing() -> None:
    ones = {"kind": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4, "original_max_seq_len": LONGEST}
    theta, scale = frequencies(ones)
    assert torch.equal(theta, PLAIN) and scale == 1.0


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_fast_pairs_are_unchanged_and_slow_pairs_are_slowed_by_the_factor(factor: float) -> None:
    for kind in ("yarn", "llama3"):
        theta = frequencies({"kind": kind, "factor": factor, "original_max_seq_len": 1000})[0]  # 159, 34, 7 and 1.5 rotations
        assert torch.equal(theta[:2], PLAIN[:2]), kind
        theta = frequencies({"kind": kind, "factor": factor, "original_max_seq_len": 6})[0]  # less than one rotation
        assert torch.equal(theta[1:], PLAIN[1:] / factor), kind
    theta = frequencies({"kind": "ntk", "factor": factor})[0]
    assert theta[0] == 1.0 and theta[-1] == pytest.approx(PLAIN[-1].item() / factor, rel=1e-14)


def test_dynamic_grows_from_no_scaling_to_that_of_ntk() -> None:
    """At factor * L tokens the base grows by factor^2 - (factor - 1), since emozilla's formula is linear in the length."""
    for length in (1, LIMIT):
        assert torch.allclose(frequencies(DYNAMIC, length).theta, PLAIN, rtol=1e-15, atol=0)
    whole = frequencies(DYNAMIC, 3 * LIMIT).theta
    assert torch.allclose(whole, frequencies({"kind": "ntk", "factor": 7.0}).theta, rtol=1e-14, atol=0)
    assert torch.equal(frequencies(DYNAMIC).theta, whole), "without a length, that of the context window"
    slowest = [frequencies(DYNAMIC, length).theta[-1].item() for length in range(LIMIT, LONGEST + 1)]
    assert slowest == sorted(slowest, reverse=True) and len(set(slowest)) == len(slowest)


def test_a_single_pair_of_dimensions_is_not_scaled_by_a_larger_base() -> None:
    for kind in ("ntk", "dynamic"):
        (each,) = block_scalings(RotaryConfig.model_validate({"rope_scaling": {"kind": kind, "factor": 4.0}}).rope_scaling)
        assert rotary_frequencies(each, 500.0, 2, LONGEST).theta.tolist() == [1.0]


def language_model(scaling: Any, **fields: Any) -> DecoderOnlyTransformer:
    """Build a decoder of five blocks with two alternating bases."""
    position = {"kind": "rotary", "rope_theta": [50.0, 500.0], "rope_scaling": scaling}
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 5, "d_ff": 16, "max_seq_len": LONGEST, "vocab_size": VOCAB, "position": position}
    torch.manual_seed(1)
    model = build_model(DecoderConfig.model_validate(sizes | fields))
    assert isinstance(model, DecoderOnlyTransformer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.1, 0.5)
    return model.double().eval()


def draw(*shape: int) -> Tensor:
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_each_block_has_its_own_base() -> None:
    """A model with a list of bases equals one that rotates by hand with the base of each block."""
    model, tokens = language_model("none", attention={"pattern": ["full", {"kind": "window", "size": 4}, "full"]}), draw(2, 12)
    position = model.embedding.position
    assert isinstance(position, Rotary) and position.cos.shape == (2, LONGEST, 4)
    contexts = model.context(model.as_batch(tokens).decoder_input).attention_contexts
    assert len(contexts) == 6, "two bases and three patterns"
    for i, ctx in enumerate(contexts):
        base = [50.0, 500.0][i % 2]
        angles = torch.arange(12)[:, None] * base ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
        assert ctx.rotary is not None and ctx.mask is not None
        assert torch.allclose(ctx.rotary.cos[0, 0], angles.cos(), **CLOSE) and torch.allclose(ctx.rotary.sin[0, 0], angles.sin(), **CLOSE)
        assert bool(ctx.mask[0, 0, 9, 0]) == (i % 3 != 1)
    assert contexts[0].rotary is contexts[2].rotary, "the tables of a base are looked up once"
    other = language_model("none", position={"kind": "rotary", "rope_theta": 50.0})
    other.load_state_dict(model.state_dict())
    assert not torch.allclose(other(tokens), model(tokens), **CLOSE)


@pytest.mark.parametrize("name", BY_LENGTH)
@torch.no_grad()
def test_steps_equal_the_pass_over_a_text_of_the_length_known_at_the_start(name: str) -> None:
    model, tokens = language_model(BY_LENGTH[name]), draw(2, 20)
    for n_prompt, length in ((3, LIMIT), (5, 12), (10, 20), (1, LONGEST)):
        tokens = draw(2, length)
        whole = model(tokens)
        for steps in (model, WholePassDecoder(model)):
            prompt = PaddedSequences.pad(tokens[:, :n_prompt].tolist())
            cache = steps.start(steps.encode(prompt), 1, length - n_prompt + 1)
            parts = tokens[:, n_prompt - 1 :].split([1, length - n_prompt], 1)
            found = torch.cat([steps.step(part, cache) for part in parts], 1)
            assert torch.allclose(found, whole[:, n_prompt - 1 :], **CLOSE)
    cache = model.start(PaddedSequences.pad(tokens[:, :5].tolist()), 1, 4)  # ends at the limit
    assert not torch.allclose(model.step(tokens[:, 4:5], cache)[:, 0], whole[:, 4], **CLOSE), "the length changes the frequencies"


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@torch.no_grad()
def test_a_text_is_the_same_beside_longer_ones_padded_or_packed(name: str, kind: str) -> None:
    if kind == "decoder":
        model: Any = language_model(BY_LENGTH[name])
    else:
        position = {"kind": "rotary", "rope_theta": [50.0, 500.0], "rope_scaling": BY_LENGTH[name]}
        sizes = {"d_model": 16, "n_heads": 2, "n_layers": 5, "d_ff": 16, "max_seq_len": LONGEST, "vocab_size": VOCAB}
        model = build_model(MaskedLMConfig.model_validate(sizes | {"position": position})).double().eval()
    short, long = draw(1, 6), draw(1, 18)
    alone = [model(tokens) for tokens in (short, long)]
    for left in (True, False):
        padded = torch.cat([torch.nn.functional.pad(short, (12, 0) if left else (0, 12)), long])
        mask = torch.ones_like(padded)
        mask[0, slice(12) if left else slice(6, None)] = 0
        found = model(padded, attention_mask=mask)
        assert torch.allclose(found[:1, slice(12, None) if left else slice(6)], alone[0], **CLOSE)
        assert torch.allclose(found[1:], alone[1], **CLOSE)
    both = torch.cat([short, long], 1)
    positions, segments = (torch.cat(each)[None] for each in ((torch.arange(6), torch.arange(18)), (torch.ones(6), torch.full((18,), 2.0))))
    packed: Any = LanguageBatch(PaddedSequences(both, positions, segments.long(), torch.tensor([24])), both, (0,))
    found = model(packed if kind == "decoder" else replace(model.as_batch(both), source=TokenSequences(both, positions, segments.long())))
    assert torch.allclose(found, torch.cat(alone, 1), **CLOSE)


@pytest.mark.parametrize("name", BY_LENGTH)
@torch.no_grad()
def test_the_decoder_of_an_encoder_decoder_has_the_frequencies_of_the_context_window(name: str) -> None:
    """Its steps equal the whole pass whatever their number, and beside sources for which more tokens are allowed."""
    position = {"kind": "rotary", "rope_scaling": BY_LENGTH[name]}
    sizes = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 3, "n_decoder_layers": 3, "d_ff": 16, "max_seq_len": LONGEST}
    config = Seq2SeqConfig.model_validate(sizes | {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "position": position})
    torch.manual_seed(1)
    model = build_model(config).double().eval()
    assert isinstance(model, Seq2SeqTransformer)
    source, target = draw(2, 14), draw(2, 11)
    whole = model(source, decoder_tokens=target)
    for max_length in (11, 20):
        cache = model.start(model.encode(model.as_batch(source, decoder_tokens=target).source), 1, max_length)
        assert torch.allclose(torch.cat([model.step(part, cache) for part in target.split(4, 1)], 1), whole, **CLOSE)
    (rotary, *_) = model.target_context(model.as_batch(source, decoder_tokens=target).decoder_input, source).attention_contexts
    assert rotary.rotary is not None
    theta = frequencies(BY_LENGTH["dynamic" if name != "longrope" else name], LONGEST, 10000.0)
    angle = torch.atan2(rotary.rotary.sin[0, 0, 1], rotary.rotary.cos[0, 0, 1])
    assert torch.allclose(angle, theta.theta, **CLOSE)
    assert rotary.rotary.cos[0, 0, 0].tolist() == pytest.approx(
        [math.sqrt(1 + math.log(3) / math.log(8)) if name == "longrope" else 1.0] * 4
    )
