"""The pair loader: filters, positions, micro-batches, ranks and BPE-dropout."""

from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transom.config.data import PairTokenizerConfig as TokenizerConfig
from transom.data.batch import TranslationBatch
from transom.data.pairs.loader import PairLoader, length_sorted_batches
from transom.data.pairs.pairs import Pairs
from transom.data.sampler import FULL_BATCH, MicroBatching
from transom.data.tokenizer.special_tokens import EOS, PAD, SOS
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.errors import ConfigError, DataError

WORDS = "a dog cat sees the big small red house near some trees".split()  # noqa: SIM905


def made(n: int) -> Pairs:
    source = [" ".join(WORDS[(i * k) % 12] for k in range(1, 2 + i % 9)) for i in range(n)]
    return Pairs(source, [f"{text} {WORDS[i % 12]}".upper() for i, text in enumerate(source)], "made")


PAIRS = made(50)
BPE = Tokenizers.train(PAIRS, TokenizerConfig(vocab_size=320))
WHITE = Tokenizers.train(PAIRS, TokenizerConfig(kind="whitespace", vocab_size=100, joint=False))
Row = tuple[int, tuple[int, ...], tuple[int, ...]]


def loader(
    pairs: Pairs = PAIRS, tokenizers: Tokenizers = BPE, *, dropout: float = 0.0, micro_batching: MicroBatching = FULL_BATCH
) -> PairLoader:
    return PairLoader(pairs, tokenizers, max_seq_len=60, batch_tokens=120, seed=3, dropout=dropout, micro_batching=micro_batching)


def rows(micro_batches: list[TranslationBatch]) -> list[Row]:
    """Return the sample, the source tokens and the label tokens of each row, and check the layout."""
    found = []
    for batch in micro_batches:
        assert (batch.decoder_input.tokens[:, 0] == SOS).all()
        assert (batch.labels != PAD).sum() == batch.n_target_tokens == batch.decoder_input.segments.sum()
        for i, sample in enumerate(batch.sample_ids):
            source = batch.source.tokens[i, : batch.source.lengths[i]].tolist()
            labels = batch.labels[i, : batch.decoder_input.lengths[i]].tolist()
            assert batch.decoder_input.tokens[i, : batch.decoder_input.lengths[i]].tolist() == [SOS, *labels[:-1]]
            assert source[-1] == labels[-1] == EOS
            found.append((sample, tuple(source), tuple(labels)))
    return found


def epoch_of(made_loader: PairLoader, epoch: int) -> list[tuple[int, list[Row]]]:
    start, batches = epoch * made_loader.n_samples, []
    for position, micro_batches in made_loader.batches_from(start):
        batches.append((position, rows(micro_batches)))
        if position == start + made_loader.n_samples:
            return batches
        assert position < start + made_loader.n_samples
    raise AssertionError


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_an_epoch_holds_every_pair_once(dropout: float, epoch: int) -> None:
    batches = epoch_of(loader(dropout=dropout), epoch)
    found = [row for _, batch in batches for row in batch]
    assert sorted(sample for sample, _, _ in found) == list(range(50))
    for sample, source, labels in found:
        assert BPE.source.decode(source) == PAIRS.source[sample]
        assert BPE.target.decode(labels) == PAIRS.target[sample]
    for _, batch in batches:
        assert len(batch) * max(len(side) for row in batch for side in row[1:]) <= 120


def read(dropout: float, position: int, n_batches: int) -> list[Row]:
    return [row for _, micro_batches in islice(loader(dropout=dropout).batches_from(position), n_batches) for row in rows(micro_batches)]


FULL_BATCH = {dropout: read(dropout, 0, 45) for dropout in (0.0, 0.2)}


@settings(max_examples=40)
@given(st.integers(0, 110), st.sampled_from([0.0, 0.2]))
def test_any_position_gives_the_same_remainder(position: int, dropout: float) -> None:
    rest = read(dropout, position, 8)
    assert FULL_BATCH[dropout][position : position + len(rest)] == rest


