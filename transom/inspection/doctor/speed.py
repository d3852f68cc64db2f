"""Check of speed: the matrix products of a forward pass against the rate that this machine reaches."""

import torch

from transom.config.vision import ImageClassifierConfig
from transom.inspection.doctor.checkup import Checkup, n_rows, random_batch
from transom.inspection.doctor.finding import Finding
from transom.inspection.pages.number_format import format_compact
from transom.models.base import Network
from transom.models.inputs import TensorBatch
from transom.planning.flops import count_flops, list_passes
from transom.planning.hardware import LOW_UTILIZATION, best_seconds, describe_rate, measure_peak
from transom.planning.precision import choose_precision, choose_threads

BUDGET = 0.4
"""Seconds per measured setting."""

IMAGES = 32
"""Images per batch."""

SMALL = 2e8
"""FLOPs of a batch below which calls of operations, not products, take the time."""

LARGE = 2e10
"""FLOPs of a batch from which no larger one is tried: calls of operations are no part of its time that counts."""

GAIN = 1.25
"""Ratio of speeds from which a change is advised."""


def forward_flops(model: Network, batch: TensorBatch) -> int:
    """Count the FLOPs of a forward pass that computes all logits."""
    source, target = (0 if text is None else text.tokens.shape[1] for text in (batch.source, batch.decoder_input))
    return sum(count_flops(model.config, *each).forward for each in list_passes(model.config, n_rows(batch), source, target))


def speed(checkup: Checkup) -> Finding:
    """Measure forward passes, and compare their rate with the measured peak; try other batch sizes and dtypes."""
    model, device = checkup.model, checkup.model.device
    tokens = min(getattr(getattr(checkup.recipe, "training", None), "batch_tokens", 1024), 2048)
    length = min(getattr(model.config, "max_seq_len", 64), 64)
    rows = IMAGES if isinstance(model.config, ImageClassifierConfig) else max(tokens // length, 1)
    batch = random_batch(model, rows, length, same_length=True)
    flops, peak = forward_flops(model, batch), measure_peak(device).flops
    seconds = _seconds(model, batch)
    rate = flops / seconds
    share, unit = rate / peak[torch.float32], "images" if batch.pixels is not None else "tokens"
    n = rows if batch.pixels is not None else rows * length
    message = f"a forward pass reads {format_compact(n / seconds)} {unit}/s in fp32: {describe_rate(rate, peak[torch.float32])}"
    trained = [record["matmul_utilization"] for record in checkup.metrics if record.get("matmul_utilization") is not None]
    if trained:
        message += f"; training used {sorted(trained)[len(trained) // 2]:.0%}"
    advice = "; ".join(_gains(checkup, batch, n / seconds))
    if flops < SMALL:
        return Finding("ok", message, advice or "a larger batch or model would use the machine better", share, LOW_UTILIZATION)
    if share >= LOW_UTILIZATION:
        return Finding("ok", message, advice, share, LOW_UTILIZATION)
    return Finding("warning", message, advice or "compile the model, or use larger batches", share, LOW_UTILIZATION)


@torch.no_grad()
def _seconds(model: Network, batch: TensorBatch) -> float:
    """Return the shortest time of a forward pass."""
    return best_seconds(lambda: model(batch), model.device, BUDGET)


def _gains(checkup: Checkup, batch: TensorBatch, base: float) -> list[str]:
    """Try faster settings, and describe those that help.

    Args:
        checkup: the model.
        batch: the batch.
        base: samples or tokens per second with it.
    """
    model, found = checkup.model, list[str]()
    rows = n_rows(batch)
    text = batch.source or batch.decoder_input
    length = 1 if text is None else text.tokens.shape[1]
    wide = checkup.recipe is None or checkup.recipe.training.precision == "fp32"
    supported = wide and choose_precision("auto", model.device).dtype != torch.float32
    if supported and (gain := rows * length / _cast_seconds(checkup, batch) / base) >= GAIN:
        found.append(f"bf16 is {gain:.1f} times as fast: training.precision = 'bf16' or 'auto'")
    larger = random_batch(model, 4 * rows, length, same_length=True)
    if forward_flops(model, batch) < LARGE and (gain := 4 * rows * length / _seconds(model, larger) / base) >= GAIN:
        found.append(f"batches 4 times as large are {gain:.1f} times as fast: raise the batch size of recipe and predictions")
    if (threads := choose_threads().count) > torch.get_num_threads():
        found.append(f"{threads} threads are available, {torch.get_num_threads()} are used: set OMP_NUM_THREADS")
    return found


def _cast_seconds(checkup: Checkup, batch: TensorBatch) -> float:
    """Return the time of a forward pass of the bfloat16 copy."""
    pixels = None if batch.pixels is None else batch.pixels.bfloat16()
    return _seconds(checkup.bf16, TensorBatch(batch.source, batch.decoder_input, pixels))
