"""Windows: every token once per epoch, order determined by (seed, epoch), separate documents, and scoring each token once."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transom.config.data import TokenizerConfig
from transom.data.batch import LanguageBatch
from transom.data.sampler import MicroBatching
from transom.data.text.documents import Documents
from transom.data.text.windows import TokenStream, WindowLoader, apply_blank_noising, scoring_batches
from transom.data.tokenizer.special_tokens import EOS, PAD, UNK
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import DataError

TEXTS = ["abc", "defgh", "a", "hgfedcba", "bb"]
TOKENIZER = Tokenizer.train(TEXTS, TokenizerConfig(kind="char", vocab_size=40))


def stream(texts: list[str] = TEXTS) -> TokenStream:
    return TokenStream(Documents(texts, [f"file {i}" for i in range(len(texts))], "made"), TOKENIZER)


def loader(texts: list[str] = TEXTS, **fields: Any) -> WindowLoader:
    return WindowLoader(stream(texts), **{"max_seq_len": 4, "batch_tokens": 8, "seed": 3, **fields})


def epoch_of(made: WindowLoader, epoch: int) -> list[list[LanguageBatch]]:
    start, batches = epoch * made.n_samples, []
    for position, micro_batches in made.batches_from(start):
        batches.append(micro_batches)
        if position == start + made.n_samples:
            return batches
    raise AssertionError


def test_a_stream_sets_documents_apart_by_one_symbol() -> None:
    made = stream()
    assert made.n_tokens == sum(map(len, TEXTS)) + len(TEXTS)
    assert (made.tokens[made.document_starts] == EOS).all() and (made.tokens == EOS).sum() == len(TEXTS)
    assert made.lengths.tolist() == list(map(len, TEXTS))
    assert made.describe_token(0) == "file 0, token 0" and made.describe_token(5) == "file 1, token 1"
    with pytest.raises(DataError, match="at least one token"):
        stream([""])


@settings(max_examples=40)
@given(
    st.lists(st.text("abcdefgh", min_size=1, max_size=9), min_size=1, max_size=8), st.integers(2, 9), st.integers(1, 40), st.integers(0, 3)
)
def test_an_epoch_shows_each_token_once_but_for_the_seam(texts: list[str], length: int, batch_tokens: int, epoch: int) -> None:
    made = loader(texts, max_seq_len=length, batch_tokens=batch_tokens)
    n = made.stream.n_tokens
    seen = np.zeros(n, int)
    sizes = []
    for micro_batches in epoch_of(made, epoch):
        (batch,) = micro_batches
        sizes.append(len(batch.sample_ids))
        for row, start in enumerate(batch.sample_ids):
            places = (start + np.arange(made.window_length)) % n
            seen[places] += 1
            assert batch.decoder_input.tokens[row].tolist() == made.stream.tokens[places].tolist()
            assert batch.labels[row].tolist() == made.stream.tokens[(places + 1) % n].tolist()
    assert seen.max() == 1 and n - seen.sum() < made.window_length
    assert max(sizes) - min(sizes) <= 1 and max(sizes) <= made.windows_per_batch


def test_documents_are_segments_and_positions_count_from_their_start() -> None:
    made = loader(max_seq_len=12)
    batch = epoch_of(made, 0)[0][0]
    for row in range(len(batch.sample_ids)):
        place, segment = -1, 0
        for i, token in enumerate(batch.decoder_input.tokens[row].tolist()):
            place, segment = (0, segment + 1) if token == EOS or i == 0 else (place + 1, segment)
            assert (int(batch.decoder_input.positions[row, i]), int(batch.decoder_input.segments[row, i])) == (place, segment)
    one = epoch_of(loader(["abcdefghabcdefgh"]), 1)[0][0]
    assert one.decoder_input.positions.shape[0] in (1, len(one.sample_ids))


def test_the_order_is_of_seed_and_epoch_alone() -> None:
    def starts(made: WindowLoader, epoch: int) -> list[int]:
        return [sample for micro_batches in epoch_of(made, epoch) for batch in micro_batches for sample in batch.sample_ids]

    assert starts(loader(), 1) == starts(loader(), 1)
    assert starts(loader(), 0) != starts(loader(), 1)
    assert starts(loader(), 0) != starts(loader(seed=4), 0)


@settings(max_examples=30)
@given(st.integers(0, 30), st.integers(1, 3), st.integers(1, 3))
def test_any_position_goes_on_and_shards_and_slices_are_the_whole(position: int, grad_accum_steps: int, world_size: int) -> None:
    whole = [(end, batch.sample_ids) for end, (batch,) in islice(loader().batches_from(0), 30)]
    behind = [(end, samples) for end, samples in whole if end > position]
    got = list(islice(loader(micro_batching=MicroBatching(grad_accum_steps)).batches_from(position), len(behind) - 1))
    for (end, samples), (found_end, micro_batches) in zip(behind[1:], got[1:], strict=False):
        assert found_end == end and tuple(sample for batch in micro_batches for sample in batch.sample_ids) == samples
    shards = [list(islice(loader(micro_batching=MicroBatching(1, shard, world_size)).batches_from(0), 6)) for shard in range(world_size)]
    for i, (_, samples) in enumerate(whole[:6]):
        dealt = [sample for shard in shards for batch in shard[i][1] for sample in batch.sample_ids]
        assert sorted(dealt) == sorted(samples)


def test_a_stream_gives_its_documents_back() -> None:
    assert stream().rows == [[EOS, *TOKENIZER.encode(text)] for text in TEXTS]


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(3, 9), max_size=13), min_size=1, max_size=5), st.integers(2, 8), st.data())
def test_scoring_counts_each_token_once_with_what_the_overlap_shows(rows: list[list[int]], length: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, length - 1))
    texts = [[EOS, *row] for row in rows]
    counted: list[list[int]] = [[] for _ in rows]
    for batch, owners, new in scoring_batches(texts, length, overlap, 20):
        assert batch.decoder_input.tokens.shape == new.shape == batch.labels.shape
        for row, (owner, start) in enumerate(zip(owners, batch.sample_ids, strict=True)):
            seen = batch.decoder_input.tokens[row, : batch.decoder_input.lengths[row]].tolist()
            assert seen == texts[owner][start : start + length]
            counted[owner] += [start + place for place in torch.nonzero(new[row])[:, 0].tolist()]
            first = int(new[row].int().argmax())
            assert start == 0 or first == overlap
            expected = [*texts[owner][1:], EOS][start : start + length]
            assert batch.labels[row, : len(seen)].tolist() == expected
    assert [sorted(places) for places in counted] == [list(range(len(text))) for text in texts]
    assert all(
        (batch.labels[batch.decoder_input.segments == 0] == PAD).all() for batch, _, _ in scoring_batches(texts, length, overlap, 20)
    )


def rows_of(batches: list[list[LanguageBatch]]) -> dict[int, tuple[list[int], list[int], list[int]]]:
    """Return each window's input tokens, positions and labels."""
    rows = {}
    for batch in (batch for micro_batches in batches for batch in micro_batches):
        text = (batch.decoder_input.tokens, batch.decoder_input.positions.expand_as(batch.decoder_input.tokens), batch.labels)
        rows |= dict(zip(batch.sample_ids, zip(*(x.tolist() for x in text), strict=True), strict=True))
    return rows


