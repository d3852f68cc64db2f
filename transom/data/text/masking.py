"""Token masking for masked language modeling: a pure function of (seed, epoch, sample)."""

from collections.abc import Iterator

import numpy as np
import torch

from transom.data.batch import LanguageBatch, MaskedBatch, Sequences
from transom.data.text.windows import WindowLoader
from transom.data.tokenizer.special import UNK

MASKED, REPLACED = 0.8, 0.1
"""Fractions of the selected tokens that are replaced by the mask token and by a random token; the rest are kept
(Devlin et al. 2019, section 3.1)."""


def masked(batch: LanguageBatch, share: float, mask: int, key: tuple[int, ...]) -> MaskedBatch:
    """Select tokens of a batch and corrupt them; special tokens are never selected, other rows have at least one selected token.

    Args:
        batch: windows of text; their labels are not used.
        mlm_probability: probability that a token is selected.
        mask_token: id of the mask token, one more than the tokenizer's last id.
        key: integers such as seed and epoch; given the key, the random numbers of a row depend on its sample only.
    """
    text = batch.target
    counted, shown = torch.zeros_like(text.tokens, dtype=torch.bool), text.tokens.clone()
    for row, sample in enumerate(batch.samples):
        bits = np.random.Philox(np.random.SeedSequence([*key, sample])).random_raw(3 * text.tokens.shape[1])
        choice, fate, symbol = torch.from_numpy((bits * 2.0**-64).reshape(3, -1))
        choice[text.tokens[row] <= UNK] = 2.0  # never selected: special tokens and padding
        chosen = (choice < share) | (choice == choice.min()) & (choice < 1)
        counted[row] = chosen
        shown[row, chosen & (fate < MASKED)] = mask
        replaced = chosen & (fate >= MASKED) & (fate < MASKED + REPLACED)
        shown[row, replaced] = (UNK + 1 + symbol[replaced] * (mask - UNK - 1)).long()
    source = Sequences(shown, text.positions, text.segments, text.lengths)
    return MaskedBatch(source, text.tokens, counted, batch.samples)


class MaskedLoader:
    """Endless training batches of windows, resumable at any position; each epoch masks different tokens (dynamic masking)."""

    def __init__(self, windows: WindowLoader, share: float, mask: int, seed: int) -> None:
        """Mask tokens in the batches of ``windows``; the other arguments are those of ``masked``."""
        self.windows, self._share, self._mask, self._seed = windows, share, mask, seed
        self.n_samples = windows.n_samples

    def place(self, sample: int) -> str:
        """Return the document and the position at which a window starts, for messages."""
        return self.windows.place(sample)

    def batches_from(self, position: int) -> Iterator[tuple[int, list[MaskedBatch]]]:
        """Yield the position after each batch, which a checkpoint stores, and the batch as micro-batches."""
        for end, slices in self.windows.batches_from(position):
            key = self._seed, (end - 1) // self.n_samples
            yield end, [masked(batch, self._share, self._mask, key) for batch in slices]
