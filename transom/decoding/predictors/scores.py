"""How probable models find given texts and translations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from transom.decoding.predictors.results import Record
from transom.errors import DataError


@dataclass(frozen=True)
class PairScore(Record):
    """How probable the model finds a given translation.

    Attributes:
        log_p: natural logarithm of p(target | source), the end symbol included.
        n_tokens: target tokens, the end symbol included.
    """

    log_p: float
    n_tokens: int

    def __str__(self) -> str:
        """Return the log-probability on one line."""
        return f"log-probability {self.log_p:.4f} nats over {self.n_tokens:,} tokens"


@dataclass(frozen=True)
class TextScore(Record):
    """How probable a language model finds a given text.

    Attributes:
        log_p: natural logarithm of p(text), its end included.
        n_tokens: tokens, the end symbol included.
        n_bytes: bytes of what was read, in UTF-8.
        windows: pieces in which it was read.
        n_left_out: tokens that were not read, where the text was to be truncated.
        n_unknown: tokens that stand for what is not in the vocabulary; they make the bits a byte too few.
    """

    log_p: float
    n_tokens: int
    n_bytes: int
    windows: int
    n_left_out: int = 0
    n_unknown: int = 0

    def __str__(self) -> str:
        """Return the log-probability on one line."""
        return f"log-probability {self.log_p:.4f} nats over {self.n_tokens:,} tokens"


def bits_per_byte(scores: Sequence[TextScore]) -> float:
    """Return -sum log2 p / bytes: unlike the perplexity, comparable between tokenizers.

    Raises:
        DataError: there is nothing to measure.
    """
    n_bytes = sum(score.n_bytes for score in scores)
    if n_bytes == 0:
        raise DataError("expected some text to score, found none")
    return -sum(score.log_p for score in scores) / math.log(2) / n_bytes


def perplexity(scores: Sequence[PairScore] | Sequence[TextScore]) -> float:
    """Return exp(-sum log p / sum n), over all tokens, end symbols included.

    Raises:
        DataError: there is nothing to measure.
    """
    n_tokens = sum(score.n_tokens for score in scores)
    if n_tokens == 0:
        raise DataError("expected something to score, found nothing")
    return math.exp(min(-sum(score.log_p for score in scores) / n_tokens, 700.0))
