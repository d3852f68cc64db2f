"""Batches of samples: their order a pure function of (seed, epoch), so that one integer is the loader's whole state."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transom.data.batch import Indices, cut_batches

Noise = NDArray[np.float64]


class Slicing(NamedTuple):
    """What a process takes of every batch, and in how many slices.

    Attributes:
        accumulate: slices of a batch.
        shard: number of the process, from 0, of those that share every batch.
        n_shards: how many there are.
    """

    accumulate: int = 1
    shard: int = 0
    n_shards: int = 1

    def of(self, batch: Indices) -> list[Indices]:
        """Give the slices of a batch of samples, none of them empty."""
        rows = batch[self.shard :: self.n_shards]
        return np.array_split(rows, min(self.accumulate, len(rows))) if len(rows) else []


WHOLE = Slicing()
"""All of a batch, in one."""


def walk(position: int, n: int, plan: Callable[[int], Sequence[Indices]]) -> Iterator[tuple[int, int, Indices]]:
    """Go through batches without end, epoch after epoch; from a position inside a batch, the rest of that batch comes first.

    Args:
        position: samples read since the start of training.
        n: samples an epoch.
        plan: gives the batches of an epoch, which together hold each sample once.

    Yields:
        The position behind a batch, its epoch, and its samples.
    """
    while True:
        epoch = position // n
        end = epoch * n
        for batch in plan(epoch):
            start, end = end, end + len(batch)
            if end > position:
                yield end, epoch, batch[max(position - start, 0) :]
        position = end


def plan_epoch(source_lengths: Indices, target_lengths: Indices, *, batch_tokens: int, seed: int, epoch: int) -> list[Indices]:
    """Lay every sample in one batch of samples of like length, and order the batches at random.

    Samples are sorted by their longer side and, among equals, by the difference of both sides, up and down in turn from one length to the
    next, so that neighbours are alike on both sides; noise of two tokens on the difference and random ties make each epoch's batches new.

    Args:
        source_lengths: tokens of each sample's source, special symbols included.
        target_lengths: likewise of its target.
        batch_tokens: most tokens of a batch on its longer side, padding included; no sample is longer.
        seed: of the order.
        epoch: number of the pass over the data, from 0.

    Returns:
        The samples of each batch.
    """
    longer = np.maximum(source_lengths, target_lengths)
    assert longer.max(initial=0) <= batch_tokens
    noise, ties = draws(len(longer), seed, epoch)
    difference = source_lengths - target_lengths + 2 * noise
    batches = list(cut_batches(np.lexsort((ties, np.where(longer % 2, difference, -difference), longer)), longer, batch_tokens))
    order = np.argsort(draws(len(batches), seed, epoch)[1], kind="stable")
    return [batches[number] for number in order]


def padding_waste(plan: Sequence[Indices], *sides: Indices) -> float:
    """Return the share of padding in a plan's batches.

    Args:
        plan: the samples of each batch.
        sides: each side's lengths in tokens.
    """
    laid_out = sum(int(lengths[batch].max()) * len(batch) for batch in plan for lengths in sides)
    return 1 - sum(int(lengths[batch].sum()) for batch in plan for lengths in sides) / laid_out


def draws(n: int, *key: int) -> Noise:
    """Draw two rows of n numbers from [0, 1) for a key such as (seed, epoch).

    They come from the bit generator alone, whose stream is the same in every version of numpy.
    """
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(2 * n)
    return np.asarray(bits * 2.0**-64, np.float64).reshape(2, n)


def tempered(sizes: Sequence[int], temperature: float) -> list[int]:
    """Share an epoch among languages: as many samples as there are in all, in proportion to size^(1 / temperature).

    p_l ~ (D_l / sum_k D_k)^(1/T) (Arivazhagan et al. 2019): T = 1 takes all as they are, T without end the same of each.
    Each has one sample at least.

    >>> tempered([900, 100], 1), tempered([900, 100], 2), tempered([900, 100], 1e9)
    ([900, 100], [750, 250], [500, 500])
    """
    weights = np.array(sizes, np.float64) ** (1 / temperature)
    exact = sum(sizes) * weights / weights.sum()
    counts = np.floor(exact).astype(np.int64)
    missing = sum(sizes) - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return [max(1, count) for count in counts.tolist()]


def taken(n: int, count: int, epoch: int, *key: int) -> Indices:
    """Choose which of n samples an epoch takes: the next ``count`` of passes over all of them, each in an order of its own.

    So all are taken equally often, but for one time more or less, and any epoch's choice is known without those before it.

    Args:
        n: samples there are.
        count: samples an epoch; all of them once where it is n.
        epoch: its number, from 0.
        key: whole numbers such as seed and language.

    Returns:
        The samples in ascending order.
    """
    if count == n:
        return np.arange(n)
    first, last = epoch * count // n, ((epoch + 1) * count - 1) // n
    passes = np.concatenate([np.argsort(draws(n, *key, number)[0], kind="stable") for number in range(first, last + 1)])
    start = epoch * count - first * n
    return np.sort(passes[start : start + count])
