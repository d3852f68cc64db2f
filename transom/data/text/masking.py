"""Token masking for masked language modeling: a pure function of (seed, epoch, sample)."""

from collections.abc import Iterator

import numpy as np
import torch

from transom.data.batch import LanguageBatch, MaskedBatch, PaddedSequences
from transom.data.text.windows import WindowLoader
from transom.data.tokenizer.special_tokens import UNK

MASK_PROBABILITY, RANDOM_PROBABILITY = 0.8, 0.1
"""Fractions of the selected tokens that are replaced by the mask token and by a random token; the rest are kept
(Devlin et al. 2019, section 3.1)."""


def mask_tokens(batch: LanguageBatch, mlm_probability: float, mask_token: int, key: tuple[int, ...]) -> MaskedBatch:
    """Select tokens of a batch and corrupt them: no special token, and at least one token per row that has others.

    Args:
        batch: windows of text; their labels are not used.
        mlm_probability: probability that a token is selected.
        mask_token: id of the mask token, one more than the tokenizer's last id.
        key: integers such as seed and epoch; given the key, the random numbers of a row depend on its sample only.
    """
    text = batch.decoder_input
    loss_mask, corrupted = torch.zeros_like(text.tokens, dtype=torch.bool), text.tokens.clone()
    for row, sample in enumerate(batch.sample_ids):
        bits = np.random.Philox(np.random.SeedSequence([*key, sample])).random_raw(3 * text.tokens.shape[1])
        choice, draw, random_token = torch.from_numpy((bits * 2.0**-64).reshape(3, -1))
        choice[text.tokens[row] <= UNK] = 2.0  # never selected: special tokens and padding
        chosen = (choice < mlm_probability) | (choice == choice.min()) & (choice < 1)
        loss_mask[row] = chosen
        corrupted[row, chosen & (draw < MASK_PROBABILITY)] = mask_token
        replaced = chosen & (draw >= MASK_PROBABILITY) & (draw < MASK_PROBABILITY + RANDOM_PROBABILITY)
        corrupted[row, replaced] = (UNK + 1 + random_token[replaced] * (mask_token - UNK - 1)).long()
    source = PaddedSequences(corrupted, text.positions, text.segments, text.lengths)
    return MaskedBatch(source, text.tokens, loss_mask, batch.sample_ids)


class MaskedLoader:
    """Endless training batches of windows, resumable at any position; each epoch masks different tokens (dynamic masking)."""

    def __init__(self, windows: WindowLoader, mlm_probability: float, mask_token: int, seed: int) -> None:
        """Mask tokens in the batches of ``windows``; the other arguments are those of ``mask_tokens``."""
        self.windows, self._mlm_probability, self._mask_token, self._seed = windows, mlm_probability, mask_token, seed
        self.n_samples = windows.n_samples

    def describe_sample(self, sample: int) -> str:
        """Return the document and the position at which a window starts, for messages."""
        return self.windows.describe_sample(sample)

    def batches_from(self, position: int) -> Iterator[tuple[int, list[MaskedBatch]]]:
        """Yield the position after each batch, which a checkpoint stores, and the batch as micro-batches."""
        for end, micro_batches in self.windows.batches_from(position):
            key = self._seed, (end - 1) // self.n_samples
            yield end, [mask_tokens(batch, self._mlm_probability, self._mask_token, key) for batch in micro_batches]
