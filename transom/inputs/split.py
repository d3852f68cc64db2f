"""Which of some texts are set apart: a choice by hash, so that neither order nor other texts matter."""

from collections.abc import Sequence
from hashlib import blake2b


def text_hash(text: str) -> int:
    """Give a text's place among all hashes, a whole number of 64 bits."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def least_share(texts: Sequence[str], share: float) -> list[int]:
    """Choose about a share of the texts by the size of their hashes.

    Equal texts are on one side. Where the share comes to no text or all, the one text with the smallest hash is taken.

    Args:
        texts: what to choose from, at least one.
        share: wanted part of them, from 0 to 1.

    Returns:
        The places of the chosen texts, in order; none where all texts are the same.
    """
    hashes = list(map(text_hash, texts))
    least, most = min(hashes), max(hashes)
    threshold = int(share * 2**64)
    if not least <= threshold < most:
        threshold = least
    return [] if least == most else [place for place, value in enumerate(hashes) if value <= threshold]