def test_blanked_tokens_are_of_seed_epoch_and_window_alone() -> None:
    texts = ["abcdefgh" * 20, "hgfe" * 9]
    fields = {"max_seq_len": 16, "batch_tokens": 64}
    plain, blanked = (rows_of(epoch_of(loader(texts, blank_noising=p, **fields), 1)) for p in (0.0, 0.3))
    gone = 0
    for sample, (tokens, positions, labels) in blanked.items():
        before, places, expected = plain[sample]
        assert (positions, labels) == (places, expected), "what is to be said stays, and where documents end"
        assert all(new == old or (new == UNK and old > UNK) for new, old in zip(tokens, before, strict=True))
        gone += tokens.count(UNK)
    assert gone > 0
    sliced = rows_of(epoch_of(loader(texts, blank_noising=0.3, micro_batching=MicroBatching(2), **fields), 1))
    assert sliced == blanked == rows_of(epoch_of(loader(texts, blank_noising=0.3, **fields), 1))
    assert blanked != rows_of(epoch_of(loader(texts, blank_noising=0.3, seed=4, **fields), 1))
    window = np.full(16, 7, np.int32)
    assert (apply_blank_noising(window, 0.5, (3, 1, 5)) != apply_blank_noising(window, 0.5, (3, 2, 5))).any(), "another epoch blanks others"


def test_blanked_tokens_have_their_share_and_windows_their_own() -> None:
    window = np.full(400, 7, np.int32)
    shares = np.array([(apply_blank_noising(window, 0.2, (1, 0, sample)) == UNK).mean() for sample in range(2000)])
    assert abs(shares.mean() - 0.2) < 5 * 0.4 / np.sqrt(12 * len(shares)), "five standard errors of a uniform share from 0 to 0.4"
    assert shares.min() < 0.01 and shares.max() > 0.38 and abs(shares.var() - 0.4**2 / 12 - (0.2 - 0.4**2 / 3) / 400) < 0.001
    assert apply_blank_noising(window, 0.2, (1, 0, 5)).dtype == np.int32
