"""Running statistics of quantities over many batches, of which none is kept."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transom.config.vision import ImageClassifierConfig
from transom.errors import ConfigError
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

    Padding is left out along the axes ``query`` and ``key`` of quantities without the other of the two. Values that are not finite, such as
    masked scores, are left out too, and lower ``n``; with axes to keep, all values must be finite.

    Args:
        model: a run or model, as for ``trace``.
        batches: batches or tensors, one pass each.
        names: names of quantities.
        keep: axes along which statistics are kept apart, such as ``n_heads`` or ``d_model``.
        **options: further arguments of ``trace``, but no positions.

    Raises:
        ConfigError: a quantity has values that are not finite, and axes are kept; or ``positions`` are given.
    """
    if "positions" in options:
        raise ConfigError("positions: expected none for statistics, which are over all tokens, found some; leave them out")
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
    tokens = [axis for axis in ("query", "key") if axis in axes]
    if tokens:
        mask = _token_mask(traced, address, tokens[0])
        if mask is not None and mask.shape == (x.shape[0], x.shape[axes.index(tokens[0])]):
            x = x.movedim(axes.index(tokens[0]), 1)[mask]  # (tokens, other axes)
            axes = ["tokens", *(axis for axis in axes[1:] if axis != tokens[0])]
    kept = [axis for axis in axes if axis in keep]
    if kept and not bool(x.isfinite().all()):
        raise ConfigError(f"{address}: expected finite values with axes to keep, found others; leave out keep")
    x = x.permute(*(i for i, axis in enumerate(axes) if axis not in keep), *(axes.index(axis) for axis in kept))
    x = x.reshape(-1, *x.shape[x.ndim - len(kept) :])
    return x if kept else x[x.isfinite()], tuple(kept)


def _token_mask(traced: Trace, address: str, axis: str) -> Tensor | None:
    """Return True at the tokens along an axis of a quantity, False at padding; None for images."""
    a = traced.activations
    if isinstance(a.model.config, ImageClassifierConfig):
        return None
    owner = address if "." in address else "decoder" if hasattr(a.model, "decoder") else "encoder"
    if axis == "key" and ".cross." in address:
        owner = "encoder"
    return sequences_of(a, owner).segments > 0


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
