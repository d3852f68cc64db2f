"""Suggestions for mistyped names."""

import difflib
from collections.abc import Sequence


def suggest(name: str, known: Sequence[str], otherwise: str = "") -> str:
    """Suggest the closest names to a mistyped one; if none is close, return ``otherwise``, by default a list of all known names.

    >>> suggest("trian", ["train", "translate"]), suggest("x", ["train", "translate"])
    ('did you mean train?', 'known: train, translate')
    """
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else otherwise or f"known: {', '.join(known)}"
