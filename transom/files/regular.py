"""Files from outside, read with care: regular files only, of a bounded size, and JSON without surprises."""

import json
import math
import os
import re
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from transom.errors import ConfigError, TransomError
from transom.files.limits import MAX_DEPTH, MAX_DIGITS

_NOT_PLAIN = re.compile(rf"[0-9]{{{MAX_DIGITS}}}|[eE][+-]?[0-9]{{3}}|NaN|Infinity")
"""What a number of too many digits, or one that is not finite, cannot do without; it may also stand in a string."""


def resolved(path: Path) -> Path:
    """Make a path absolute and follow its symbolic links; what it names need not exist.

    Raises:
        ConfigError: its links lead in a circle.
    """
    real = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a circle, before Python 3.13
    if any(place.is_symlink() for place in (real, *real.parents)):
        raise ConfigError(f"{path}: expected a path, found symbolic links that lead in a circle; remove them or name another place")
    return real


def open_regular(path: str | Path, error: type[TransomError]) -> BufferedReader:
    """Open a regular file for reading, checked by its descriptor: reading a device or a pipe might never end.

    Args:
        path: the file; symbolic links are followed.
        error: the class to raise.

    Raises:
        TransomError: it is a folder, a device, a pipe or a socket.
        OSError: it is missing or cannot be opened.
    """
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    )  # opening a pipe would wait for its writer
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise error(f"{path}: expected a file, found a folder; name a file in it")
        if not stat.S_ISREG(mode):
            raise error(f"{path}: expected a file, found a device or a pipe; write its content to a file and name that")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, max_bytes: int, what: str, error: type[TransomError]) -> bytes:
    """Read a regular file of at most ``max_bytes`` bytes; arguments as in ``open_regular``, and ``what`` it should be, for people."""
    with open_regular(path, error) as file:
        data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            size = max(os.fstat(file.fileno()).st_size, len(data))
            raise error(f"{path}: expected at most {max_bytes:,} bytes, found {size:,}; is this {what}?")
    return data


def parse_json(data: str | bytes, finite: bool = True) -> Any:
    """Parse JSON whose whole numbers have at most ``MAX_DIGITS`` digits, and whose nesting is at most ``MAX_DEPTH`` deep.

    Args:
        data: UTF-8 text.
        finite: refuse numbers that are not finite, among them NaN and Infinity, which are Python's addition.

    Raises:
        ValueError: it is something else; the message says what, in a few words.
    """
    text = data.decode() if isinstance(data, bytes) else data
    try:
        if _NOT_PLAIN.search(text):  # only then is each number looked at, which takes time
            value = json.loads(
                text,
                parse_int=_parse_int,
                parse_float=_parse_float if finite else None,
                parse_constant=_refuse_constant if finite else None,
            )
        else:
            value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(MAX_DEPTH):
        items = (item for part in level if isinstance(part, dict | list) for item in (part.values() if isinstance(part, dict) else part))
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"nested more than {MAX_DEPTH} deep"


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits, {MAX_DIGITS} are the most")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits:.40}, which is too large")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no JSON")
