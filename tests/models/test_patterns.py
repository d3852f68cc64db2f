"""Block-sparse attention in models with long rows: same logits, gradients, attention weights and FLOPs as with dense masks."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.models.combinations import described
from tests.tiers import every
from transom.data.batch import LanguageBatch, PaddedSequences, TranslationBatch
from transom.inspection.recompute import recompute_attention_weights
from transom.layers.attention import repeat_kv
from transom.layers.masks import block_sparse_mask as tiles_planning
from transom.layers.observe import ActivationRecorder
from transom.models.build import build_model
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning import flops
from transom.planning.flops import count_flops

LENGTH = 256
SIZES = {"d_model": 12, "n_heads": 6, "n_kv_heads": 3, "d_ff": 8, "max_seq_len": LENGTH, "dropout": 0.0}
PATTERNS: dict[str, Any] = {
    "window and full": [{"kind": "window", "size": 20}, "full"],
    "sparse": {"kind": "any", "patterns": [{"kind": "block-local", "size": 16}, {"kind": "summary", "stride": 16, "columns": 2}]},
    "bigbird": {"kind": "any", "patterns": ["global", {"kind": "window", "size": 9}, {"kind": "random", "blocks": 1, "size": 64}]},
}


@pytest.fixture(autouse=True)
def _long_at_once(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lower the thresholds of block-sparse attention, and clear cached counts."""
    monkeypatch.setattr(tiles_planning, "MIN_QUERIES", 128)
    monkeypatch.setattr(tiles_planning, "MAX_DENSITY", 0.9)
    monkeypatch.setattr(tiles_planning, "MULTI_PART_COST", 1.0)
    flops._count_pairs.cache_clear()
    yield
    flops._count_pairs.cache_clear()


def text(length: int, rows: int = 2) -> PaddedSequences:
    generator = torch.Generator().manual_seed(1)
    return PaddedSequences.pad([torch.randint(1, 9, (length - 40 * i,), generator=generator).tolist() for i in range(rows)])


def batch_of(kind: str) -> Any:
    side = text(LENGTH)
    return TranslationBatch(side, text(LENGTH), side.tokens, (0, 1)) if kind == "seq2seq" else LanguageBatch(side, side.tokens, (0, 1))


def fields(kind: str, pattern: Any, **more: Any) -> dict[str, Any]:
    families = {
        "seq2seq": {"n_encoder_layers": 2, "n_decoder_layers": 2, "source_vocab_size": 9, "target_vocab_size": 9},
        "decoder": {"n_layers": 2, "vocab_size": 9},
    }
    return SIZES | {"kind": kind, "attention": {"pattern": pattern}} | families[kind] | more


@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
def test_prompts_are_read_side_by_side_as_alone(position: str) -> None:
    """Several prompts, or several continuations of one, share positions; each row has its own tiles."""
    torch.manual_seed(1)
    model = build_model(described(fields("decoder", PATTERNS["bigbird"], position=position))).double().eval()
    assert isinstance(model, DecoderOnlyTransformer)
    prompts = torch.randint(1, 9, (3, LENGTH))
    with torch.no_grad():
        together = model.step(prompts[:, -1:], model.start(PaddedSequences.pad(prompts.tolist()), 1, 1))
        alone = [model.step(row[None, -1:], model.start(PaddedSequences.pad([row.tolist()]), 1, 1)) for row in prompts]
    assert torch.allclose(together, torch.cat(alone), rtol=0, atol=1e-10)


@pytest.mark.kernels
@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
@pytest.mark.parametrize("pattern", every(4, PATTERNS))
@pytest.mark.parametrize("kind", ["seq2seq", "decoder"])
def test_tiles_change_nothing(kind: str, pattern: str, position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = build_model(described(fields(kind, PATTERNS[pattern], position=position))).double().eval()
    batch, recorder = batch_of(kind), ActivationRecorder(["*"])
    seq2seq = isinstance(model, Seq2SeqTransformer)
    ctx = model.target_context(batch.decoder_input, batch.source.segments) if seq2seq else model.context(batch.decoder_input)
    assert any(each.block_mask for each in ctx.attention_contexts)
    by_tiles = model(batch, recorder)
    gradients = torch.autograd.grad(by_tiles.square().mean(), list(model.parameters()))
    for layer in range(2):
        name = f"decoder.blocks.{layer}.attn"
        z = recompute_attention_weights(model, name, recorder.activations, batch) @ repeat_kv(recorder.activations[f"{name}.v"], 6)
        assert torch.allclose(z, recorder.activations[f"{name}.z"], rtol=0, atol=1e-10)
    monkeypatch.setattr(tiles_planning, "MIN_QUERIES", 10**6)
    written_out = model(batch)
    assert torch.allclose(by_tiles, written_out, rtol=0, atol=1e-10)
    for a, b in zip(gradients, torch.autograd.grad(written_out.square().mean(), list(model.parameters())), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


@torch.inference_mode()
def test_prompts_are_read_by_tiles_and_steps_by_their_keys() -> None:
    model = build_model(described(fields("decoder", PATTERNS["window and full"], position="alibi"))).double().eval()
    row = text(LENGTH, 1)
    whole = model(LanguageBatch(row, row.tokens, (0,)))
    steps: Any = model
    cache = steps.start(PaddedSequences.pad([row.tokens[0, :200].tolist()]), 1, LENGTH)
    parts = [steps.step(row.tokens[:, i : i + 1], cache) for i in range(199, LENGTH)]
    assert torch.allclose(torch.cat(parts, 1), whole[:, 199:], rtol=0, atol=1e-10)


@pytest.mark.kernels
@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_counted_is_what_is_computed(pattern: str) -> None:
    config = described(fields("decoder", PATTERNS[pattern]))
    model, row = build_model(config).eval(), text(LENGTH, 1)
    with FlopCounterMode(display=False) as counter:
        model(LanguageBatch(row, row.tokens, (0,)))
    counted = count_flops(config, 1, 0, LENGTH).forward
    assert counted == counter.get_total_flops()
    assert counted < count_flops(described(fields("decoder", "full")), 1, 0, LENGTH).forward
