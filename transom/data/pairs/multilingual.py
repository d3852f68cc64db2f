"""Multilingual training batches, in which temperature sampling raises the share of languages with little data."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from transom.data.batch import Indices
from transom.data.pairs.loader import PairLoader, batches_from, first_epoch_padding_waste
from transom.data.sampler import epoch_subset, temperature_sampled_sizes


class MultilingualLoader:
    """Loader of endless training batches that mix sentence pairs of several target languages, resumable at any position.

    A position is the number of samples of all languages read since the start of training. The position is the whole state of the loader.
    A sample index is an index into the concatenated pairs of all languages.

    Attributes:
        loaders: loader of each target language, by the language's tag.
        samples_per_epoch: number of samples per epoch of each target language, by the language's tag.
        n_samples: number of samples per epoch over all languages.
        padding_waste: fraction of padding among the source and target tokens of the first epoch.
    """

    def __init__(self, loaders: Mapping[str, PairLoader], temperature: float) -> None:
        """Set the number of samples per epoch of each language.

        Args:
            loaders: loader of each target language, by the language's tag. All loaders must have the same batch options.
            temperature: sampling temperature; see ``sampler.temperature_sampled_sizes``.
        """
        self.loaders = dict(loaders)
        sizes = [loader.n_samples for loader in loaders.values()]
        self.samples_per_epoch = dict(zip(loaders, temperature_sampled_sizes(sizes, temperature), strict=True))
        self.n_samples = sum(self.samples_per_epoch.values())
        self._starts = np.cumsum([0, *sizes[:-1]]).tolist()
        self._seed = next(iter(loaders.values())).batch_options.seed
        self.padding_waste = first_epoch_padding_waste(list(self.loaders.values()), self._chosen(0))

    def batches_from(self, position: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield batches endlessly, starting at a position; see ``PairLoader.batches_from``."""
        return batches_from(position, list(self.loaders.values()), self.n_samples, self._chosen)

    def describe_sample(self, sample: int) -> str:
        """Return the language tag and the line number of a pair as text, for messages."""
        for tag, loader in self.loaders.items():
            if sample < len(loader.pairs):
                return f"{tag} {loader.describe_sample(sample)}"
            sample -= len(loader.pairs)
        raise AssertionError("no such sample")

    def _chosen(self, epoch: int) -> Indices:
        """Return the samples of an epoch, as indices into the concatenated kept samples of all languages."""
        parts = zip(self.loaders.values(), self.samples_per_epoch.values(), self._starts, strict=True)
        return np.concatenate(
            [start + epoch_subset(loader.n_samples, count, epoch, self._seed, n) for n, (loader, count, start) in enumerate(parts)]
        )
