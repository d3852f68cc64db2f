"""Assignment of generated pairs to splits, and collection of the splits from an endless stream of pairs."""

from collections.abc import Iterable
from typing import Literal

from transom.data.pairs.pairs import Pairs
from transom.data.split import Splits, text_hash
from transom.errors import ConfigError

SplitName = Literal["train", "valid", "test"]

_MAX_MISSES = 20000
"""Number of consecutive samples without a new pair after which a stream is considered exhausted."""


def split_by_hash(text: str, test_fraction: float, valid_fraction: float) -> SplitName:
    """Return the split of a text, which depends only on the hash of the text.

    Args:
        text: any text.
        test_fraction: fraction of texts that belong to "test".
        valid_fraction: fraction of texts that belong to "valid". All other texts belong to "train".
    """
    fraction = text_hash(text) / 2**64
    return "test" if fraction < test_fraction else "valid" if fraction < test_fraction + valid_fraction else "train"


def collect_splits(
    stream: Iterable[tuple[SplitName | None, str, str]], n_train: int, n_valid: int, n_test: int, name: str, hint: str = ""
) -> Splits[Pairs]:
    """Collect the first distinct pairs of each split from a stream.

    If the size of a split is raised, pairs are appended to the split and the other splits do not change.

    Args:
        stream: split, source and target of each pair. Pairs whose split is None are skipped.
        n_train: number of training pairs.
        n_valid: number of validation pairs.
        n_test: number of test pairs.
        name: name of the generator, for messages.
        hint: additional advice for the error message, which already suggests requesting fewer pairs.

    Returns:
        Splits of exactly these sizes. No source occurs twice within a split.

    Raises:
        ConfigError: the stream does not contain enough pairs.
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
        if misses > _MAX_MISSES:
            break
    short = next(part for part in wanted if len(found[part]) < wanted[part])
    raise ConfigError(
        f"data.generate: expected {wanted[short]:,} distinct {short} pairs of {name}, found only {len(found[short]):,}; lower n_{short}"
        + (f" or {hint}" if hint else "")
    )
