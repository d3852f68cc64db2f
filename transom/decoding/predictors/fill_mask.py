"""Mask filling: predicts the masked tokens of a text with a masked language model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from transom.data.batch import MaskedBatch, PaddedSequences
from transom.data.tokenizer.special_tokens import MASK
from transom.decoding.inference import ProgressCallback, eval_mode, ignore_progress, unless_edited
from transom.decoding.predictors.encoder_predictor import EncoderPredictor
from transom.decoding.predictors.long_texts import check_long_text_policy
from transom.decoding.predictors.results import Record, Results
from transom.decoding.search.loop import log_probabilities
from transom.errors import DataError
from transom.files.message import phrase
from transom.models.encoder import MaskedEncoderTransformer


@dataclass(frozen=True)
class TokenPrediction(Record):
    """A predicted token for one mask.

    Attributes:
        text: the token without its leading space.
        p: probability of the token given the text, in which the other masks stay masked.
    """

    text: str
    p: float

    def __str__(self) -> str:
        return f"{self.text} {self.p:.1%}"


@dataclass(frozen=True)
class MaskPredictions(Record):
    """Predictions for all masks of a text.

    Attributes:
        masks: the most probable tokens for each mask, in decreasing order of probability.
        n_dropped_tokens: number of tokens cut off at the ends of the text, away from the masks.
    """

    masks: list[list[TokenPrediction]]
    n_dropped_tokens: int

    def __str__(self) -> str:
        """Return the tokens of each mask on one line."""
        return "\n".join("  ".join(map(str, gap)) for gap in self.masks)


class MaskFiller(EncoderPredictor[MaskedEncoderTransformer]):
    """Predicts masked tokens."""

    def fill(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        too_long: Literal["window", "refuse"] = "window",
        notify: ProgressCallback = ignore_progress,
    ) -> list[list[list[TokenPrediction]]]:
        """Return the ``top_k`` predictions of each mask of each text; arguments and errors as for ``fill_with_details``."""
        return [each.masks for each in self.fill_with_details(texts, top_k, too_long, notify)]

    def fill_with_details(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        too_long: Literal["window", "refuse"] = "window",
        notify: ProgressCallback = ignore_progress,
    ) -> Results[MaskPredictions]:
        """Predict the masked tokens of texts.

        Args:
            texts: each contains at least one ``[MASK]``.
            top_k: number of predictions per mask.
            too_long: treatment of texts longer than the context window: "window" reads one window around the masks, "refuse" raises an
                error.
            notify: progress callback, called with the number of texts done and of all texts.

        Raises:
            ConfigError: ``too_long`` is invalid.
            DataError: a text contains no mask, is too long and ``too_long`` is "refuse", or its masks do not fit one window.
        """
        check_long_text_policy(too_long, "window", "refuse")
        found = Results[MaskPredictions]()
        for text in texts:
            found.append(self.fill_tokens(self._pieces(text), top_k, too_long))
            notify(len(found), len(texts))
        return found

    @torch.inference_mode()
    def fill_tokens(
        self, pieces: Sequence[Sequence[int]], top_k: int = 5, too_long: Literal["window", "refuse"] = "window"
    ) -> MaskPredictions:
        """Predict the token between each two consecutive pieces, which are token IDs; other arguments as in ``fill_with_details``."""
        batch, gaps, n_dropped_tokens = self._batch(pieces, too_long)
        with eval_mode(self.model):
            logits = self.model.unembedding(unless_edited(self.encoder_backend, self.model).last_hidden_state(batch)[0, gaps])
        allowed = torch.tensor(self.tokenizer.maskable, device=logits.device)
        suppressed = torch.full_like(logits, -torch.inf)
        suppressed[:, allowed] = logits[:, allowed]
        best = log_probabilities(suppressed).topk(min(top_k, len(allowed)))
        guesses = [
            [TokenPrediction(self.tokenizer.decode([token]).removeprefix(" "), p) for token, p in zip(tokens, probabilities, strict=True)]
            for tokens, probabilities in zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        ]
        return MaskPredictions(guesses, n_dropped_tokens)

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of a text, without special tokens; each ``[MASK]`` is one token."""
        if MASK not in text:
            return super().encode(text)
        first, *others = self._pieces(text)
        return [*first, *(token for piece in others for token in (self.tokenizer.mask_token_id, *piece))]

    def masked_batch(self, text: str) -> tuple[MaskedBatch, list[int]]:
        """Return a batch of one text, and the positions of its masks.

        Raises:
            DataError: the text contains no mask, or exceeds the context window.
        """
        batch, gaps, _ = self._batch(self._pieces(text), "refuse")
        return batch, gaps

    def _batch(self, pieces: Sequence[Sequence[int]], too_long: Literal["window", "refuse"]) -> tuple[MaskedBatch, list[int], int]:
        """Return a batch with a mask between each two pieces, the positions of the masks, and the number of tokens cut off."""
        mask, special, full_row = self.tokenizer.mask_token_id, self.tokenizer.special_tokens, list[int]()
        for number, piece in enumerate(pieces):
            full_row += [mask, *piece] if number else [*piece]
        full_row = special.template.surround(full_row)
        row = self._window(full_row, mask, too_long)
        gaps = [index for index, token in enumerate(row) if token == mask]
        source = PaddedSequences.pad([row], special.padding)
        batch = MaskedBatch(source, source.tokens, source.tokens == mask, (0,)).to(self.model.device)
        return batch, gaps, len(full_row) - len(row)

    def _pieces(self, text: str) -> list[list[int]]:
        """Tokenize the pieces of a text between masks. The space before a mask is removed, because the predicted subword contains it."""
        parts = text.split(MASK)
        if len(parts) == 1:
            raise DataError(f"expected {MASK} in the text, found {text[:60]!r}; write {MASK} in place of each word to predict")
        if self.tokenizer.kind != "char":
            parts = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]
        return self.tokenizer.encode_batch(parts)

    def _window(self, row: list[int], mask: int, too_long: Literal["window", "refuse"]) -> list[int]:
        max_tokens = self.model.config.max_seq_len
        if len(row) <= max_tokens:
            return row
        first, last = row.index(mask), len(row) - 1 - row[::-1].index(mask)
        if too_long == "refuse" or last - first >= max_tokens - 1:
            line = phrase(
                "errors.too_long_to_fill",
                "expected a text of at most {most} tokens, start token included, found {found}; shorten the text",
                most=max_tokens,
                found=len(row),
            )
            raise DataError(line if too_long == "refuse" else f"{line}, or place the masks closer together")
        start = min(max((first + last - max_tokens) // 2 + 1, 0), len(row) - max_tokens)
        return row[start : start + max_tokens]
