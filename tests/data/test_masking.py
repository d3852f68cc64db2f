"""Token masking: the fractions of Devlin et al., no special tokens, and the same result from any position."""

from itertools import islice

import numpy as np
import pytest
import torch

from transom.config.data import TokenizerConfig
from transom.data.batch import LanguageBatch, MaskedBatch, PaddedSequences
from transom.data.sampler import MicroBatching
from transom.data.text.documents import Documents
from transom.data.text.masking import MaskedLoader, mask_tokens
from transom.data.text.windows import TokenStream, WindowLoader
from transom.data.tokenizer.special_tokens import EOS, PAD, UNK
from transom.data.tokenizer.tokenizer import Tokenizer

MASK = 60


def text(n_rows: int = 400, length: int = 50) -> LanguageBatch:
    torch.manual_seed(1)
    rows = torch.randint(UNK + 1, MASK, (n_rows, length))
    rows[:, 0] = EOS
    return LanguageBatch(PaddedSequences.pad(rows.tolist()), rows, tuple(range(n_rows)))


def test_shares_are_those_asked_for() -> None:
    batch = text()
    hidden = mask_tokens(batch, 0.15, MASK, (1, 2))
    n = 400 * 49
    loss_mask = hidden.loss_mask
    assert abs(loss_mask.sum() / n - 0.15) < 4 * (0.15 * 0.85 / n) ** 0.5
    shown, was = hidden.source.tokens[loss_mask], hidden.labels[loss_mask]
    for share, what in ((0.8, shown == MASK), (0.1, (shown != MASK) & (shown != was)), (0.1, shown == was)):
        of = len(shown)
        expected = share * (55 / 56 if share == 0.1 and what.sum() < (shown == was).sum() else 1)  # a random token may be the right one
        assert abs(what.float().mean() - expected) < 4 * (share * (1 - share) / of) ** 0.5 + 0.1 / 56
    assert torch.equal(hidden.labels, batch.decoder_input.tokens) and hidden.n_target_tokens == int(loss_mask.sum())
    assert torch.equal(hidden.source.tokens[~loss_mask], batch.decoder_input.tokens[~loss_mask])


def test_special_symbols_and_padding_are_never_hidden_and_each_row_has_a_gap() -> None:
    rows = [[EOS, 7], [EOS, 9, EOS, 8, 8], [EOS, UNK, 5, 6]]
    batch = LanguageBatch(PaddedSequences.pad(rows), PaddedSequences.pad(rows).tokens, (0, 1, 2))
    for epoch in range(50):
        hidden = mask_tokens(batch, 0.05, MASK, (1, epoch))
        assert (hidden.labels[hidden.loss_mask] > UNK).all() and hidden.loss_mask.any(1).all()
        assert ((hidden.source.tokens == PAD) == (batch.decoder_input.tokens == PAD)).all()
    alone = mask_tokens(LanguageBatch(PaddedSequences.pad([[EOS]]), PaddedSequences.pad([[EOS]]).tokens, (0,)), 0.5, MASK, (1,))
    assert not alone.loss_mask.any()


def test_a_rows_gaps_hang_on_seed_epoch_and_sample_alone() -> None:
    batch = text(20)
    whole = mask_tokens(batch, 0.3, MASK, (1, 2))
    part = LanguageBatch(PaddedSequences.pad(batch.decoder_input.tokens[7:9].tolist()), batch.labels[7:9], (7, 8))
    assert torch.equal(mask_tokens(part, 0.3, MASK, (1, 2)).source.tokens, whole.source.tokens[7:9])
    for other in ((2, 2), (1, 3)):
        assert not torch.equal(mask_tokens(batch, 0.3, MASK, other).loss_mask, whole.loss_mask)


@pytest.mark.parametrize("world_size", [1, 2])
def test_any_position_goes_on_and_epochs_differ(world_size: int) -> None:
    documents = Documents(["one two three four", "five six seven", "eight nine ten one two"] * 5, ["here"] * 15, "here")
    tokenizer = Tokenizer.train(documents.texts, TokenizerConfig(kind="whitespace", vocab_size=30))

    def loader(shard: int = 0) -> MaskedLoader:
        windows = WindowLoader(
            TokenStream(documents, tokenizer), max_seq_len=6, batch_tokens=24, seed=3, micro_batching=MicroBatching(1, shard, world_size)
        )
        return MaskedLoader(windows, 0.3, tokenizer.vocab_size, 3)

    def tokens(batches: list[MaskedBatch]) -> list[list[int]]:
        return [row for batch in batches for row in batch.source.tokens.tolist()]

    seen = list(islice(loader().batches_from(0), 12))
    for i, (end, _) in enumerate(seen[:-1]):
        assert tokens(next(loader().batches_from(end))[1]) == tokens(seen[i + 1][1])
    if world_size == 1:
        n = loader().windows.n_samples
        epochs = [[b for end, batch in seen for b in batch if (end - 1) // n == epoch] for epoch in (0, 1)]
        assert np.mean([batch.loss_mask.float().mean() for batch in epochs[0]]) > 0.1
        assert tokens(epochs[0]) != tokens(epochs[1])
