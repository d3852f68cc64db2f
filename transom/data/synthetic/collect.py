"""The splits of generated data: the part that each pair belongs to, and their filling from an endless stream."""

from collections.abc import Iterable
from typing import Literal

from transom.data.pairs.pairs import Pairs
from transom.data.split import Splits, text_hash
from transom.errors import ConfigError

Part = Literal["train", "valid", "test"]

_PATIENCE = 20000
"""Draws in a row without a new pair after which there are taken to be no more."""


def part_by_hash(text: str, test_share: float, valid_share: float) -> Part:
    """Give a text's part by nothing but its hash: "test" and "valid" with these probabilities."""
    share = text_hash(text) / 2**64
    return "test" if share < test_share else "valid" if share < test_share + valid_share else "train"


def collect(
    stream: Iterable[tuple[Part | None, str, str]], n_train: int, n_valid: int, n_test: int, name: str, more: str = ""
) -> Splits[Pairs]:
    """Take the first different pairs of each part, so that a larger split only adds pairs to a smaller one and changes no other.

    Args:
        stream: part, source and target; pairs of no part are passed over.
        n_train: wanted training pairs.
        n_valid: wanted validation pairs.
        n_test: wanted test pairs.
        name: what generates them, for people.
        more: what else than fewer pairs would help, for people.

    Returns:
        Splits of just these sizes, without a source sentence that occurs twice.

    Raises:
        ConfigError: the stream does not hold so many.
    """
    wanted = {"train": n_train, "valid": n_valid, "test": n_test}
    found: dict[str, dict[str, str]] = {part: {} for part in wanted}
    missing, misses = sum(wanted.values()), 0
    for part, source, target in stream:
        if part is not None and len(found[part]) < wanted[part] and source not in found[part]:
            found[part][source] = target
            missing, misses = missing - 1, 0
        else:
            misses += 1
        if not missing:
            return Splits(*(Pairs(list(pairs), list(pairs.values()), f"{name}, {part}") for part, pairs in found.items()))
        if misses > _PATIENCE:
            break
    short = next(part for part in wanted if len(found[part]) < wanted[part])
    raise ConfigError(
        f"data.generate: expected {wanted[short]:,} different {short} pairs of {name}, found only {len(found[short]):,}; lower n_{short}"
        + (f" or {more}" if more else "")
    )
