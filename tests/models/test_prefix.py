"""Prefix-LM decoders: agreement with a dense mask, causality after the prefix, packing, cached decoding, and block-sparse attention."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.models.combinations import FAMILIES, SOURCE, TARGET, batch_for, combinations, described, passing_first
from tests.models.test_combinations import CLOSE, built
from tests.models.test_patterns import LENGTH, fields, text
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.layers.context import AttentionContext, StackContext
from transom.layers.masks import block_sparse_mask as tiles_planning
from transom.layers.masks.attention_contexts import build_contexts
from transom.layers.masks.mask_rules import TokenPositions
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.seq2seq import Seq2SeqTransformer

PREFIXED = combinations([{"kind": "decoder", "n_layers": 2, "vocab_size": 9, "mask": "prefix-lm"}]).filter(
    lambda drawn: drawn["mask"] == "prefix-lm"
)
ROWS = [[2, 5, 8, 4, 1, 6], [2, 7, 1, 3, 3]]
PREFIXES = [4, 2]


def batch_of(rows: Sequence[Sequence[int]], prefixes: Sequence[int]) -> LanguageBatch:
    """Build a batch of one sequence with a prefix per row."""
    whole = PaddedSequences.pad(rows)
    prefix = torch.arange(whole.tokens.shape[1]) < torch.tensor(prefixes)[:, None]
    return LanguageBatch(replace(whole, prefix=prefix), whole.tokens, tuple(range(len(rows))))


def changed(batch: LanguageBatch, row: int, place: int) -> LanguageBatch:
    """Replace one token."""
    tokens = batch.decoder_input.tokens.clone()
    tokens[row, place] = tokens[row, place] % 7 + 1
    return replace(batch, decoder_input=replace(batch.decoder_input, tokens=tokens))


@pytest.mark.long
@settings(max_examples=30)
@given(PREFIXED)
@torch.no_grad()
def test_it_sees_what_a_mask_written_out_lets_it_see(drawn: dict[str, Any]) -> None:
    config = described(drawn | {"attention": drawn["attention"] | {"pattern": "full"}})
    model, batch = built(config), batch_of(ROWS, PREFIXES)
    assert isinstance(model, DecoderOnlyTransformer)
    mask = torch.tensor([[[j <= i or j < n for j in range(6)] for i in range(6)] for n in PREFIXES])[:, None]
    position, text = model.embedding.position, batch.decoder_input
    places = TokenPositions(text.positions, text.segments, lengths=position.text_lengths(text.positions, text.segments))
    causal = build_contexts(position, places, places, model.mask_rules)
    by_hand = model.decoder(
        model.embedding(text.tokens, text.positions),
        StackContext(attention_contexts=[AttentionContext(mask=mask, bias=each.bias, rotary=each.rotary) for each in causal]),
    )
    real = text.segments > 0
    assert torch.allclose(model(batch)[real], model.unembedding(by_hand)[real], **CLOSE)


@pytest.mark.long
@settings(max_examples=30)
@given(PREFIXED)
@torch.no_grad()
def test_a_prefix_is_seen_both_ways_and_what_follows_looks_back(drawn: dict[str, Any]) -> None:
    config = described(passing_first(drawn | {"attention": drawn["attention"] | {"pattern": "full"}}))
    model, batch = built(config), batch_of(ROWS, PREFIXES)
    whole = model(batch)
    in_prefix, behind = model(changed(batch, 0, 3)), model(changed(batch, 0, 4))
    assert not any(torch.allclose(in_prefix[0, i], whole[0, i], **CLOSE) for i in range(6)), "all tokens see the prefix's last"
    assert torch.allclose(behind[0, :4], whole[0, :4], **CLOSE) and not torch.allclose(behind[0, 4], whole[0, 4], **CLOSE)
    assert torch.allclose(in_prefix[1], whole[1], **CLOSE)
    none = model(replace(batch, decoder_input=replace(batch.decoder_input, prefix=None)))
    other = model(changed(replace(batch, decoder_input=replace(batch.decoder_input, prefix=None)), 0, 3))
    assert torch.allclose(other[0, :3], none[0, :3], **CLOSE), "without a prefix it is causal"
    assert not torch.allclose(none[0, :3], whole[0, :3], **CLOSE)


@pytest.mark.long
@settings(max_examples=30)
@given(PREFIXED, st.integers(1, 5))
@torch.inference_mode()
def test_steps_behind_a_prompt_equal_the_whole_pass(drawn: dict[str, Any], n_prefix: int) -> None:
    model = built(described(drawn))
    whole = model(batch_of(ROWS[:1], [n_prefix]))
    steps: Any = model
    cache = steps.start(PaddedSequences.pad([ROWS[0][: n_prefix + 1]]), 1, 6 - n_prefix)
    found = torch.cat([steps.step(torch.tensor([[token]]), cache) for token in ROWS[0][n_prefix:]], 1)
    assert torch.allclose(found, whole[:, n_prefix:], **CLOSE)


@settings(max_examples=20)
@given(PREFIXED)
@torch.no_grad()
def test_packed_is_as_alone(drawn: dict[str, Any]) -> None:
    model = built(described(drawn))
    alone = [model(batch_of([row], [n]))[0] for row, n in zip(ROWS, PREFIXES, strict=True)]

    def joined(*parts: Tensor) -> Tensor:
        return torch.cat(parts)[None]

    row = PaddedSequences(
        joined(*(torch.tensor(row) for row in ROWS)),
        joined(torch.arange(6), torch.arange(5)),
        joined(torch.ones(6, dtype=torch.long), torch.full((5,), 2)),
        torch.tensor([11]),
        joined(torch.arange(6) < 4, torch.arange(5) < 2),
    )
    assert torch.allclose(model(LanguageBatch(row, row.tokens, (0,)))[0], torch.cat(alone), **CLOSE)


PATTERNS: dict[str, Any] = {
    "full": "full",
    "window and prefix": {"kind": "any", "patterns": [{"kind": "window", "size": 20}, "prefix"]},
    "window but not the prefix": {"kind": "all", "patterns": [{"kind": "window", "size": 30}, {"kind": "not", "patterns": "prefix"}]},
    "strided and prefix, in turn": [{"kind": "any", "patterns": [{"kind": "strided", "stride": 9}, "prefix"]}, "full"],
}


@pytest.mark.kernels
@pytest.mark.parametrize("position", ["rotary", "relative"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_tiles_change_nothing(pattern: str, position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles_planning, "MIN_QUERIES", 128)
    monkeypatch.setattr(tiles_planning, "MAX_DENSITY", 0.95)
    model = built(described(fields("decoder", PATTERNS[pattern], position=position, mask="prefix-lm")))
    side = text(LENGTH)
    batch = batch_of([row[:n] for row, n in zip(side.tokens.tolist(), side.lengths.tolist(), strict=True)], [40, 25])
    assert isinstance(model, DecoderOnlyTransformer) and any(
        each.block_mask for each in model.context(batch.decoder_input).attention_contexts
    )
    real = batch.decoder_input.segments > 0
    by_tiles = model(batch)
    gradients = torch.autograd.grad(by_tiles[real].square().mean(), list(model.parameters()))
    monkeypatch.setattr(tiles_planning, "MIN_QUERIES", 10**6)
    written_out = model(batch)
    assert torch.allclose(by_tiles[real], written_out[real], **CLOSE)
    for a, b in zip(gradients, torch.autograd.grad(written_out[real].square().mean(), list(model.parameters())), strict=True):
        assert torch.allclose(a, b, **CLOSE)


@torch.no_grad()
def test_what_a_translator_writes_has_no_prefix() -> None:
    pattern = {"kind": "any", "patterns": [{"kind": "window", "size": 2}, "prefix"]}
    components = {"d_model": 12, "n_heads": 3, "d_ff": 8, "max_seq_len": 16, "depth": "mod", "attention": {"pattern": pattern}}
    config = described(FAMILIES[0] | components)
    model = built(config)
    assert isinstance(model, Seq2SeqTransformer)
    cache = model.start(model.encode(SOURCE), 1, 4)
    steps = torch.cat([model.step(TARGET.tokens[:, i : i + 1], cache) for i in range(4)], 1)
    real = TARGET.segments > 0
    assert torch.allclose(steps[real], model(batch_for(config))[real], **CLOSE)
