"""Token masking for masked language modeling, whose random numbers are a pure function of (seed, epoch, sample)."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from transom.data.batch import LanguageBatch, MaskedBatch, PaddedSequences
from transom.data.text.windows import WindowLoader
from transom.data.tokenizer.special_tokens import UNK

MASK_PROBABILITY, RANDOM_PROBABILITY = 0.8, 0.1
"""Probabilities that a selected token is replaced by the mask token and by a random token.

The other selected tokens are kept (Devlin et al. 2019, section 3.1).
"""


def mask_tokens(
    batch: LanguageBatch, mlm_probability: float, mask_token: int, key: tuple[int, ...], maskable: Sequence[int] | None = None
) -> MaskedBatch:
    """Select tokens of a batch for prediction and corrupt most of them.

    Special tokens are never selected. At least one token of each row is selected, unless the row has special tokens only.

    Args:
        batch: windows of text, whose labels are not used.
        mlm_probability: probability of selecting a token.
        mask_token: id of the mask token, which is in the vocabulary or one more than the tokenizer's last id.
        key: integers such as seed and epoch. The random numbers of a row depend only on the key and on the row's sample index.
        maskable: token ids that may be selected and that may replace others, in ascending order. By default those of the kind ``bpe``.
    """
    text, ordinary = batch.decoder_input, torch.tensor(range(UNK + 1, mask_token) if maskable is None else maskable)
    special = ~torch.isin(text.tokens, ordinary)
    loss_mask, corrupted = torch.zeros_like(text.tokens, dtype=torch.bool), text.tokens.clone()
    for row, sample in enumerate(batch.sample_ids):
        bits = np.random.Philox(np.random.SeedSequence([*key, sample])).random_raw(3 * text.tokens.shape[1])
        choice, draw, random_token = torch.from_numpy((bits * 2.0**-64).reshape(3, -1))
        choice[special[row]] = 2.0  # never selected: special tokens and padding
        chosen = (choice < mlm_probability) | (choice == choice.min()) & (choice < 1)
        loss_mask[row] = chosen
        corrupted[row, chosen & (draw < MASK_PROBABILITY)] = mask_token
        replaced = chosen & (draw >= MASK_PROBABILITY) & (draw < MASK_PROBABILITY + RANDOM_PROBABILITY)
        corrupted[row, replaced] = ordinary[(random_token[replaced] * len(ordinary)).long()]
    source = PaddedSequences(corrupted, text.positions, text.segments, text.lengths)
    return MaskedBatch(source, text.tokens, loss_mask, batch.sample_ids)


class MaskedLoader:
    """Loader of endless training batches of masked windows, resumable at any position.

    Each epoch masks different tokens (dynamic masking).
    """

    def __init__(
        self, windows: WindowLoader, mlm_probability: float, mask_token: int, seed: int, maskable: Sequence[int] | None = None
    ) -> None:
        """Wrap a loader of windows, in whose batches tokens are masked.

        Args:
            windows: loader of the training windows.
            mlm_probability: probability of selecting a token.
            mask_token: id of the mask token.
            seed: random seed of the masking.
            maskable: token ids that may be masked, as for ``mask_tokens``.
        """
        self.windows, self._mlm_probability, self._mask_token, self._seed = windows, mlm_probability, mask_token, seed
        self.n_samples, self._maskable = windows.n_samples, maskable

    def describe_sample(self, sample: int) -> str:
        """Return the document and the token position at which a window starts, for messages."""
        return self.windows.describe_sample(sample)

    def batches_from(self, position: int) -> Iterator[tuple[int, list[MaskedBatch]]]:
        """Yield batches endlessly, starting at a position.

        Yields:
            The position after the batch, which a checkpoint stores, and this rank's part of the batch as a list of micro-batches.
        """
        for end, micro_batches in self.windows.batches_from(position):
            key = self._seed, (end - 1) // self.n_samples
            yield end, [mask_tokens(batch, self._mlm_probability, self._mask_token, key, self._maskable) for batch in micro_batches]
