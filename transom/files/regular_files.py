"""Read untrusted files: regular files of bounded size, and JSON with bounded numbers and nesting."""

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

_UNUSUAL_NUMBER = re.compile(rf"[0-9]{{{MAX_DIGITS}}}|[eE][+-]?[0-9]{{3}}|NaN|Infinity")
"""Pattern of numbers to check: many digits, an exponent of three digits, NaN or Infinity. It can also match inside a JSON string."""


def resolve_path(path: Path) -> Path:
    """Return the absolute path with symbolic links resolved; the target need not exist.

    Raises:
        ConfigError: the symbolic links form a loop.
    """
    resolved = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a loop before Python 3.13
    if any(folder.is_symlink() for folder in (resolved, *resolved.parents)):
        raise ConfigError(f"{path}: expected a path, found symbolic links that form a loop; remove the links or choose another path")
    return resolved


def open_regular_file(path: str | Path, error: type[TransomError]) -> BufferedReader:
    """Open a regular file for reading; devices and pipes are refused, because reading them might never end.

    Args:
        path: the file; symbolic links are followed.
        error: class of the exception to raise.

    Raises:
        TransomError: (of class ``error``) the path is a folder, a device, a pipe or a socket.
        OSError: the file is missing or cannot be opened.
    """
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    )  # O_NONBLOCK: opening a pipe would wait for its writer
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise error(f"{path}: expected a file, found a folder; choose a file in that folder")
        if not stat.S_ISREG(mode):
            raise error(f"{path}: expected a file, found a device or a pipe; write its content to a file and pass that file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular_file(path: str | Path, max_bytes: int, what: str, error: type[TransomError]) -> bytes:
    """Read a regular file of at most ``max_bytes`` bytes.

    Args:
        path: the file; symbolic links are followed.
        max_bytes: size limit.
        what: noun phrase for the expected file in the error message, such as "a recipe".
        error: class of the exception to raise.

    Raises:
        TransomError: (of class ``error``) the path is not a regular file, or the file is too large.
        OSError: the file is missing or cannot be read.
    """
    with open_regular_file(path, error) as file:
        data, n = b"", max(os.fstat(file.fileno()).st_size + 1, 2**16)  # read(max_bytes + 1) would allocate as many bytes
        while len(data) <= max_bytes and (part := file.read(min(max_bytes + 1 - len(data), n))):
            data += part
        if len(data) > max_bytes:
            size = max(os.fstat(file.fileno()).st_size, len(data))
            raise error(f"{path}: expected at most {max_bytes:,} bytes, found {size:,}; is this {what}?")
    return data


def parse_json(data: str | bytes, finite: bool = True) -> Any:
    """Parse JSON; refuse integers of more than ``MAX_DIGITS`` digits and more than ``MAX_DEPTH`` nesting levels.

    Args:
        data: UTF-8 text.
        finite: reject NaN, Infinity (which Python's parser accepts) and numbers that overflow to infinity.

    Raises:
        ValueError: the text is not JSON or exceeds a limit. The message is the one of ``json.loads``, or a noun phrase such as "more than
            50 nesting levels".
    """
    text = data.decode() if isinstance(data, bytes) else data
    try:
        if _UNUSUAL_NUMBER.search(text):  # the callbacks below make parsing slower
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
    nested = [value]
    for _ in range(MAX_DEPTH):
        items = (item for part in nested if isinstance(part, dict | list) for item in (part.values() if isinstance(part, dict) else part))
        nested = [item for item in items if isinstance(item, dict | list)]
        if not nested:
            return value
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"more than {MAX_DEPTH} nesting levels"


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits, more than the {MAX_DIGITS} allowed")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits:.40}, which is too large")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is not JSON")
