"""Multilingual training batches: temperature sampling raises the share of rare languages."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from transom.data.batch import Indices
from transom.data.pairs.loader import Loader, batches_from, first_waste
from transom.data.sampler import taken, tempered


class LanguageMixture:
    """Endless training batches that mix the pairs of several languages, resumable at any position.

    A position is the number of samples read since the start of training over all languages. It is the whole state of the loader. Sample
    indices run over the concatenated pairs of all languages.

    Attributes:
        loaders: the loader of each target language, by tag.
        samples_per_epoch: number of samples per epoch of each language, by tag.
        n_samples: total number of samples per epoch.
        padding_waste: fraction of padding among the first epoch's tokens, both sides.
    """

    def __init__(self, loaders: Mapping[str, Loader], temperature: float) -> None:
        """Mix loaders with the same batch options; see ``sampler.tempered``."""
        self.loaders = dict(loaders)
        sizes = [loader.n_samples for loader in loaders.values()]
        self.counts = dict(zip(loaders, tempered(sizes, temperature), strict=True))
        self.n_samples = sum(self.counts.values())
        self._starts = np.cumsum([0, *sizes[:-1]]).tolist()
        self._seed = next(iter(loaders.values())).layout.seed
        self.padding_waste = first_waste(list(self.loaders.values()), self._chosen(0))

    def batches_from(self, position: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield the position after each batch, which a checkpoint stores, and the batch as micro-batches."""
        return batches_from(position, list(self.loaders.values()), self.n_samples, self._chosen)

    def place(self, sample: int) -> str:
        """Return a pair's language and line, for messages."""
        for tag, loader in self.loaders.items():
            if sample < len(loader.pairs):
                return f"{tag} {loader.place(sample)}"
            sample -= len(loader.pairs)
        raise AssertionError("no such sample")

    def _chosen(self, epoch: int) -> Indices:
        """Return an epoch's samples, as indices into the concatenated kept samples of all languages."""
        parts = zip(self.loaders.values(), self.counts.values(), self._starts, strict=True)
        return np.concatenate(
            [start + taken(loader.n_samples, count, epoch, self._seed, n) for n, (loader, count, start) in enumerate(parts)]
        )
