"""Log-likelihood of given texts and translations, perplexity and bits per byte."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from transom.decoding.predictors.results import Record
from transom.errors import DataError


@dataclass(frozen=True)
class PairScore(Record):
    """Log-likelihood of a given translation.

    Attributes:
        log_p: natural logarithm of p(target | source), end token included.
        n_tokens: number of target tokens, end token included.
    """

    log_p: float
    n_tokens: int

    def __str__(self) -> str:
        """Return the log-probability on one line."""
        return f"log-probability {self.log_p:.4f} nats over {self.n_tokens:,} tokens"


@dataclass(frozen=True)
class TextScore(Record):
    """Log-likelihood of a given text under a language model.

    Attributes:
        log_p: natural logarithm of p(text), end token included.
        n_tokens: number of scored tokens, end token included.
        n_bytes: UTF-8 length of the scored text, in bytes.
        windows: number of windows in which the text was read.
        n_dropped_tokens: number of tokens cut off at the end of the text.
        n_unknown: number of unknown tokens; if there are any, the bits per byte are underestimated.
    """

    log_p: float
    n_tokens: int
    n_bytes: int
    windows: int
    n_dropped_tokens: int = 0
    n_unknown: int = 0

    def __str__(self) -> str:
        """Return the log-probability on one line."""
        return f"log-probability {self.log_p:.4f} nats over {self.n_tokens:,} tokens"


def bits_per_byte(scores: Sequence[TextScore]) -> float:
    """Return -sum log2 p of all texts divided by their UTF-8 bytes. Unlike perplexity, the result is comparable across tokenizers.

    Raises:
        DataError: the texts are empty.
    """
    n_bytes = sum(score.n_bytes for score in scores)
    if n_bytes == 0:
        raise DataError("expected at least one byte of text to score, found none")
    return -sum(score.log_p for score in scores) / math.log(2) / n_bytes


def perplexity(scores: Sequence[PairScore] | Sequence[TextScore]) -> float:
    """Return exp(-sum log p / n) over all n tokens, end tokens included.

    Raises:
        DataError: there are no tokens.
    """
    n_tokens = sum(score.n_tokens for score in scores)
    if n_tokens == 0:
        raise DataError("expected at least one token to score, found none")
    return math.exp(min(-sum(score.log_p for score in scores) / n_tokens, 700.0))
