"""What tests of the disk look at: the names in a folder, and whether a message is one line."""

from pathlib import Path

import pytest


def names(folder: Path) -> set[str]:
    """List a folder."""
    return {path.name for path in folder.iterdir()}


def one_line(error: pytest.ExceptionInfo[Exception], *words: str) -> None:
    """Check that an error's message is one line that holds these words."""
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message
