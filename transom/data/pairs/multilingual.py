"""Multilingual training batches: temperature sampling raises the share of rare languages."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from transom.data.batch import Indices
from transom.data.pairs.loader import PairLoader, batches_from, first_epoch_padding_waste
from transom.data.sampler import epoch_subset, temperature_sampled_sizes


class MultilingualLoader:
    """Endless training batches that mix the pairs of several languages, resumable at any position.

    A position is the number of samples read since the start of training over all languages. It is the whole state of the loader. Sample
    indices run over the concatenated pairs of all languages.

    Attributes:
        loaders: the loader of each target language, by tag.
        samples_per_epoch: number of samples per epoch of each language, by tag.
        n_samples: total number of samples per epoch.
        padding_waste: fraction of padding among the first epoch's tokens, both sides.
    """

    def __init__(self, loaders: Mapping[str, PairLoader], temperature: float) -> None:
        """Mix loaders with the same batch options; see ``sampler.temperature_sampled_sizes``."""
        self.loaders = dict(loaders)
        sizes = [loader.n_samples for loader in loaders.values()]
        self.samples_per_epoch = dict(zip(loaders, temperature_sampled_sizes(sizes, temperature), strict=True))
        self.n_samples = sum(self.samples_per_epoch.values())
        self._starts = np.cumsum([0, *sizes[:-1]]).tolist()
        self._seed = next(iter(loaders.values())).batch_options.seed
        self.padding_waste = first_epoch_padding_waste(list(self.loaders.values()), self._chosen(0))

    def batches_from(self, position: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield the position after each batch, which a checkpoint stores, and the batch as micro-batches."""
        return batches_from(position, list(self.loaders.values()), self.n_samples, self._chosen)

    def describe_sample(self, sample: int) -> str:
        """Return a pair's language and line, for messages."""
        for tag, loader in self.loaders.items():
            if sample < len(loader.pairs):
                return f"{tag} {loader.describe_sample(sample)}"
            sample -= len(loader.pairs)
        raise AssertionError("no such sample")

    def _chosen(self, epoch: int) -> Indices:
        """Return an epoch's samples, as indices into the concatenated kept samples of all languages."""
        parts = zip(self.loaders.values(), self.samples_per_epoch.values(), self._starts, strict=True)
        return np.concatenate(
            [start + epoch_subset(loader.n_samples, count, epoch, self._seed, n) for n, (loader, count, start) in enumerate(parts)]
        )
