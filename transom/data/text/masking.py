"""Hiding tokens, for a model to name them: which ones is a pure function of (seed, epoch, sample)."""

from collections.abc import Iterator

import numpy as np
import torch

from transom.data.batch import LanguageBatch, MaskedBatch, Sequences
from transom.data.text.windows import WindowLoader
from transom.data.tokenizer.special import UNK

MASKED, REPLACED = 0.8, 0.1
"""Of the chosen tokens, the share that a mask stands for and the share that a random token stands for; the rest stay as they are
(Devlin et al. 2019, section 3.1)."""


def masked(batch: LanguageBatch, share: float, mask: int, key: tuple[int, ...]) -> MaskedBatch:
    """Hide a share of a batch's tokens; special symbols are never chosen, and of each row one token at least where it has any.

    Args:
        batch: windows of text; their labels are not used.
        share: of the tokens, that are to be named.
        mask: the mask's number, one more than the tokenizer's last.
        key: whole numbers such as seed and epoch; with them, each row's draws hang on its sample alone.
    """
    text = batch.target
    counted, shown = torch.zeros_like(text.tokens, dtype=torch.bool), text.tokens.clone()
    for row, sample in enumerate(batch.samples):
        bits = np.random.Philox(np.random.SeedSequence([*key, sample])).random_raw(3 * text.tokens.shape[1])
        choice, fate, symbol = torch.from_numpy((bits * 2.0**-64).reshape(3, -1))
        choice[text.tokens[row] <= UNK] = 2.0  # never chosen: special symbols and padding
        chosen = (choice < share) | (choice == choice.min()) & (choice < 1)
        counted[row] = chosen
        shown[row, chosen & (fate < MASKED)] = mask
        replaced = chosen & (fate >= MASKED) & (fate < MASKED + REPLACED)
        shown[row, replaced] = (UNK + 1 + symbol[replaced] * (mask - UNK - 1)).long()
    source = Sequences(shown, text.positions, text.segments, text.lengths)
    return MaskedBatch(source, text.tokens, counted, batch.samples)


class MaskedLoader:
    """Training batches of windows without end, from any position, with other tokens hidden in each epoch."""

    def __init__(self, windows: WindowLoader, share: float, mask: int, seed: int) -> None:
        """Hide tokens in the batches of ``windows``; arguments as in ``masked``."""
        self.windows, self._share, self._mask, self._seed = windows, share, mask, seed
        self.n_samples = windows.n_samples

    def place(self, sample: int) -> str:
        """Name the document that a window begins in, and where."""
        return self.windows.place(sample)

    def batches_from(self, position: int) -> Iterator[tuple[int, list[MaskedBatch]]]:
        """Yield each batch, as slices, with the position behind it: what a checkpoint stores to go on from there."""
        for end, slices in self.windows.batches_from(position):
            key = self._seed, (end - 1) // self.n_samples
            yield end, [masked(batch, self._share, self._mask, key) for batch in slices]
