"""Training batches of pairs into several languages, rare ones more often than they are."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from transom.data.batch import Indices
from transom.data.pairs.loader import Loader, batches_from, first_waste
from transom.data.sampler import taken, tempered


class LanguageMixture:
    """Several loaders' pairs in the same batches, without end, from any position.

    A position is the number of samples read since the start of training, over all languages: the whole state. A sample's number counts
    the pairs of all languages through.

    Attributes:
        loaders: by the tag of their target language.
        counts: samples an epoch, by the same.
        n_samples: samples an epoch in all.
        padding_waste: share of the first epoch's tokens, both sides, that is padding.
    """

    def __init__(self, loaders: Mapping[str, Loader], temperature: float) -> None:
        """Mix loaders of one layout; see ``sampler.tempered``."""
        self.loaders = dict(loaders)
        sizes = [loader.n_samples for loader in loaders.values()]
        self.counts = dict(zip(loaders, tempered(sizes, temperature), strict=True))
        self.n_samples = sum(self.counts.values())
        self._starts = np.cumsum([0, *sizes[:-1]]).tolist()
        self._seed = next(iter(loaders.values())).layout.seed
        self.padding_waste = first_waste(list(self.loaders.values()), self._chosen(0))

    def batches_from(self, position: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield each batch, as slices, with the position behind it; see ``Loader.batches_from``."""
        return batches_from(position, list(self.loaders.values()), self.n_samples, self._chosen)

    def place(self, sample: int) -> str:
        """Name a pair by its language and line."""
        for tag, loader in self.loaders.items():
            if sample < len(loader.pairs):
                return f"{tag} {loader.place(sample)}"
            sample -= len(loader.pairs)
        raise AssertionError("no such sample")

    def _chosen(self, epoch: int) -> Indices:
        """Take each language's share of an epoch, counted through what is kept of all."""
        parts = zip(self.loaders.values(), self.counts.values(), self._starts, strict=True)
        return np.concatenate(
            [start + taken(loader.n_samples, count, epoch, self._seed, n) for n, (loader, count, start) in enumerate(parts)]
        )