def test_positions_count_samples() -> None:
    one = loader()
    position = 0
    for after, micro_batches in islice(one.batches_from(0), 40):
        assert after == position + len(rows(micro_batches))
        position = after


@pytest.mark.parametrize("world_size", [1, 2, 3, 20])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_shards_share_each_batch(world_size: int, dropout: float) -> None:
    whole = epoch_of(loader(dropout=dropout), 1)
    shards = [epoch_of(loader(dropout=dropout, micro_batching=MicroBatching(1, i, world_size)), 1) for i in range(world_size)]
    for (position, batch), *parts in zip(whole, *shards, strict=True):
        assert {after for after, _ in parts} == {position}
        assert sorted(batch) == sorted(row for _, part in parts for row in part)
        sizes = [len(part) for _, part in parts]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("grad_accum_steps", [2, 4, 1000])
def test_slices_hold_the_same_samples(grad_accum_steps: int) -> None:
    for (position, whole), (after, parts) in islice(
        zip(loader().batches_from(0), loader(micro_batching=MicroBatching(grad_accum_steps)).batches_from(0), strict=False), 20
    ):
        assert position == after
        assert rows(whole) == rows(parts)
        sizes = [len(part.sample_ids) for part in parts]
        assert len(sizes) == min(grad_accum_steps, len(whole[0].sample_ids)) and max(sizes) - min(sizes) <= 1 and min(sizes) > 0


def test_dropout_changes_segmentation_from_epoch_to_epoch() -> None:
    epochs = [{row[0]: row[1:] for _, batch in epoch_of(loader(dropout=0.3), epoch) for row in batch} for epoch in (0, 1, 0)]
    plain = {row[0]: row[1:] for _, batch in epoch_of(loader(), 0) for row in batch}
    assert epochs[0] == epochs[2]
    assert all(sum(other[i] != epochs[0][i] for i in range(50)) > 25 for other in (epochs[1], plain))
    assert sum(s == t for s, t in epochs[0].values()) == 0


def test_sides_and_samples_draw_apart() -> None:
    same = Pairs(["the big red house near some small trees"] * 20, ["the big red house near some small trees"] * 20, "same")
    found = [
        row for _, batch in epoch_of(loader(same, Tokenizers.train(same, TokenizerConfig(vocab_size=320)), dropout=0.3), 0) for row in batch
    ]
    assert len({row[1] for row in found} | {row[2] for row in found}) > 30


def test_what_grew_too_long_by_dropout_is_whole() -> None:
    longest = max(len(BPE.source.encode(text)) for text in PAIRS.source + PAIRS.target)
    tight = PairLoader(PAIRS, BPE, max_seq_len=longest + 1, batch_tokens=120, seed=3, dropout=0.6)
    assert tight.n_samples == 50
    found = [row for _, batch in epoch_of(tight, 0) for row in batch]
    assert max(len(side) for row in found for side in row[1:]) == longest + 1
    small = PairLoader(PAIRS, BPE, max_seq_len=60, batch_tokens=longest + 1, seed=3, dropout=0.6)
    assert sorted(row[0] for _, batch in epoch_of(small, 0) for row in batch) == list(range(50))


