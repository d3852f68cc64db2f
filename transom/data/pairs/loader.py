"""Loading of sentence pairs: tokenization, filtering, ordering and batching."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from transom.data.batch import Indices, batch_by_tokens, sequence_lengths, translation_batch
from transom.data.pairs.pairs import Pairs
from transom.data.sampler import FULL_BATCH, MicroBatching, iterate_epochs, padding_waste, plan_epoch
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.errors import ConfigError, DataError
from transom.files.message import phrase

TokenRows = list["array[int]"]

_ENCODE_CHUNK = 10_000


CollateFn = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]], Sequence[int]], Any]
"""Function that builds a batch from source token ids, target token ids and sample indices, like ``collate_fn`` in PyTorch."""

PairCollateFn = Callable[..., Any]
"""A ``CollateFn`` that also takes the special tokens of both sides, ``source_tokens`` and ``target_tokens``."""


class BatchOptions(NamedTuple):
    """Options for building batches.

    Attributes:
        batch_tokens: maximum number of tokens on the longer side of a batch, including padding. A batch spans all ranks and micro-batches.
        seed: random seed of the order of samples and of BPE-dropout.
        micro_batching: split of each batch over ranks and micro-batches.
        collate_fn: function that builds a batch.
    """

    batch_tokens: int
    seed: int
    micro_batching: MicroBatching
    collate_fn: CollateFn


class PairLoader:
    """Loader of endless training batches of sentence pairs, resumable at any position.

    A position is the number of samples that all ranks together have read since the start of training. The position is the whole state of
    the loader. It stands for sample ``position % n_samples`` of epoch ``position // n_samples``.

    Attributes:
        pairs: all pairs, including dropped pairs.
        source_prefix: token ids prepended to each source, namely the tag of the target language.
        lengths: number of source tokens and number of target tokens of each pair in ``pairs``. Source lengths include the prefix. Other
            special tokens are excluded.
        n_samples: number of pairs per epoch, which excludes dropped pairs.
        dropped: indices of the dropped pairs, by the reason for dropping them.
        max_seq_len: maximum number of tokens per sequence, including special tokens.
        n_added: number of special tokens of a sequence.
        padding_waste: fraction of padding among the source and target tokens of the first epoch.
        kept_samples: indices of the pairs that were not dropped.
        token_rows: source and target token ids of the pairs in ``kept_samples``, segmented without BPE-dropout.
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
        collate_fn: PairCollateFn = translation_batch,
        source_prefix: Sequence[int] = (),
    ) -> None:
        """Tokenize the pairs and drop unusable pairs, whose indices are recorded by reason.

        Args:
            pairs: sentence pairs.
            tokenizers: tokenizers of source and target.
            max_seq_len: maximum number of tokens per sequence, including special tokens. Pairs with a longer side are dropped.
            batch_tokens: maximum number of tokens on the longer side of a batch, as in ``BatchOptions``.
            seed: random seed of the order of samples and of BPE-dropout.
            dropout: probability of skipping a merge (BPE-dropout). If positive, each epoch has its own segmentation.
            max_length_ratio: maximum ratio between the numbers of tokens of the longer and the shorter side. Pairs with a higher ratio are
                dropped. None disables this filter.
            micro_batching: split of each batch over ranks and micro-batches.
            collate_fn: function that builds a batch.
            source_prefix: token ids prepended to each source, namely the tag of the target language.

        Raises:
            DataError: no pair is left.
            ConfigError: a pair is longer than a batch.
        """
        self.pairs, self.source_prefix, self.max_seq_len = pairs, list(source_prefix), max_seq_len
        special = tokenizers.source.special_tokens, tokenizers.target.special_tokens
        self.batch_options = BatchOptions(batch_tokens, seed, micro_batching, _with_special_tokens(collate_fn, tokenizers))
        self.n_added = max(side.n_added for side in special)
        self._tokenizers, self._dropout, self._max_tokens = tokenizers, dropout, min(max_seq_len, batch_tokens)
        sides = encode(tokenizers.source, pairs.source, source_prefix), encode(tokenizers.target, pairs.target)
        self.lengths = sequence_lengths(sides[0]), sequence_lengths(sides[1])
        self.dropped = _find_dropped(pairs, *self.lengths, max_seq_len, self.n_added, max_length_ratio)
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
        """Number of dropped pairs, by the reason for dropping them."""
        return {reason: len(samples) for reason, samples in self.dropped.items()}

    def describe_sample(self, sample: int) -> str:
        """Return the line number of a pair as text, for messages."""
        return f"line {self.pairs.line_number(sample)}"

    def seen_tokens(self) -> tuple[set[int], set[int]]:
        """Return the sets of source and target token ids that occur in the kept pairs, segmented without BPE-dropout."""
        return {token for row in self.token_rows[0] for token in row}, {token for row in self.token_rows[1] for token in row}

    def batches_from(self, position: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield batches endlessly, starting at a position.

        Yields:
            The position after the batch, which a checkpoint stores, and this rank's part of the batch as a list of micro-batches. A rank
            with fewer rows than ``grad_accum_steps`` has one micro-batch per row.
        """
        return batches_from(position, [self], self.n_samples, lambda epoch: np.arange(self.n_samples))

    def epoch_rows(self, epoch: int) -> tuple[TokenRows, TokenRows]:
        """Return the source and target token ids of the kept pairs as they are segmented in an epoch.

        If BPE-dropout makes a text too long, its segmentation without BPE-dropout is returned instead.
        """
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
                rows.append(
                    array("i", [*source_prefix, *broken]) if len(source_prefix) + len(broken) + self.n_added <= self._max_tokens else whole
                )
            sides.append(rows)
        return sides[0], sides[1]

    def _reject_longer_than_batch(self) -> None:
        longer = np.maximum(*map(sequence_lengths, self.token_rows)) + self.n_added
        worst = int(longer.argmax())
        if longer[worst] > self.batch_options.batch_tokens:
            raise ConfigError(
                f"training.batch_tokens: expected at least {longer[worst]}, the tokens of {self.pairs.name} line"
                f" {self.pairs.line_number(self.kept_samples[worst])}, found {self.batch_options.batch_tokens}; raise it"
                " or lower model.max_seq_len"
            )


def batches_from(position: int, loaders: Sequence[PairLoader], n: int, chosen: Callable[[int], Indices]) -> Iterator[tuple[int, list[Any]]]:
    """Yield batches endlessly from several loaders; see ``PairLoader.batches_from``.

    Args:
        position: number of samples read since the start of training.
        loaders: loaders with the same batch options.
        n: number of samples per epoch.
        chosen: a function that returns the samples of an epoch, as indices into the concatenated kept samples of all loaders.
    """
    batch_options, sides, n_added = loaders[0].batch_options, loaders[0].token_rows, loaders[0].n_added
    starts = np.cumsum([0, *(len(loader.pairs) for loader in loaders[:-1])]).tolist()
    kept_samples = [start + sample for start, loader in zip(starts, loaders, strict=True) for sample in loader.kept_samples]

    def plan(epoch: int) -> list[Indices]:
        nonlocal sides
        sides, of_epoch = _rows(loaders, epoch), chosen(epoch)
        lengths = (sequence_lengths(side)[of_epoch] + n_added for side in sides)
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
    """Return the fraction of padding in the batches of the first epoch, whose texts are segmented without BPE-dropout.

    Args:
        loaders: loaders with the same batch options.
        chosen: samples of the first epoch, as indices into the concatenated kept samples of all loaders.
    """
    batch_options = loaders[0].batch_options
    lengths = [
        np.concatenate([sequence_lengths(loader.token_rows[side]) for loader in loaders])[chosen] + loaders[0].n_added for side in (0, 1)
    ]
    return padding_waste(plan_epoch(*lengths, batch_tokens=batch_options.batch_tokens, seed=batch_options.seed, epoch=0), *lengths)


def _rows(loaders: Sequence[PairLoader], epoch: int) -> tuple[TokenRows, TokenRows]:
    """Return the source and target token ids of an epoch, each concatenated over the loaders."""
    every = [loader.epoch_rows(epoch) for loader in loaders]
    return every[0] if len(every) == 1 else ([row for rows, _ in every for row in rows], [row for _, rows in every for row in rows])


def length_sorted_batches(
    pairs: Pairs,
    tokenizers: Tokenizers,
    batch_tokens: int,
    max_seq_len: int,
    too_long: Literal["drop", "refuse"] = "drop",
    collate_fn: PairCollateFn = translation_batch,
    source_prefix: Sequence[int] = (),
) -> list[Any]:
    """Sort sentence pairs by length and batch them for a single pass over the data, such as validation.

    Args:
        pairs: sentence pairs, whose sides may be empty.
        tokenizers: tokenizers of source and target.
        batch_tokens: maximum number of tokens on the longer side of a batch, including padding. A longer pair forms a batch of its own.
        max_seq_len: maximum number of tokens per sequence, including special tokens.
        too_long: treatment of pairs with a longer side: drop them or raise an error.
        collate_fn: function that builds a batch.
        source_prefix: token ids prepended to each source.

    Returns:
        The batches. Their ``sample_ids`` are indices into ``pairs``.

    Raises:
        DataError: a pair is too long and ``too_long`` is "refuse", or no pair is left.
    """
    sources, targets = encode(tokenizers.source, pairs.source, source_prefix), encode(tokenizers.target, pairs.target)
    n_added = max(tokenizers.source.special_tokens.n_added, tokenizers.target.special_tokens.n_added)
    longer, collate = (
        np.maximum(sequence_lengths(sources), sequence_lengths(targets)) + n_added,
        _with_special_tokens(collate_fn, tokenizers),
    )
    fits = longer <= max_seq_len
    if len(pairs) and (not fits.any() or (too_long == "refuse" and not fits.all())):
        sample = int(np.argmin(fits))
        raise DataError(
            f"{pairs.name}: expected at most model.max_seq_len = {max_seq_len} tokens per sentence, special tokens included, found"
            f" {longer[sample]} in line {pairs.line_number(sample)}; shorten or remove it"
        )
    order = np.lexsort((sequence_lengths(sources), longer))
    batches = batch_by_tokens(order[fits[order]], longer, batch_tokens)
    return [collate([sources[i] for i in rows], [targets[i] for i in rows], rows) for rows in map(np.ndarray.tolist, batches)]


def encode(tokenizer: Tokenizer, texts: Sequence[str], source_prefix: Sequence[int] = ()) -> TokenRows:
    """Return the token ids of each text as a compact array that starts with ``source_prefix``."""
    chunks = (texts[start : start + _ENCODE_CHUNK] for start in range(0, len(texts), _ENCODE_CHUNK))
    return [array("i", [*source_prefix, *row]) for chunk in chunks for row in tokenizer.encode_batch(chunk)]


def _with_special_tokens(collate_fn: PairCollateFn, tokenizers: Tokenizers) -> CollateFn:
    """Pass the special tokens of both sides to a function that builds a batch."""
    return partial(collate_fn, source_tokens=tokenizers.source.special_tokens, target_tokens=tokenizers.target.special_tokens)


def longer_than(max_seq_len: int) -> str:
    """Return the reason for dropping pairs with a side of too many tokens."""
    return phrase("data.reasons.longer", "longer than {most} tokens", most=str(max_seq_len))


def _find_dropped(
    pairs: Pairs, source: Indices, target: Indices, max_seq_len: int, n_added: int, max_length_ratio: float | None
) -> dict[str, list[int]]:
    """Return the indices of unusable pairs, grouped by the first reason that applies to each.

    Args:
        pairs: sentence pairs.
        source: number of source tokens of each pair.
        target: number of target tokens of each pair.
        max_seq_len: maximum number of tokens per sequence, including special tokens.
        n_added: number of special tokens per sequence.
        max_length_ratio: maximum length ratio of the two sides. None disables this filter.
    """
    empty = np.array([not s.strip() or not t.strip() for s, t in zip(pairs.source, pairs.target, strict=True)], dtype=bool)
    short, long = np.minimum(source, target), np.maximum(source, target)
    reasons: dict[str, Any] = {
        phrase("data.reasons.empty", "with an empty side"): empty,
        longer_than(max_seq_len): long + n_added > max_seq_len,
    }
    if max_length_ratio is not None:
        with np.errstate(over="ignore"):  # an infinite maximum ratio drops no pair
            ratio = phrase("data.reasons.ratio", "with a length ratio above {ratio}", ratio=f"{max_length_ratio:g}")
            reasons[ratio] = long > max_length_ratio * short
    dropped, left = {}, np.ones(len(empty), dtype=bool)
    for reason, holds in reasons.items():
        if (samples := np.flatnonzero(holds & left)).size:
            dropped[reason] = samples.tolist()
        left &= ~holds
    return dropped
