"""The order of samples: a pure function of (seed, epoch, index), so that one integer is the loader's whole state."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from transom.errors import DataError

Indices = NDArray[np.int64]

BATCHES_AN_EPOCH = 1 << 32
"""Room for batch numbers in a position: position = epoch * BATCHES_AN_EPOCH + batch."""


class Sampler:
    """Batches of samples of like length, by token count, in an order that depends on (seed, epoch) alone."""

    def __init__(self, batch_tokens: int, seed: int, shard: int = 0, n_shards: int = 1) -> None:
        """Plan batches.

        Args:
            batch_tokens: most tokens of a whole batch on its longer side, padding included, over all shards.
            seed: of the order.
            shard: the slice of every batch that this process takes, from 0.
            n_shards: how many slices there are.
        """
        self.batch_tokens, self.seed, self.shard, self.n_shards = batch_tokens, seed, shard, n_shards

    def epoch(self, epoch: int, source_lengths: Sequence[int], target_lengths: Sequence[int]) -> list[Indices]:
        """Return the epoch's batches, every sample in exactly one.

        Samples are sorted by their longer side, ties and near-ties in random order, cut into batches, and the batches shuffled.

        Args:
            epoch: number of the pass over the data, from 0.
            source_lengths: tokens of each sample's source, special symbols included.
            target_lengths: likewise of its target.

        Raises:
            DataError: a sample is longer than a batch.
        """
        source, target = np.asarray(source_lengths), np.asarray(target_lengths)
        longer = np.maximum(source, target)
        if longer.max(initial=0) > self.batch_tokens:
            worst = int(longer.argmax())
            raise DataError(
                f"expected samples of at most training.batch_tokens = {self.batch_tokens} tokens, found {longer[worst]} in sample {worst + 1};"
                " raise training.batch_tokens or lower model.max_seq_len"
            )
        random = np.random.default_rng([self.seed, epoch])
        noise = random.random(len(longer))
        order = np.lexsort((source + target + 2 * noise, longer + noise // 0.5))
        batches = list(_cut(order, longer, self.batch_tokens))
        random.shuffle(batches)
        return [batch[self.shard :: self.n_shards] for batch in batches]


def _cut(order: Indices, lengths: Indices, batch_tokens: int) -> Iterator[Indices]:
    """Cut a sorted order into runs whose number times longest sample is at most ``batch_tokens``."""
    start, longest = 0, 0
    for end, sample in enumerate(order):
        longest = max(longest, int(lengths[sample]))
        if longest * (end + 1 - start) > batch_tokens:
            yield order[start:end]
            start, longest = end, int(lengths[sample])
    if start < len(order):
        yield order[start:]