def test_what_cannot_be_trained_on_is_dropped_by_name() -> None:
    source = ["a dog", "", "a", "a", " ", "a " * 10, "dog", "\t"]
    target = ["A DOG", "A", "", "A " * 9, "A", "A", "A A A A", ""]
    odd = Pairs(source, target, "odd")
    every = Tokenizers.train(Pairs(source, target, ""), TokenizerConfig(kind="whitespace", vocab_size=100))
    made_loader = PairLoader(odd, every, max_seq_len=10, batch_tokens=100, seed=1, max_length_ratio=3)
    assert made_loader.n_dropped == {"with an empty side": 4, "longer than 10 tokens": 1, "with a length ratio above 3": 2}
    assert made_loader.dropped == {"with an empty side": [1, 2, 4, 7], "longer than 10 tokens": [5], "with a length ratio above 3": [3, 6]}
    assert made_loader.n_samples == 1
    assert [row[0] for _, batch in epoch_of(made_loader, 0) for row in batch] == [0]
    assert PairLoader(odd, every, max_seq_len=10, batch_tokens=100, seed=1).n_samples == 3
    assert PairLoader(odd, every, max_seq_len=10, batch_tokens=100, seed=1, max_length_ratio=1e308).n_samples == 3, "and no warning"
    assert made_loader.seen_tokens() == (set(every.source.encode("a dog")), set(every.target.encode("A DOG")))


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(DataError, match=r"odd: expected at least one pair to train on, found none \(2 with an empty side\);"):
        PairLoader(Pairs(["", "a"], ["A", ""], "odd"), BPE, max_seq_len=10, batch_tokens=100, seed=1)
    with pytest.raises(DataError, match="there are no pairs"):
        PairLoader(Pairs([], [], "odd"), BPE, max_seq_len=10, batch_tokens=100, seed=1)


def test_a_pair_longer_than_a_batch_is_named() -> None:
    pairs = Pairs(["a", "a dog sees the cat"], ["A", "A"], "x.en, x.de", [3, 17])
    with pytest.raises(ConfigError) as caught:
        PairLoader(pairs, WHITE, max_seq_len=10, batch_tokens=5, seed=1)
    assert str(caught.value).startswith("training.batch_tokens: expected at least 6, the tokens of x.en, x.de line 17, found 5;")
    assert PairLoader(pairs, WHITE, max_seq_len=10, batch_tokens=6, seed=1).n_samples == 2


def test_waste_is_of_the_first_epoch() -> None:
    one = loader()
    batches = [micro_batches[0] for _, micro_batches in islice(one.batches_from(0), len(epoch_of(one, 0)))]
    real = sum(int(batch.source.lengths.sum() + batch.decoder_input.lengths.sum()) for batch in batches)
    assert one.padding_waste == pytest.approx(
        1 - real / sum(batch.source.tokens.numel() + batch.decoder_input.tokens.numel() for batch in batches)
    )


def test_ordered_batches_hold_every_pair_by_length() -> None:
    batches = length_sorted_batches(PAIRS, BPE, 120, 60)
    found = [row for batch in batches for row in rows([batch])]
    assert sorted(row[0] for row in found) == list(range(50))
    longer = [max(len(row[1]), len(row[2])) for row in found]
    assert longer == sorted(longer)
    for batch in batches:
        assert len(batch.sample_ids) * max(batch.source.tokens.shape[1], batch.decoder_input.tokens.shape[1]) <= 120
    assert [len(batch.sample_ids) for batch in length_sorted_batches(PAIRS, BPE, 1, 60)] == [1] * 50


def test_ordered_batches_take_empty_sides_and_drop_or_refuse_the_long() -> None:
    pairs = Pairs(["", "a " * 9, "dog"], ["A", "A", ""], "x", [1, 5, 8])
    batches = length_sorted_batches(pairs, WHITE, 100, 9)
    assert [batch.sample_ids for batch in batches] == [(0, 2)]
    assert torch.equal(batches[0].source.tokens[0], torch.tensor([EOS, PAD]))
    assert length_sorted_batches(Pairs([], [], "x"), WHITE, 100, 9) == []
    for kept, refused in ((pairs, "refuse"), (pairs.select([1], "x"), "drop")):
        with pytest.raises(DataError, match=r"x: expected at most model.max_seq_len = 9 tokens .* found 10 in line 5; shorten"):
            length_sorted_batches(kept, WHITE, 100, 9, too_long=refused)  # type: ignore[arg-type]
