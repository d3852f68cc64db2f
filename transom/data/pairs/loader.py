"""Batches of sentence pairs: tokenization, filtering, ordering and micro-batches."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from transom.data.batch import Indices, cut_batches, lengths_of, translation_batch
from transom.data.pairs.pairs import Pairs
from transom.data.sampler import WHOLE, Slicing, padding_waste, plan_epoch, walk
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.errors import ConfigError, DataError

Encoded = list["array[int]"]

_AT_ONCE = 10_000


MakeBatch = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]], Sequence[int]], Any]
"""Builds a batch from the token ids of both sides and the sample indices; as ``collate_fn`` in PyTorch."""


class Layout(NamedTuple):
    """Options for building batches.

    Attributes:
        batch_tokens: maximum number of tokens per batch on its longer side, padding included, over all ranks and micro-batches.
        seed: random seed of order and BPE-dropout.
        micro_batching: split of every batch over ranks and micro-batches.
        collate_fn: builds a batch.
    """

    batch_tokens: int
    seed: int
    slicing: Slicing
    make: MakeBatch


class Loader:
    """Endless training batches of pairs, resumable at any position.

    A position is the number of samples read since the start of training by all ranks: epoch ``position // n_samples``, sample
    ``position % n_samples`` of it. It is the whole state of the loader.

    Attributes:
        pairs: all pairs, dropped ones included.
        source_prefix: token ids before each source: the target language's tag.
        lengths: numbers of source and target tokens of all pairs, without special tokens but with the prefix.
        n_samples: number of pairs per epoch: those that were not dropped.
        dropped: indices of the dropped samples, by reason.
        max_seq_len: maximum number of tokens per sequence, special tokens included.
        padding_waste: fraction of padding among the first epoch's tokens, both sides.
        kept_samples: indices of the pairs that were not dropped.
        token_rows: token ids of both sides of these pairs, segmented without BPE-dropout.
        batch_options: options for building batches.
    """

    def __init__(
        self,
        pairs: Pairs,
        tokenizers: Tokenizers,
        *,
        max_seq_len: int,
        batch_tokens: int,
        seed: int,
        dropout: float = 0.0,
        max_length_ratio: float | None = None,
        slicing: Slicing = WHOLE,
        make: MakeBatch = translation_batch,
        prefix: Sequence[int] = (),
    ) -> None:
        """Tokenize the pairs and drop those that are unusable, recording their indices by reason.

        Args:
            pairs: sentence pairs.
            tokenizers: tokenizers of both sides.
            max_seq_len: maximum number of tokens per sequence, special tokens included; pairs with a longer side are dropped.
            batch_tokens: maximum number of tokens per batch, as in ``Layout``.
            seed: random seed of order and BPE-dropout.
            dropout: probability of skipping a merge (BPE-dropout); if positive, each epoch has its own segmentation.
            max_length_ratio: drop pairs in which one side has more than this many times the tokens of the other; None keeps them.
            micro_batching: split of every batch over ranks and micro-batches.
            collate_fn: builds a batch.
            source_prefix: token ids before each source: the target language's tag.

        Raises:
            DataError: no pair is left.
            ConfigError: a pair is longer than a batch.
        """
        self.pairs, self.prefix, self.max_seq_len = pairs, list(prefix), max_seq_len
        self.layout = Layout(batch_tokens, seed, slicing, make)
        self._tokenizers, self._dropout, self._longest = tokenizers, dropout, min(max_seq_len, batch_tokens)
        sides = encode(tokenizers.source, pairs.source, prefix), encode(tokenizers.target, pairs.target)
        self.lengths = lengths_of(sides[0]), lengths_of(sides[1])
        self.left_out = _left_out(pairs, *self.lengths, max_seq_len, max_length_ratio)
        out = {sample for samples in self.left_out.values() for sample in samples}
        self.kept = [sample for sample in range(len(pairs)) if sample not in out]
        self.n_samples = len(self.kept)
        if not self.kept:
            why = ", ".join(f"{n} {reason}" for reason, n in self.dropped.items()) or "there are no pairs"
            raise DataError(f"{pairs.name}: expected at least one pair to train on, found none ({why}); add pairs or relax the filters")
        self.whole = [sides[0][i] for i in self.kept], [sides[1][i] for i in self.kept]
        self._refuse_longer_than_a_batch()
        self.padding_waste = first_waste([self], np.arange(self.n_samples))

    @property
    def dropped(self) -> dict[str, int]:
        """Number of dropped pairs, by reason."""
        return {reason: len(samples) for reason, samples in self.left_out.items()}

    def place(self, sample: int) -> str:
        """Return a pair's line, for messages."""
        return f"line {self.pairs.line(sample)}"

    def seen(self) -> tuple[set[int], set[int]]:
        """Return the set of token ids of each side that occur in the training pairs, segmented without BPE-dropout."""
        return {token for row in self.whole[0] for token in row}, {token for row in self.whole[1] for token in row}

    def batches_from(self, position: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield the position after each batch, which a checkpoint stores, and the batch as micro-batches.

        Together the micro-batches contain this rank's rows of the batch. A rank with fewer rows than ``grad_accum_steps`` has as many
        micro-batches as rows.
        """
        return batches_from(position, [self], self.n_samples, lambda epoch: np.arange(self.n_samples))

    def rows(self, epoch: int) -> tuple[Encoded, Encoded]:
        """Return both sides' token ids for an epoch; a segmentation made too long by BPE-dropout is replaced by the regular one."""
        if not self._dropout:
            return self.whole
        sides = []
        for side, (tokenizer, texts) in enumerate(
            ((self._tokenizers.source, self.pairs.source), (self._tokenizers.target, self.pairs.target))
        ):
            key, prefix = (self.layout.seed, epoch, side), [] if side else self.prefix
            rows: Encoded = []
            for sample, whole in zip(self.kept, self.whole[side], strict=True):
                (broken,) = tokenizer.encode_with_dropout([texts[sample]], self._dropout, key, [sample])
                rows.append(array("i", [*prefix, *broken]) if len(prefix) + len(broken) < self._longest else whole)
            sides.append(rows)
        return sides[0], sides[1]

    def _refuse_longer_than_a_batch(self) -> None:
        longer = np.maximum(*map(lengths_of, self.whole)) + 1
        worst = int(longer.argmax())
        if longer[worst] > self.layout.batch_tokens:
            raise ConfigError(
                f"training.batch_tokens: expected at least {longer[worst]}, the tokens of {self.pairs.name} line"
                f" {self.pairs.line(self.kept[worst])}, found {self.layout.batch_tokens}; raise it"
                " or lower model.max_seq_len"
            )


def batches_from(position: int, loaders: Sequence[Loader], n: int, chosen: Callable[[int], Indices]) -> Iterator[tuple[int, list[Any]]]:
    """Yield batches of samples selected from several loaders; see ``Loader.batches_from``.

    Args:
        position: number of samples read since the start of training.
        loaders: loaders with the same batch options.
        n: samples per epoch.
        chosen: returns an epoch's samples, as indices into the concatenated kept samples of all loaders.
    """
    layout, sides = loaders[0].layout, loaders[0].whole
    starts = np.cumsum([0, *(len(loader.pairs) for loader in loaders[:-1])]).tolist()
    kept = [start + sample for start, loader in zip(starts, loaders, strict=True) for sample in loader.kept]

    def plan(epoch: int) -> list[Indices]:
        nonlocal sides
        sides, of_epoch = _rows(loaders, epoch), chosen(epoch)
        lengths = (lengths_of(side)[of_epoch] + 1 for side in sides)
        return [of_epoch[batch] for batch in plan_epoch(*lengths, batch_tokens=layout.batch_tokens, seed=layout.seed, epoch=epoch)]

    for end, _, batch in walk(position, n, plan):
        parts = [part.tolist() for part in layout.slicing.of(batch)]
        yield end, [layout.make([sides[0][i] for i in part], [sides[1][i] for i in part], [kept[i] for i in part]) for part in parts]


def first_waste(loaders: Sequence[Loader], chosen: Indices) -> float:
    """Return the fraction of padding in the first epoch's batches of the selected samples, segmented without BPE-dropout."""
    layout = loaders[0].layout
    lengths = [np.concatenate([lengths_of(loader.whole[side]) for loader in loaders])[chosen] + 1 for side in (0, 1)]
    return padding_waste(plan_epoch(*lengths, batch_tokens=layout.batch_tokens, seed=layout.seed, epoch=0), *lengths)


def _rows(loaders: Sequence[Loader], epoch: int) -> tuple[Encoded, Encoded]:
    """Concatenate the loaders' token ids of an epoch."""
    every = [loader.rows(epoch) for loader in loaders]
    return every[0] if len(every) == 1 else ([row for rows, _ in every for row in rows], [row for _, rows in every for row in rows])


def ordered_batches(
    pairs: Pairs,
    tokenizers: Tokenizers,
    batch_tokens: int,
    max_seq_len: int,
    too_long: Literal["drop", "refuse"] = "drop",
    make: MakeBatch = translation_batch,
    prefix: Sequence[int] = (),
) -> list[Any]:
    """Batch pairs of similar length, in order of length, for one pass such as validation.

    Args:
        pairs: sentence pairs; an empty side is encoded as the end-of-sequence token alone.
        tokenizers: tokenizers of both sides.
        batch_tokens: maximum number of tokens per batch on its longer side, padding included; a longer pair has a batch of its own.
        max_seq_len: maximum number of tokens per sequence, special tokens included.
        too_long: treatment of longer pairs; the data report lists those that are dropped.
        collate_fn: builds a batch.
        source_prefix: token ids before each source.

    Returns:
        The batches; their ``sample_ids`` are indices into ``pairs``.

    Raises:
        DataError: a pair is too long and ``too_long`` is "refuse", or no pair is left.
    """
    sources, targets = encode(tokenizers.source, pairs.source, prefix), encode(tokenizers.target, pairs.target)
    longer = np.maximum(lengths_of(sources), lengths_of(targets)) + 1
    fits = longer <= max_seq_len
    if len(pairs) and (not fits.any() or (too_long == "refuse" and not fits.all())):
        sample = int(np.argmin(fits))
        raise DataError(
            f"{pairs.name}: expected at most model.max_seq_len = {max_seq_len} tokens per sentence, special tokens included, found"
            f" {longer[sample]} in line {pairs.line(sample)}; shorten or remove it"
        )
    order = np.lexsort((lengths_of(sources), longer))
    batches = cut_batches(order[fits[order]], longer, batch_tokens)
    return [make([sources[i] for i in rows], [targets[i] for i in rows], rows) for rows in map(np.ndarray.tolist, batches)]


def encode(tokenizer: Tokenizer, texts: Sequence[str], prefix: Sequence[int] = ()) -> Encoded:
    """Return the token ids of texts as compact arrays, each with the same prefix."""
    chunks = (texts[start : start + _AT_ONCE] for start in range(0, len(texts), _AT_ONCE))
    return [array("i", [*prefix, *row]) for chunk in chunks for row in tokenizer.encode_batch(chunk)]


def _left_out(pairs: Pairs, source: Indices, target: Indices, max_seq_len: int, max_length_ratio: float | None) -> dict[str, list[int]]:
    """Return the indices of unusable pairs by the first reason that applies."""
    empty = np.array([not s.strip() or not t.strip() for s, t in zip(pairs.source, pairs.target, strict=True)], dtype=bool)
    short, long = np.minimum(source, target), np.maximum(source, target)
    reasons = {"with an empty side": empty, f"longer than {max_seq_len} tokens": long + 1 > max_seq_len}
    if max_length_ratio is not None:
        with np.errstate(over="ignore"):  # an infinite ratio drops nothing
            reasons[f"of a length ratio above {max_length_ratio:g}"] = long > max_length_ratio * short
    left_out, left = {}, np.ones(len(empty), dtype=bool)
    for reason, holds in reasons.items():
        if (samples := np.flatnonzero(holds & left)).size:
            left_out[reason] = samples.tolist()
        left &= ~holds
    return left_out
