"""From pairs to batches: tokens, filters, order, slices."""

from collections import Counter
from collections.abc import Iterator, Sequence

from transom.errors import DataError
from transom.inputs.batch import TranslationBatch, translation_batch
from transom.inputs.pairs import Pairs
from transom.inputs.sampler import BATCHES_AN_EPOCH, Indices, Sampler
from transom.inputs.tokenizer import Tokenizers

Encoded = list[list[int]]


def ordered_batches(pairs: Pairs, tokenizers: Tokenizers, batch_tokens: int, max_seq_len: int) -> list[TranslationBatch]:
    """Batch all pairs by length for reading once; ``samples`` gives each row's place in ``pairs``.

    Raises:
        DataError: a pair is longer than the model reads.
    """
    sources, targets = tokenizers.source.encode_batch(pairs.source), tokenizers.target.encode_batch(pairs.target)
    longer = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
    for number, length in enumerate(longer, 1):
        if length > max_seq_len:
            raise DataError(
                f"{pairs.name}:{number}: expected at most model.max_seq_len = {max_seq_len} tokens, found {length}; shorten or remove it"
            )
    order = sorted(range(len(longer)), key=longer.__getitem__)
    batches, rows = [], []
    for sample in order:
        if rows and longer[sample] * (len(rows) + 1) > batch_tokens:
            batches.append(rows)
            rows = []
        rows.append(sample)
    return [translation_batch([sources[i] for i in rows], [targets[i] for i in rows], rows) for rows in [*batches, rows] if rows]


class Loader:
    """Training batches without end, from any position.

    Attributes:
        n_kept: pairs that are trained on.
        dropped: how many pairs are not, by reason.
        padding_waste: share of the last planned epoch's tokens, both sides, that is padding.
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
        accumulate: int = 1,
        shard: int = 0,
        n_shards: int = 1,
    ) -> None:
        """Encode the pairs and drop, by name and number, those that cannot be trained on.

        Args:
            pairs: sentence pairs.
            tokenizers: of both sides.
            max_seq_len: most tokens of a sequence, special symbols included; pairs with a longer one are dropped.
            batch_tokens: most tokens of a batch on its longer side, padding included, over all shards and slices.
            seed: of order and BPE-dropout.
            dropout: probability of skipping a merge; each epoch then has its own segmentation.
            max_length_ratio: drop pairs of which one side has this many times more tokens; None to keep them.
            accumulate: slices of a batch.
            shard: the slice of every batch that this process takes.
            n_shards: how many processes there are.

        Raises:
            DataError: no pair is left.
        """
        self._tokenizers, self._dropout, self._seed, self._accumulate = tokenizers, dropout, seed, accumulate
        self._max_seq_len = max_seq_len
        self._sampler = Sampler(batch_tokens, seed, shard, n_shards)
        sources, targets = tokenizers.source.encode_batch(pairs.source), tokenizers.target.encode_batch(pairs.target)
        reasons = [_reason(s, t, max_seq_len, max_length_ratio) for s, t in zip(sources, targets, strict=True)]
        self._kept = [i for i, reason in enumerate(reasons) if not reason]
        self.n_kept = len(self._kept)
        self.dropped = dict(Counter(reason for reason in reasons if reason))
        if not self._kept:
            why = ", ".join(f"{n} {reason}" for reason, n in self.dropped.items()) or "the file is empty"
            raise DataError(f"{pairs.name}: expected at least one pair to train on, found none ({why})")
        self._texts = [pairs.source[i] for i in self._kept], [pairs.target[i] for i in self._kept]
        self._encoded = [sources[i] for i in self._kept], [targets[i] for i in self._kept]
        self.padding_waste = 0.0

    def batches_from(self, position: int) -> Iterator[tuple[int, list[TranslationBatch]]]:
        """Yield each batch, as slices, with the position behind it: what a checkpoint stores to go on from there."""
        epoch, done = divmod(position, BATCHES_AN_EPOCH)
        while True:
            sources, targets = self._epoch(epoch)
            plan = self._sampler.epoch(epoch, [len(row) + 1 for row in sources], [len(row) + 1 for row in targets])
            self.padding_waste = _waste(plan, sources, targets)
            for number, rows in enumerate(plan[done:], done + 1):
                last = number == len(plan)
                yield (epoch + 1) * BATCHES_AN_EPOCH if last else epoch * BATCHES_AN_EPOCH + number, self._slices(rows, sources, targets)
            epoch, done = epoch + 1, 0

    def _epoch(self, epoch: int) -> tuple[Encoded, Encoded]:
        """Encode both sides as this epoch sees them; a dropped-out segmentation that grew too long falls back to the whole one."""
        if not self._dropout:
            return self._encoded
        sides = []
        for side, (tokenizer, texts, whole) in enumerate(
            zip((self._tokenizers.source, self._tokenizers.target), self._texts, self._encoded, strict=True)
        ):
            broken = tokenizer.encode_with_dropout(texts, self._dropout, (self._seed, epoch, side), self._kept)
            sides.append([b if len(b) < self._max_seq_len else w for b, w in zip(broken, whole, strict=True)])
        return sides[0], sides[1]

    def _slices(self, rows: Indices, sources: Encoded, targets: Encoded) -> list[TranslationBatch]:
        parts = [rows[i :: self._accumulate] for i in range(self._accumulate)]
        return [
            translation_batch([sources[i] for i in part], [targets[i] for i in part], [self._kept[i] for i in part])
            for part in parts
            if len(part)
        ]


def _reason(source: Sequence[int], target: Sequence[int], max_seq_len: int, max_length_ratio: float | None) -> str:
    """Say why a pair is not trained on; nothing if it is."""
    short, long = sorted((len(source), len(target)))
    if short == 0:
        return "with an empty side"
    if long + 1 > max_seq_len:
        return f"longer than {max_seq_len} tokens"
    if max_length_ratio is not None and long > max_length_ratio * short:
        return f"of a length ratio above {max_length_ratio:g}"
    return ""


def _waste(plan: Sequence[Indices], sources: Encoded, targets: Encoded) -> float:
    """Return the share of padding in the batches of a plan, over both sides."""
    real = laid_out = 0
    for rows in plan:
        for side in (sources, targets):
            lengths = [len(side[i]) + 1 for i in rows]
            real += sum(lengths)
            laid_out += max(lengths, default=0) * len(lengths)
    return 1 - real / laid_out
