"""Order of samples and batches.

The order is a pure function of (seed, epoch). A loader's state is therefore a single integer, the number of samples read so far.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transom.data.batch import Indices, batch_by_tokens

Uniforms = NDArray[np.float64]


class MicroBatching(NamedTuple):
    """Split of each batch into the parts of processes, and of a part into micro-batches.

    Attributes:
        grad_accum_steps: number of micro-batches into which each process splits its part of a batch.
        part: index of the part of this process, from 0.
        n_parts: number of parts.
        aligned: whether micro-batch k of all parts together is micro-batch k of a single process, as a loss over the rows of a micro-batch
            requires; parts may then differ by a row per micro-batch.
    """

    grad_accum_steps: int = 1
    part: int = 0
    n_parts: int = 1
    aligned: bool = False

    def split(self, batch: Indices) -> list[Indices]:
        """Return this process's micro-batches of a batch.

        No micro-batch is empty, so a small batch is split into fewer than ``grad_accum_steps`` micro-batches.
        """
        if self.aligned:
            micro_batches = np.array_split(batch, min(self.grad_accum_steps, len(batch)))  # the first ones are the largest
            return [rows for each in micro_batches if len(rows := each[self.part :: self.n_parts])]
        rows = batch[self.part :: self.n_parts]
        return np.array_split(rows, min(self.grad_accum_steps, len(rows))) if len(rows) else []


FULL_BATCH = MicroBatching()
"""Setting for a single process without gradient accumulation, in which each batch is one micro-batch."""


def iterate_epochs(position: int, n: int, plan: Callable[[int], Sequence[Indices]]) -> Iterator[tuple[int, int, Indices]]:
    """Iterate endlessly over the batches of successive epochs, starting at a position.

    If the position lies inside a batch, the rest of this batch is yielded first.

    Args:
        position: number of samples read since the start of training.
        n: number of samples per epoch.
        plan: a function that returns the batches of an epoch. Together they contain ``n`` samples.

    Yields:
        The position after the batch, the epoch of the batch, and the sample indices of the batch.
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

    Samples are sorted by the length of their longer side, then by the difference between the lengths of both sides. The direction of the
    second sort alternates from one length to the next, so that neighboring samples are similar on both sides. To give each epoch different
    batches, random noise of up to two tokens is added to the difference, and ties are broken at random.

    Args:
        source_lengths: number of source tokens of each sample, including special tokens.
        target_lengths: number of target tokens of each sample, including special tokens.
        batch_tokens: maximum number of tokens per batch on the longer side of its samples, including padding. No sample may be longer.
        seed: random seed of the order.
        epoch: index of the epoch, starting at 0.

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
    """Return the fraction of padding among the tokens of all batches, including padding tokens.

    Args:
        plan: sample indices of each batch.
        sides: one array per side, such as source and target, with the number of tokens of each sample.
    """
    laid_out = sum(int(lengths[batch].max()) * len(batch) for batch in plan for lengths in sides)
    return 1 - sum(int(lengths[batch].sum()) for batch in plan for lengths in sides) / laid_out


def stateless_uniform(n: int, *key: int) -> Uniforms:
    """Return a (2, n) array of uniform random numbers in [0, 1) that depend only on a key such as (seed, epoch).

    The numbers are computed from the raw bits of numpy's Philox generator, which are the same in every version of numpy.
    """
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(2 * n)
    return np.asarray(bits * 2.0**-64, np.float64).reshape(2, n)


def temperature_sampled_sizes(sizes: Sequence[int], temperature: float) -> list[int]:
    """Return the number of samples per epoch of each language under temperature sampling.

    A language l with D_l samples has the probability p_l ~ (D_l / sum_k D_k)^(1/T) (Arivazhagan et al. 2019). At temperature T = 1 the
    probabilities are proportional to the sizes. For T -> infinity they become uniform over languages. An epoch has as many samples as all
    languages together, and at least one of each language.

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
    """Return the indices of the samples that an epoch uses.

    Shuffled passes over the data set follow one another, and each epoch takes the next ``count`` samples. After any number of epochs, two
    samples have therefore been used equally often, or one of them once more. The result can be computed without the earlier epochs.

    Args:
        n: number of samples in the data set.
        count: number of samples per epoch. If it equals ``n``, each epoch uses each sample once.
        epoch: index of the epoch, starting at 0.
        key: integers that determine the shuffles, such as the seed and the index of a language.

    Returns:
        The sample indices in ascending order.
    """
    if count == n:
        return np.arange(n)
    first, last = epoch * count // n, ((epoch + 1) * count - 1) // n
    passes = np.concatenate([np.argsort(stateless_uniform(n, *key, number)[0], kind="stable") for number in range(first, last + 1)])
    start = epoch * count - first * n
    return np.sort(passes[start : start + count])
