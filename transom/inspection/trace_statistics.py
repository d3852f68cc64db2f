"""Running statistics of quantities over many batches, of which none is kept."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transom.config.vision import ImageClassifierConfig
from transom.inspection.activations import sequences_of
from transom.inspection.trace import Trace, trace


class Statistics(NamedTuple):
    """Statistics of a quantity in float64, one value per index of the axes that are kept.

    Attributes:
        axes: names of the axes that are kept.
        n: number of values from which each statistic is computed.
        mean: mean.
        std: population standard deviation.
        min: smallest value.
        max: largest value.
    """

    axes: tuple[str, ...]
    n: int
    mean: Tensor
    std: Tensor
    min: Tensor
    max: Tensor


def trace_statistics(
    model: Any, batches: Iterable[Any], names: Sequence[str], *, keep: Sequence[str] = (), **options: Any
) -> dict[str, Statistics]:
    """Trace batches one after another, and return the statistics of each quantity over texts and positions.

    Padding is left out along the axis ``query``. Values that are not finite, such as masked scores, are left out too, and lower ``n``; with
    axes to keep, all values must be finite.

    Args:
        model: a run or model, as for ``trace``.
        batches: batches or tensors, one pass each.
        names: names of quantities.
        keep: axes along which statistics are kept apart, such as ``n_heads`` or ``d_model``.
        **options: further arguments of ``trace``.
    """
    found = dict[str, Statistics]()
    for batch in batches:
        _, traced = trace(model, batch, names, **options)
        for address in traced:
            values, kept = _flatten(traced, address, keep)
            if values.shape[0]:
                found[address] = _merge(found.get(address), values.double(), kept)
    return found


def _flatten(traced: Trace, address: str, keep: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return the values as (n, kept axes), and the names of these axes."""
    x = traced[address]
    axes = traced.axes(address, x.ndim)
    if "query" in axes and traced.positions is None and not isinstance(traced.activations.model.config, ImageClassifierConfig):
        outputs = "decoder" if hasattr(traced.activations.model, "decoder") else "encoder"
        segments = sequences_of(traced.activations, address if "." in address else outputs).segments
        if segments.shape == (x.shape[0], x.shape[axes.index("query")]):
            x = x.movedim(axes.index("query"), 1)[segments > 0]  # (tokens, other axes)
            axes = ["tokens", *(axis for axis in axes[1:] if axis != "query")]
    kept = [axis for axis in axes if axis in keep]
    x = x.permute(*(i for i, axis in enumerate(axes) if axis not in keep), *(axes.index(axis) for axis in kept))
    x = x.reshape(-1, *x.shape[x.ndim - len(kept) :])
    return x if kept else x[x.isfinite()], tuple(kept)


def _merge(before: Statistics | None, x: Tensor, kept: tuple[str, ...]) -> Statistics:
    """Add values to statistics (Chan et al. 1979, eq. 2.1)."""
    n, mean, square = len(x), x.mean(0), x.var(0, correction=0) * len(x)
    low, high = x.amin(0), x.amax(0)
    if before is not None:
        total, delta = before.n + n, mean - before.mean
        square = square + before.std.square() * before.n + delta.square() * before.n * n / total
        mean = before.mean + delta * n / total
        low, high, n = torch.minimum(before.min, low), torch.maximum(before.max, high), total
    return Statistics(kept, n, mean, (square / n).sqrt(), low, high)
