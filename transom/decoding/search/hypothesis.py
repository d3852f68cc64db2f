"""A translation while it is still tokens, and the score by which translations are ranked."""

from dataclasses import dataclass

NEVER = float("-inf")
"""log p of what cannot be."""


@dataclass(frozen=True)
class Hypothesis:
    """One finished target sequence.

    Attributes:
        tokens: without the start and end symbols.
        log_p: natural logarithm of the model's probability of the tokens and the end symbol, given the source.
        score: ``log_p`` over the length penalty.
    """

    tokens: tuple[int, ...]
    log_p: float
    score: float


def length_penalty(length: int, alpha: float) -> float:
    """Return what a hypothesis' log probability is divided by, so that long ones are not at a disadvantage.

    lp(Y) = ((5 + |Y|) / (5 + 1))^alpha (Wu et al. 2016, eq. 14). |Y| counts the end symbol.

    Args:
        length: |Y|, in tokens.
        alpha: 0 ranks by probability, 1 nearly by the mean log probability of a token.

    >>> length_penalty(1, 0.6), length_penalty(7, 1.0)
    (1.0, 2.0)
    """
    return float(((5 + length) / 6) ** alpha)
