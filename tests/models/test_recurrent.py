"""Recurrent language models: packed documents give the same results as separate ones, bit for bit; grouping by length."""

import numpy as np
import pytest
import torch

from transom.config.recurrent import RecurrentDecoderConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.data.text.windows import language_batch
from transom.layers.recurrent.recurrent_layers import bucket_by_length
from transom.models.build import build_model

ROWS = [[2, 5, 8, 4], [2, 7], [2, 3, 3, 6, 5], [2], [2, 4, 4]]


def tiny(kind: str) -> torch.nn.Module:
    torch.manual_seed(1)
    config = RecurrentDecoderConfig.model_validate({"cell": kind, "d_model": 12, "n_layers": 2, "vocab_size": 9, "max_seq_len": 16})
    return build_model(config).eval()


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_packed_documents_are_those_of_separate_rows_bit_for_bit(kind: str) -> None:
    model = tiny(kind)
    tokens = np.array([[token for row in ROWS for token in row]], np.int32)
    packed = language_batch(tokens, tokens, np.zeros(1, np.int64))
    assert packed.decoder_input.segments.tolist() == [[1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 4, 5, 5, 5]]
    text = PaddedSequences.pad(ROWS)
    apart = LanguageBatch(text, text.tokens, tuple(range(len(ROWS))))
    results = []
    for batch in (packed, apart):
        model.zero_grad()
        logits = model(batch)[batch.loss_mask]
        logits.logsumexp(-1).sum().backward()
        results.append((logits.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    (together, of_together), (alone, of_alone) = results
    assert torch.equal(together, alone)
    for a, b in zip(of_together, of_alone, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_a_document_knows_nothing_of_the_one_before_it(kind: str) -> None:
    model, tokens = tiny(kind), np.array([[2, 5, 8, 2, 7, 6]], np.int32)
    other = np.array([[2, 3, 3, 2, 7, 6]], np.int32)
    first, second = (model(language_batch(x, x, np.zeros(1, np.int64))) for x in (tokens, other))
    assert torch.equal(first[0, 3:], second[0, 3:])
    assert not torch.equal(first[0, 1:3], second[0, 1:3])


def test_rows_of_one_sequence_each_are_read_as_they_are() -> None:
    assert bucket_by_length(torch.ones(3, 5, dtype=torch.long)) is None


def test_every_token_is_in_one_group_of_like_lengths() -> None:
    draw = torch.Generator().manual_seed(1)
    segments = (torch.rand(7, 40, generator=draw) < 0.2).long().cumsum(1) + 1
    segments[2, 31:] = 0
    buckets = bucket_by_length(segments)
    assert buckets is not None
    indices = torch.cat([bucket.indices[bucket.token_mask] for bucket in buckets])
    assert sorted(indices.tolist()) == (segments.flatten() > 0).nonzero()[:, 0].tolist()
    for bucket in buckets:
        lengths = bucket.token_mask.sum(1)
        assert lengths.max() == bucket.token_mask.shape[1] < 2 * lengths.min()
        for row, token_mask in zip(bucket.indices, bucket.token_mask, strict=True):
            steps = row[token_mask]
            assert steps.diff().eq(1).all() and segments.flatten()[steps].unique().numel() == 1


def test_a_state_is_kept_from_step_to_step_and_row_to_row() -> None:
    model = tiny("lstm").double()
    with torch.inference_mode():
        cache = model.start(PaddedSequences.pad([[2, 5], [2, 7]]), 2, 4)
        model.step(torch.tensor([[5], [5], [7], [7]]), cache)
        cache.reorder(torch.tensor([3, 0]))
        last = model.step(torch.tensor([[6], [8]]), cache)
    text = PaddedSequences.pad([[2, 7, 6], [2, 5, 8]])
    assert torch.allclose(last[:, 0], model(LanguageBatch(text, text.tokens, (0, 1)))[:, -1], rtol=0, atol=1e-10)
