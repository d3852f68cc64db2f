"""Mask filling: predicts the masked tokens of a text with a masked language model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from transom.data.batch import MaskedBatch, Sequences
from transom.data.tokenizer.special import EOS, UNK
from transom.decoding.inference import Tell, evaluating, unheard
from transom.decoding.predictors.encoder_predictor import EncoderPredictor
from transom.decoding.predictors.long_texts import check_too_long
from transom.decoding.predictors.results import Record, Results
from transom.decoding.search.loop import log_probabilities
from transom.errors import DataError
from transom.models.encoder import MaskedEncoderTransformer

MASK = "[MASK]"
"""Marks a token to predict in a text."""


@dataclass(frozen=True)
class Guess(Record):
    """A predicted token for one mask.

    Attributes:
        text: the token without its leading space.
        p: its probability given the text, with all other masks kept masked.
    """

    text: str
    p: float

    def __str__(self) -> str:
        """Return the token and its probability."""
        return f"{self.text} {self.p:.1%}"


@dataclass(frozen=True)
class Filled(Record):
    """Predictions for all masks of a text.

    Attributes:
        gaps: the most probable tokens for each mask, in decreasing order of probability.
        n_left_out: number of truncated tokens; the tokens farthest from the masks are truncated.
    """

    gaps: list[list[Guess]]
    n_left_out: int

    def __str__(self) -> str:
        """Return the tokens of each mask on one line."""
        return "\n".join("  ".join(map(str, gap)) for gap in self.gaps)


class Filler(EncoderPredictor[MaskedEncoderTransformer]):
    """Predicts masked tokens."""

    def fill(
        self, texts: Sequence[str], top: int = 5, too_long: Literal["window", "refuse"] = "window", tell: Tell = unheard
    ) -> list[list[list[Guess]]]:
        """Predict the masked tokens of texts; ``filled`` also returns the number of truncated tokens."""
        return [each.gaps for each in self.filled(texts, top, too_long, tell)]

    def filled(
        self, texts: Sequence[str], top: int = 5, too_long: Literal["window", "refuse"] = "window", tell: Tell = unheard
    ) -> Results[Filled]:
        """Predict the masked tokens of texts.

        Args:
            texts: each contains at least one ``[MASK]``.
            top: number of predictions per mask.
            too_long: for a text longer than the context window: read the "window" around its masks, or "refuse" it.
            tell: progress callback, called with the number of texts done.

        Raises:
            ConfigError: ``too_long`` is invalid.
            DataError: a text contains no mask or is too long.
        """
        check_too_long(too_long, "window", "refuse")
        found = Results[Filled]()
        for text in texts:
            found.append(self.fill_tokens(self._pieces(text), top, too_long))
            tell(len(found), len(texts))
        return found

    @torch.inference_mode()
    def fill_tokens(self, pieces: Sequence[Sequence[int]], top: int = 5, too_long: Literal["window", "refuse"] = "window") -> Filled:
        """Predict the masked token between each two consecutive pieces of a text; arguments as in ``filled``."""
        mask, whole = self.tokenizer.vocab_size, [EOS]
        for number, piece in enumerate(pieces):
            whole += [mask, *piece] if number else [*piece]
        row = self._window(whole, mask, too_long)
        gaps = [place for place, token in enumerate(row) if token == mask]
        source = Sequences.pad([row])
        batch = MaskedBatch(source, source.tokens, source.tokens == mask, (0,)).to(self.model.device)
        with evaluating(self.model):
            logits = self.model.unembedding((self.reader or self.model).hidden(batch)[0, gaps])
        logits[:, : UNK + 1] = -torch.inf
        logits[:, mask] = -torch.inf
        best = log_probabilities(logits).topk(min(top, mask - UNK - 1))
        guesses = [
            [Guess(self.tokenizer.decode([token]).removeprefix(" "), p) for token, p in zip(tokens, chances, strict=True)]
            for tokens, chances in zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        ]
        return Filled(guesses, len(whole) - len(row))

    def _pieces(self, text: str) -> list[list[int]]:
        """Tokenize the pieces of a text between its masks; a BPE token contains its leading space, which is removed before a mask."""
        parts = text.split(MASK)
        if len(parts) == 1:
            raise DataError(f"expected {MASK} in the text, found {text[:60]!r}; write {MASK} in place of each word to predict")
        if self.tokenizer.kind == "bpe":
            parts = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]
        return self.tokenizer.encode_batch(parts)

    def _window(self, row: list[int], mask: int, too_long: Literal["window", "refuse"]) -> list[int]:
        most = self.model.config.max_seq_len
        if len(row) <= most:
            return row
        first, last = row.index(mask), len(row) - 1 - row[::-1].index(mask)
        if too_long == "refuse" or last - first >= most - 1:
            raise DataError(
                f"expected a text of at most {most:,} tokens, start token included, found {len(row):,}; shorten it"
                + ("" if too_long == "refuse" else ", or place the masks closer together")
            )
        start = min(max((first + last - most) // 2 + 1, 0), len(row) - most)
        return row[start : start + most]
