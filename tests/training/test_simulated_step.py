"""The memory that is predicted on tensors without values is the memory of a step with values."""

from dataclasses import astuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transom.config.model import DecoderConfig, MaskedLMConfig, Seq2SeqConfig
from transom.config.vision import VisionTransformerConfig
from transom.models.build import build_model
from transom.planning import live_memory
from transom.planning.live_memory import follow_memory
from transom.training import simulated_step
from transom.training.simulated_step import BatchShape, build_batch, measure_step, simulate_step

CONFIGS = st.fixed_dictionaries(
    {
        "d_model": st.sampled_from([16, 24]),
        "n_heads": st.sampled_from([2, 4]),
        "d_ff": st.sampled_from([8, 40]),
        "n_layers": st.integers(1, 3),
        "vocab_size": st.integers(5, 90),
        "dropout": st.sampled_from([0.0, 0.1]),
        "norm": st.sampled_from(["layernorm", "rmsnorm"]),
        "norm_placement": st.sampled_from(["post", "pre", "sandwich", "parallel"]),
        "position": st.sampled_from(["learned", "rotary", "sinusoidal", "alibi"]),
        "feed_forward": st.sampled_from(["relu", "gelu", "swiglu"]),
        "tie_embeddings": st.booleans(),
    }
)
PAIRS = {"d_model": 16, "n_heads": 2, "d_ff": 24, "n_encoder_layers": 1, "n_decoder_layers": 2, "max_seq_len": 16} | dict.fromkeys(
    ("source_vocab_size", "target_vocab_size"), 40
)
SHAPES = st.builds(BatchShape, st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), n_micro_batches=st.integers(1, 3))


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(CONFIGS, SHAPES, st.sampled_from([DecoderConfig, MaskedLMConfig]))
def test_a_step_needs_what_is_predicted(fields: dict[str, Any], shape: BatchShape, family: Any) -> None:
    config = family.model_validate({**fields, "max_seq_len": 16})
    real = measure_step(build_model(config).train(), build_batch(config, shape), torch.float32, shape)
    assert simulate_step(config, shape, torch.float32) == real


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        Seq2SeqConfig.model_validate(PAIRS),
        VisionTransformerConfig(image_size=16, patch_size=4, d_model=16, n_heads=2, n_layers=2, d_ff=24, classes=("a", "b", "c")),
    ],
    ids=lambda config: config.kind,
)
def test_other_families_need_what_is_predicted(config: Any) -> None:
    shape = BatchShape(3, 7, 5)
    real = measure_step(build_model(config).train(), build_batch(config, shape), torch.float32, shape)
    assert simulate_step(config, shape, torch.float32) == real


def test_in_bfloat16_the_prediction_is_near() -> None:
    """PyTorch keeps the statistics of a 16-bit layer norm in float32, on tensors without values in 16 bits."""
    config = DecoderConfig(d_model=64, n_heads=4, n_layers=2, d_ff=128, vocab_size=100, max_seq_len=32, norm="layernorm")  # type: ignore[arg-type]
    shape = BatchShape(4, 0, 32)
    real = measure_step(build_model(config).train(), build_batch(config, shape), torch.bfloat16, shape)
    predicted = simulate_step(config, shape, torch.bfloat16)
    assert predicted is not None
    assert astuple(predicted) == pytest.approx(astuple(real), rel=0.02)


@pytest.mark.parametrize(("rows", "d_ff"), [pytest.param(24, 16, marks=pytest.mark.long), pytest.param(1, 900, marks=pytest.mark.long)])
def test_many_layers_and_rows_are_extrapolated_exactly(rows: int, d_ff: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows and wide layers need most memory at the end of the backward pass, many rows and narrow layers at its start."""
    config = DecoderConfig(d_model=16, n_heads=2, n_layers=11, d_ff=d_ff, vocab_size=50, max_seq_len=16)
    shape = BatchShape(rows, 0, 16)
    real = measure_step(build_model(config).train(), build_batch(config, shape), torch.float32, shape)
    assert simulate_step(config, shape, torch.float32) == real
    monkeypatch.setattr(simulated_step, "MAX_SIMULATED_LOGITS", 50 * 16 * 8)
    simulate_step.cache_clear()
    assert simulate_step(config, shape, torch.float32) == real
    simulate_step.cache_clear()


@pytest.mark.long
def test_rows_with_few_labels_are_extrapolated_from_enough_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss kernel's buffers are full before rows are extrapolated, although only a fraction of the tokens has logits."""
    config = MaskedLMConfig(d_model=16, n_heads=2, n_layers=1, d_ff=16, vocab_size=30_000, max_seq_len=128)
    shape = BatchShape(400, 128, 0, 0.15)
    extrapolated = simulated_step._simulate(config, shape, torch.float32)
    monkeypatch.setattr(simulated_step, "MAX_SIMULATED_LOGITS", 1 << 40)
    assert extrapolated.peak == pytest.approx(simulated_step._simulate(config, shape, torch.float32).peak, rel=0.02)


@pytest.mark.long
def test_micro_batches_keep_the_gradients() -> None:
    config = DecoderConfig(d_model=16, n_heads=2, n_layers=2, d_ff=900, vocab_size=50, max_seq_len=16)
    once, twice = (simulate_step(config, BatchShape(4, 0, 16, n_micro_batches=n), torch.float32) for n in (1, 2))
    assert once is not None and twice is not None
    assert twice.peak > once.peak and twice.saved == once.saved


@pytest.mark.kernels
def test_saved_attention_weights_by_hand() -> None:
    """Without dropout a head of a short row saves one weight per pair of tokens: b h n^2 numbers, so twice the tokens save four times."""
    fields = {"d_model": 8, "n_heads": 4, "n_layers": 1, "d_ff": 8, "vocab_size": 9, "max_seq_len": 512, "dropout": 0.0}
    saved = [simulate_step(DecoderConfig.model_validate(fields), BatchShape(2, 0, n, 1.0), torch.float32) for n in (128, 256, 512)]
    sizes = [each.saved for each in saved if each is not None]
    assert sizes[2] - 3 * sizes[1] + 2 * sizes[0] == 2 * 4 * 4 * 6 * 128**2  # of a n^2 + b n + c it leaves 6 a 128^2, a = 4 b h bytes


def test_freed_tensors_are_no_longer_counted() -> None:
    with follow_memory() as live:
        a = torch.ones(100)
        b = a.view(10, 10) + 1
        assert live.current == 800
        del a
        assert (live.current, live.peak, live.largest) == (400, 800, 400)
        assert float(b.sum()) == 200


def test_a_pytorch_without_fake_tensors_predicts_no_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_memory, "_fake_tensors", lambda: None)
    config = DecoderConfig(d_model=16, n_heads=2, n_layers=1, d_ff=16, vocab_size=50, max_seq_len=17)
    assert simulate_step(config, BatchShape(1, 0, 17), torch.float32) is None
