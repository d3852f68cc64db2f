"""The order of samples and batches: a pure function of (seed, epoch), so that one integer is a loader's whole state."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transom.data.batch import Indices, batch_by_tokens

Uniforms = NDArray[np.float64]


class MicroBatching(NamedTuple):
    """The split of every batch over data-parallel processes and gradient accumulation steps.

    Attributes:
        grad_accum_steps: micro-batches per batch and process.
        rank: index of this process, from 0.
        world_size: number of data-parallel processes.
    """

    grad_accum_steps: int = 1
    rank: int = 0
    world_size: int = 1

    def split(self, batch: Indices) -> list[Indices]:
        """Return this rank's micro-batches of a batch; none is empty, so a small batch has fewer than ``grad_accum_steps``."""
        rows = batch[self.rank :: self.world_size]
        return np.array_split(rows, min(self.grad_accum_steps, len(rows))) if len(rows) else []


FULL_BATCH = MicroBatching()
"""The whole batch as one micro-batch."""


def iterate_epochs(position: int, n: int, plan: Callable[[int], Sequence[Indices]]) -> Iterator[tuple[int, int, Indices]]:
    """Iterate over batches endlessly, epoch after epoch; from a position inside a batch, the rest of that batch comes first.

    Args:
        position: number of samples read since the start of training.
        n: samples per epoch.
        plan: returns the batches of an epoch, which together contain each sample once.

    Yields:
        The position after a batch, its epoch, and its sample indices.
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
    """Group samples of similar length into batches and shuffle the batches.

    Samples are sorted by their longer side, then by the difference between both sides. The direction of the second sort alternates from one
    length to the next, so that neighbors are similar on both sides. Noise of two tokens on the difference, and random ties, give each epoch
    different batches.

    Args:
        source_lengths: number of source tokens of each sample, special tokens included.
        target_lengths: number of target tokens of each sample, likewise.
        batch_tokens: maximum number of tokens per batch on its longer side, padding included; no sample is longer.
        seed: random seed of the order.
        epoch: index of the epoch, from 0.

    Returns:
        The sample indices of each batch.
    """
    longer = np.maximum(source_lengths, target_lengths)
    assert longer.max(initial=0) <= batch_tokens
    noise, ties = stateless_uniform(len(longer), seed, epoch)
    difference = source_lengths - target_lengths + 2 * noise
    batches = list(batch_by_tokens(np.lexsort((ties, np.where(longer % 2, difference, -difference), longer)), longer, batch_tokens))
    order = np.argsort(stateless_uniform(len(batches), seed, epoch)[1], kind="stable")
    return [batches[number] for number in order]


def padding_waste(plan: Sequence[Indices], *sides: Indices) -> float:
    """Return the fraction of padding among the tokens of all batches.

    Args:
        plan: the sample indices of each batch.
        sides: the lengths of all samples in tokens, per side.
    """
    laid_out = sum(int(lengths[batch].max()) * len(batch) for batch in plan for lengths in sides)
    return 1 - sum(int(lengths[batch].sum()) for batch in plan for lengths in sides) / laid_out


def stateless_uniform(n: int, *key: int) -> Uniforms:
    """Return a (2, n) array of uniform numbers from [0, 1), determined by a key such as (seed, epoch).

    Only numpy's bit generator is used, because its stream is the same in every version of numpy.
    """
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(2 * n)
    return np.asarray(bits * 2.0**-64, np.float64).reshape(2, n)


def temperature_sampled_sizes(sizes: Sequence[int], temperature: float) -> list[int]:
    """Return the samples per epoch of each language under temperature sampling; their sum is the total number of samples.

    p_l ~ (D_l / sum_k D_k)^(1/T) (Arivazhagan et al. 2019): T = 1 is proportional to size, T -> infinity is uniform over languages. Each
    language has at least one sample.

    >>> temperature_sampled_sizes([900, 100], 1), temperature_sampled_sizes([900, 100], 2), temperature_sampled_sizes([900, 100], 1e9)
    ([900, 100], [750, 250], [500, 500])
    """
    weights = np.array(sizes, np.float64) ** (1 / temperature)
    exact = sum(sizes) * weights / weights.sum()
    counts = np.floor(exact).astype(np.int64)
    missing = sum(sizes) - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return [max(1, count) for count in counts.tolist()]


def epoch_subset(n: int, count: int, epoch: int, *key: int) -> Indices:
    """Return the samples that an epoch uses: the next ``count`` samples of a sequence of shuffled passes over all n.

    All samples are used equally often, up to one. The result depends on the epoch's index only, not on earlier epochs.

    Args:
        n: number of samples in the data set.
        count: samples per epoch; with count = n every epoch uses each sample once.
        epoch: index of the epoch, from 0.
        key: integers such as seed and language index.

    Returns:
        The sample indices in ascending order.
    """
    if count == n:
        return np.arange(n)
    first, last = epoch * count // n, ((epoch + 1) * count - 1) // n
    passes = np.concatenate([np.argsort(stateless_uniform(n, *key, number)[0], kind="stable") for number in range(first, last + 1)])
    start = epoch * count - first * n
    return np.sort(passes[start : start + count])
