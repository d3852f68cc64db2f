"""Batches of sentence pairs: tokenization, filtering, ordering and micro-batches."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from transom.data.batch import Indices, batch_by_tokens, sequence_lengths, translation_batch
from transom.data.pairs.pairs import Pairs
from transom.data.sampler import FULL_BATCH, MicroBatching, iterate_epochs, padding_waste, plan_epoch
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.errors import ConfigError, DataError

TokenRows = list["array[int]"]

_ENCODE_CHUNK = 10_000


CollateFn = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]], Sequence[int]], Any]
"""Builds a batch from the token ids of both sides and the sample indices; as ``collate_fn`` in PyTorch."""


class BatchOptions(NamedTuple):
    """Options for building batches.

    Attributes:
        batch_tokens: maximum number of tokens per batch on its longer side, padding included, over all ranks and micro-batches.
        seed: random seed of order and BPE-dropout.
        micro_batching: split of every batch over ranks and micro-batches.
        collate_fn: builds a batch.
    """

    batch_tokens: int
    seed: int
    micro_batching: MicroBatching
    collate_fn: CollateFn


class PairLoader:
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
        micro_batching: MicroBatching = FULL_BATCH,
        collate_fn: CollateFn = translation_batch,
        source_prefix: Sequence[int] = (),
    ) -> None:
        """Tokenize the pairs and drop those that are unusable, recording their indices by reason.

        Args:
            pairs: sentence pairs.
            tokenizers: tokenizers of both sides.
            max_seq_len: maximum number of tokens per sequence, special tokens included; pairs with a longer side are dropped.
            batch_tokens: maximum number of tokens per batch, as in ``BatchOptions``.
            seed: random seed of order and BPE-dropout.
            dropout: probability of skipping a merge (BPE-dropout); if positive, each epoch has its own segmentation.
            max_length_ratio: drop pairs in which one side has more tokens than this multiple of the other; None keeps them.
            micro_batching: split of every batch over ranks and micro-batches.
            collate_fn: builds a batch.
            source_prefix: token ids before each source: the target language's tag.

        Raises:
            DataError: no pair is left.
            ConfigError: a pair is longer than a batch.
        """
        self.pairs, self.source_prefix, self.max_seq_len = pairs, list(source_prefix), max_seq_len
        self.batch_options = BatchOptions(batch_tokens, seed, micro_batching, collate_fn)
        self._tokenizers, self._dropout, self._max_tokens = tokenizers, dropout, min(max_seq_len, batch_tokens)
        sides = encode(tokenizers.source, pairs.source, source_prefix), encode(tokenizers.target, pairs.target)
        self.lengths = sequence_lengths(sides[0]), sequence_lengths(sides[1])
        self.dropped = _find_dropped(pairs, *self.lengths, max_seq_len, max_length_ratio)
        out = {sample for samples in self.dropped.values() for sample in samples}
        self.kept_samples = [sample for sample in range(len(pairs)) if sample not in out]
        self.n_samples = len(self.kept_samples)
        if not self.kept_samples:
            why = ", ".join(f"{n} {reason}" for reason, n in self.n_dropped.items()) or "there are no pairs"
            raise DataError(f"{pairs.name}: expected at least one pair to train on, found none ({why}); add pairs or relax the filters")
        self.token_rows = [sides[0][i] for i in self.kept_samples], [sides[1][i] for i in self.kept_samples]
        self._reject_longer_than_batch()
        self.padding_waste = first_epoch_padding_waste([self], np.arange(self.n_samples))

    @property
    def n_dropped(self) -> dict[str, int]:
        """Number of dropped pairs, by reason."""
        return {reason: len(samples) for reason, samples in self.dropped.items()}

    def describe_sample(self, sample: int) -> str:
        """Return a pair's line, for messages."""
        return f"line {self.pairs.line_number(sample)}"

    def seen_tokens(self) -> tuple[set[int], set[int]]:
        """Return the set of token ids of each side that occur in the training pairs, segmented without BPE-dropout."""
        return {token for row in self.token_rows[0] for token in row}, {token for row in self.token_rows[1] for token in row}

    def batches_from(self, position: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield the position after each batch, which a checkpoint stores, and the batch as micro-batches.

        Together the micro-batches contain this rank's rows of the batch. A rank with fewer rows than ``grad_accum_steps`` has as many
        micro-batches as rows.
        """
        return batches_from(position, [self], self.n_samples, lambda epoch: np.arange(self.n_samples))

    def epoch_rows(self, epoch: int) -> tuple[TokenRows, TokenRows]:
        """Return both sides' token ids for an epoch; a segmentation made too long by BPE-dropout is replaced by the regular one."""
        if not self._dropout:
            return self.token_rows
        sides = []
        for side, (tokenizer, texts) in enumerate(
            ((self._tokenizers.source, self.pairs.source), (self._tokenizers.target, self.pairs.target))
        ):
            key, source_prefix = (self.batch_options.seed, epoch, side), [] if side else self.source_prefix
            rows: TokenRows = []
            for sample, whole in zip(self.kept_samples, self.token_rows[side], strict=True):
                (broken,) = tokenizer.encode_with_dropout([texts[sample]], self._dropout, key, [sample])
                rows.append(array("i", [*source_prefix, *broken]) if len(source_prefix) + len(broken) < self._max_tokens else whole)
            sides.append(rows)
        return sides[0], sides[1]

    def _reject_longer_than_batch(self) -> None:
        longer = np.maximum(*map(sequence_lengths, self.token_rows)) + 1
        worst = int(longer.argmax())
        if longer[worst] > self.batch_options.batch_tokens:
            raise ConfigError(
                f"training.batch_tokens: expected at least {longer[worst]}, the tokens of {self.pairs.name} line"
                f" {self.pairs.line_number(self.kept_samples[worst])}, found {self.batch_options.batch_tokens}; raise it"
                " or lower model.max_seq_len"
            )


def batches_from(position: int, loaders: Sequence[PairLoader], n: int, chosen: Callable[[int], Indices]) -> Iterator[tuple[int, list[Any]]]:
    """Yield batches of samples selected from several loaders; see ``PairLoader.batches_from``.

    Args:
        position: number of samples read since the start of training.
        loaders: loaders with the same batch options.
        n: samples per epoch.
        chosen: returns an epoch's samples, as indices into the concatenated kept samples of all loaders.
    """
    batch_options, sides = loaders[0].batch_options, loaders[0].token_rows
    starts = np.cumsum([0, *(len(loader.pairs) for loader in loaders[:-1])]).tolist()
    kept_samples = [start + sample for start, loader in zip(starts, loaders, strict=True) for sample in loader.kept_samples]

    def plan(epoch: int) -> list[Indices]:
        nonlocal sides
        sides, of_epoch = _rows(loaders, epoch), chosen(epoch)
        lengths = (sequence_lengths(side)[of_epoch] + 1 for side in sides)
        return [
            of_epoch[batch] for batch in plan_epoch(*lengths, batch_tokens=batch_options.batch_tokens, seed=batch_options.seed, epoch=epoch)
        ]

    for end, _, batch in iterate_epochs(position, n, plan):
        parts = [part.tolist() for part in batch_options.micro_batching.split(batch)]
        yield (
            end,
            [
                batch_options.collate_fn([sides[0][i] for i in part], [sides[1][i] for i in part], [kept_samples[i] for i in part])
                for part in parts
            ],
        )


def first_epoch_padding_waste(loaders: Sequence[PairLoader], chosen: Indices) -> float:
    """Return the fraction of padding in the first epoch's batches of the selected samples, segmented without BPE-dropout."""
    batch_options = loaders[0].batch_options
    lengths = [np.concatenate([sequence_lengths(loader.token_rows[side]) for loader in loaders])[chosen] + 1 for side in (0, 1)]
    return padding_waste(plan_epoch(*lengths, batch_tokens=batch_options.batch_tokens, seed=batch_options.seed, epoch=0), *lengths)


def _rows(loaders: Sequence[PairLoader], epoch: int) -> tuple[TokenRows, TokenRows]:
    """Concatenate the loaders' token ids of an epoch."""
    every = [loader.epoch_rows(epoch) for loader in loaders]
    return every[0] if len(every) == 1 else ([row for rows, _ in every for row in rows], [row for _, rows in every for row in rows])


def length_sorted_batches(
    pairs: Pairs,
    tokenizers: Tokenizers,
    batch_tokens: int,
    max_seq_len: int,
    too_long: Literal["drop", "refuse"] = "drop",
    collate_fn: CollateFn = translation_batch,
    source_prefix: Sequence[int] = (),
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
    sources, targets = encode(tokenizers.source, pairs.source, source_prefix), encode(tokenizers.target, pairs.target)
    longer = np.maximum(sequence_lengths(sources), sequence_lengths(targets)) + 1
    fits = longer <= max_seq_len
    if len(pairs) and (not fits.any() or (too_long == "refuse" and not fits.all())):
        sample = int(np.argmin(fits))
        raise DataError(
            f"{pairs.name}: expected at most model.max_seq_len = {max_seq_len} tokens per sentence, special tokens included, found"
            f" {longer[sample]} in line {pairs.line_number(sample)}; shorten or remove it"
        )
    order = np.lexsort((sequence_lengths(sources), longer))
    batches = batch_by_tokens(order[fits[order]], longer, batch_tokens)
    return [collate_fn([sources[i] for i in rows], [targets[i] for i in rows], rows) for rows in map(np.ndarray.tolist, batches)]


def encode(tokenizer: Tokenizer, texts: Sequence[str], source_prefix: Sequence[int] = ()) -> TokenRows:
    """Return the token ids of texts as compact arrays, each with the same prefix."""
    chunks = (texts[start : start + _ENCODE_CHUNK] for start in range(0, len(texts), _ENCODE_CHUNK))
    return [array("i", [*source_prefix, *row]) for chunk in chunks for row in tokenizer.encode_batch(chunk)]


def _find_dropped(pairs: Pairs, source: Indices, target: Indices, max_seq_len: int, max_length_ratio: float | None) -> dict[str, list[int]]:
    """Return the indices of unusable pairs by the first reason that applies."""
    empty = np.array([not s.strip() or not t.strip() for s, t in zip(pairs.source, pairs.target, strict=True)], dtype=bool)
    short, long = np.minimum(source, target), np.maximum(source, target)
    reasons = {"with an empty side": empty, f"longer than {max_seq_len} tokens": long + 1 > max_seq_len}
    if max_length_ratio is not None:
        with np.errstate(over="ignore"):  # an infinite ratio drops nothing
            reasons[f"of a length ratio above {max_length_ratio:g}"] = long > max_length_ratio * short
    dropped, left = {}, np.ones(len(empty), dtype=bool)
    for reason, holds in reasons.items():
        if (samples := np.flatnonzero(holds & left)).size:
            dropped[reason] = samples.tolist()
        left &= ~holds
    return dropped
