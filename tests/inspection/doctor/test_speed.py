"""The check of speed sees wasted time, by a clock that counts what a pass executes, and by that of the machine."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.inspection.doctor.samples import FAMILIES, HEALTHY, built, checkup_of, found_by
from transom.inspection.doctor import speed
from transom.inspection.doctor.checkup import Checkup
from transom.inspection.doctor.speed import forward_flops
from transom.models.base import Network
from transom.models.inputs import TensorBatch
from transom.planning.hardware import PeakRates

WIDE: dict[str, Any] = FAMILIES["decoder"] | {"d_model": 128, "n_heads": 2, "d_ff": 512, "max_seq_len": 64, "vocab_size": 64}


def test_wasted_time_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(WIDE)
    batch = TensorBatch(decoder_input=speed.random_batch(model, 16, 64, same_length=True).decoder_input)
    flops = forward_flops(model, batch)
    per_block = 2 * 128 * (4 * 128 + 3 * 512) + 4 * 128 * 64
    assert flops == 16 * 64 * (2 * per_block + 2 * 128 * 64) > speed.SMALL
    rates = PeakRates({torch.float32: 1e11, torch.bfloat16: 1e11}, 1e10)
    monkeypatch.setattr(speed, "measure_peak", lambda device: rates)
    monkeypatch.setattr(speed, "_gains", lambda checkup, batch, base: [])
    for share, verdict in ((0.4, "ok"), (0.04, "warning")):
        monkeypatch.setattr(speed, "best_seconds", lambda work, device, budget, share=share: work() is None or flops / (1e11 * share))
        found = found_by("speed", Checkup(model, metrics=[{"step": 1, "kind": "train", "matmul_utilization": 0.31}]))
        assert found.verdict == verdict and found.value == pytest.approx(share)
        assert f"{share:.0%} of the 100 that this machine reaches; training used 31%" in found.message


def test_settings_that_are_faster_are_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(WIDE)
    batch = speed.random_batch(model, 16, 64, same_length=True)
    monkeypatch.setattr(speed, "_seconds", lambda model, batch: 1e-3)
    found = speed._gains(Checkup(model), batch, 16 * 64 / 1e-3)
    assert any(line.startswith("batches 4 times as large are 4.0 times as fast") for line in found)
    monkeypatch.setattr(speed, "_seconds", lambda model, batch: 1e-6 * len(batch.decoder_input.tokens))
    assert not [line for line in speed._gains(Checkup(model), batch, 64 / 1e-6) if line.startswith(("batches", "bf16"))]


RATE = 1e11
"""FLOP/s of a machine whose passes reach half of it."""


def count_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock: the time of a pass is that of the FLOPs of the products that PyTorch executes in it."""

    def seconds(work: Callable[[], object], device: torch.device, budget: float) -> float:
        with FlopCounterMode(display=False) as counter:
            work()
        return counter.get_total_flops() / (RATE / 2)

    monkeypatch.setattr(speed, "best_seconds", seconds)
    monkeypatch.setattr(speed, "measure_peak", lambda device: PeakRates({torch.float32: RATE, torch.bfloat16: RATE}, 1e10))


def repeat_blocks(model: Network) -> None:
    """Let every pass compute the first block twenty times more and forget the results: the logits stay the same."""

    def repeat(block: Any, given: Any, named: Any, x: Any) -> None:
        for _ in range(20):
            block.forward(*given, **named)

    model.get_submodule("decoder.blocks.0").register_forward_hook(repeat, with_kwargs=True)


def test_a_pass_that_computes_more_than_the_model_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    count_time(monkeypatch)
    model = built(WIDE)
    found = found_by("speed", checkup_of(model))
    assert found.verdict == "ok" and found.value == pytest.approx(0.5, rel=0.1)
    repeat_blocks(model)
    found = found_by("speed", checkup_of(model))
    assert found.verdict == "warning" and found.value == pytest.approx(0.5 / 11, rel=0.15) and found.advice


def enlarged() -> dict[str, dict[str, Any]]:
    """Return the healthy models with wider layers, those that can have them."""
    sizes = {"d_model": 96, "d_ff": 384, "max_seq_len": 64, "vocab_size": 64, "source_vocab_size": 64, "target_vocab_size": 64}
    fixed = [name for name, fields in HEALTHY.items() if "'output_projection': False" in str(fields)]  # whose width follows from the heads
    return {
        name: fields | {key: size for key, size in sizes.items() if key in fields} for name, fields in HEALTHY.items() if name not in fixed
    }


@pytest.mark.soak
def test_twenty_healthy_models_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are large enough to be judged."""
    count_time(monkeypatch)
    n_large = 0
    for fields in enlarged().values():
        model = built(fields)
        found = found_by("speed", Checkup(model))
        assert found.verdict == "ok", found
        images = hasattr(model.config, "image_size")
        rows = speed.IMAGES if images else 1024 // min(getattr(model.config, "max_seq_len", 64), 64)
        n_large += forward_flops(model, speed.random_batch(model, rows, 64, same_length=True)) >= speed.SMALL
    assert n_large >= 20


def test_a_large_batch_is_not_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(WIDE)
    sizes = list[int]()
    monkeypatch.setattr(speed, "_seconds", lambda model, batch: sizes.append(len(batch.decoder_input.tokens)) or 1e-3)
    for large in (1e12, 1e3):
        monkeypatch.setattr(speed, "LARGE", large)
        speed._gains(Checkup(model), speed.random_batch(model, 16, 64, same_length=True), 16 * 64 / 1e-3)
    assert sizes.count(64) == 1


@pytest.mark.long
def test_the_clock_of_the_machine_sees_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass takes about twenty times as long; the time of its thread does not contain that of other processes."""
    monkeypatch.setattr(speed, "BUDGET", 0.02)
    monkeypatch.setattr(speed, "_gains", lambda checkup, batch, base: [])
    model = built(WIDE)
    healthy = found_by("speed", Checkup(model))
    assert healthy.value is not None and 0 < healthy.value < 2
    for _ in range(2):
        repeat_blocks(model)
    found = found_by("speed", Checkup(model))
    assert found.verdict == "warning" and found.value is not None and found.value < healthy.value / 5
