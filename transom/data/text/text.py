"""Strict reading of text: a sentence a line, UTF-8, and every doubt named with its place."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn, Protocol, runtime_checkable

from transom.errors import DataError
from transom.files.limits import MAX_LINE_BYTES, MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO, UNPACKED_FREE_BYTES
from transom.files.regular import open_regular

_COUNTED_BYTES = 1 << 30
_CHECKED_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_WIDE_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


@runtime_checkable
class ByteLines(Protocol):
    """A stream that gives its bytes line by line: an open file, an unpacked one, standard input."""

    def readline(self, size: int = -1, /) -> bytes:
        """Give the bytes up to and with the next line end, or ``size`` of them, or none at the end."""
        ...


def read_lines(path: str | Path, empty: bool = False, most_bytes: int = MAX_LINE_BYTES) -> list[str]:
    r"""Read a text file, a sentence a line, gzipped or not.

    Only ``\n`` and ``\r\n`` end a line: U+2028, U+0085, form feeds and the like are ordinary characters. A byte-order mark at the
    start is left out.

    Args:
        path: a UTF-8 file.
        empty: whether there may be nothing in it.
        most_bytes: of a line.

    Returns:
        The lines without their ends; an empty line is an empty string.

    Raises:
        DataError: the file is missing, empty, not a file, not readable, or not clean UTF-8 text; file, line and byte are named.
    """
    with open_bytes(path) as stream:
        lines = list(decode_lines(stream, str(path), most_bytes))
    if not lines and not empty:
        raise DataError(f"{path}: expected at least one line, found an empty file")
    return lines


@contextmanager
def open_bytes(path: str | Path) -> Iterator[ByteLines]:
    """Open a file for reading bytes, unpacked if its content is gzip; failures of reading become a DataError.

    Args:
        path: a regular file.

    Yields:
        The stream of (unpacked) bytes.

    Raises:
        DataError: the file cannot be opened, is a device or a pipe, fails or ends too early while it is read, or unpacks to too much.
    """
    if "\0" in str(path):
        raise DataError(f"{str(path)!r}: expected a path, found one with a NUL character")
    try:
        with open_regular(path, DataError) as stream:
            if stream.peek(2)[:2] == _GZIP_MAGIC or Path(path).suffix == ".gz":
                with gzip.GzipFile(fileobj=stream) as unpacked:
                    yield _Unpacked(unpacked, stream, str(path))
            else:
                yield stream
    except EOFError as error:
        raise DataError(f"{path}: the gzip data end too early; copy the whole file again") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: not intact gzip data ({error}); copy the file again, or rename it if it is not gzipped") from error
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


class _Unpacked:
    """Unpacked bytes, counted as they come: a small file can hold any number of them."""

    def __init__(self, unpacked: gzip.GzipFile, packed: BinaryIO, name: str) -> None:
        """Start at the beginning of a file."""
        self._unpacked, self._packed, self._name = unpacked, packed, name
        self._done, self._checked = 0, 0

    def readline(self, size: int = -1, /) -> bytes:
        """Give the bytes up to and with the next line end, or ``size`` of them, or none at the end.

        Raises:
            DataError: the file unpacks to more than the limits allow.
        """
        pieces, left = list[bytes](), size if size >= 0 else MAX_UNPACKED_BYTES
        while left:
            piece = self._unpacked.readline(min(left, MAX_LINE_BYTES))
            pieces.append(piece)
            left -= len(piece)
            self._done += len(piece)
            if self._done - self._checked > _CHECKED_BYTES:
                self._check()
            if not piece or piece.endswith(b"\n"):
                break
        return b"".join(pieces)

    def _check(self) -> None:
        self._checked = self._done
        ratio = self._done / max(self._packed.tell(), 1)
        if self._done > UNPACKED_FREE_BYTES and ratio > MAX_UNPACKED_RATIO:
            raise DataError(
                f"{self._name}: expected at most {MAX_UNPACKED_RATIO} unpacked bytes per packed byte, found {ratio:,.0f} in the first"
                f" {self._done:,}; if it is meant to be so, unpack the file and name that"
            )
        if self._done > MAX_UNPACKED_BYTES:
            raise DataError(
                f"{self._name}: expected at most {MAX_UNPACKED_BYTES:,} unpacked bytes, found more; name a part of the text, or unpack it"
            )


def decode_lines(stream: ByteLines, name: str, most_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Check and decode the lines of a byte stream, such as standard input, one by one.

    Args:
        stream: UTF-8 bytes.
        name: what messages call the stream.
        most_bytes: of a line.

    Yields:
        Each line without its end.

    Raises:
        DataError: a line is longer than ``most_bytes`` or is not clean UTF-8 text.
    """
    number = 0
    while piece := stream.readline(most_bytes + 2):
        number += 1
        where = f"{name}:{number}"
        if number == 1:
            _refuse_wide(piece, name)
        line = piece.removesuffix(b"\n")
        if len(line) < len(piece):
            line = line.removesuffix(b"\r")
        if len(line) > most_bytes:
            _refuse_long(stream, piece, where, most_bytes)
        text = _decode(line, where)
        if number == 1:
            text = text.removeprefix("\ufeff")
            if piece == codecs.BOM_UTF8:
                return
        yield text


def check_text(text: str, where: str) -> str:
    """Refuse a string that no clean UTF-8 file could hold, such as one out of JSON escapes.

    Args:
        text: any string.
        where: what the message calls its place.

    Returns:
        The same string.

    Raises:
        DataError: there is a NUL or half a surrogate pair in it.
    """
    if "\0" in text:
        raise DataError(f"{where}: found a NUL character; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: found half a surrogate pair (U+{ord(text[error.start]):04X}), which is no character; remove it"
        ) from error
    return text


def expanded(path: str) -> Path:
    """Read a path of a recipe: ``~`` is the home folder.

    Raises:
        DataError: there is no such home, or the name is not UTF-8, which a recipe cannot hold.
    """
    check_text(path, f"the name {path!a}")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(f"{path}: expected a path, found a home folder that cannot be told ({error}); spell the path out") from error


def _decode(line: bytes, where: str) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}:{error.start + 1}: expected UTF-8, found byte 0x{line[error.start]:02x} ({error.reason});"
            " convert the file, for instance with iconv -f LATIN1 -t UTF-8"
        ) from error
    if "\r" in text:
        raise DataError(f"{where}:{line.index(13) + 1}: found a carriage return inside a line; end lines with \\n, or with \\r\\n")
    if "\0" in text:
        raise DataError(f"{where}:{line.index(0) + 1}: found a NUL byte; expected text, remove it or name another file")
    return text


def _refuse_wide(start: bytes, name: str) -> None:
    encoding = next((encoding for mark, encoding in _WIDE_MARKS.items() if start.startswith(mark)), None)
    halves = start[0:4096:2], start[1:4096:2]
    nuls = [half.count(0) for half in halves]
    if encoding is None and min(nuls) == 0 and max(nuls) >= 2 and max(nuls) > 0.6 * len(halves[0]):
        encoding = "UTF-16LE" if nuls[1] else "UTF-16BE"
    if encoding:
        raise DataError(f"{name}: expected UTF-8, found {encoding}; convert it with iconv -f {encoding} -t UTF-8 {name} > new-file")


def _refuse_long(stream: ByteLines, piece: bytes, where: str, most_bytes: int) -> NoReturn:
    if b"\r" in piece[:most_bytes]:
        raise DataError(f"{where}:{piece.index(13) + 1}: found a carriage return inside a line; end lines with \\n, or with \\r\\n")
    size = len(piece)
    while not piece.endswith(b"\n") and size < _COUNTED_BYTES and (piece := stream.readline(MAX_LINE_BYTES)):
        size += len(piece)
    more = "at least " if size >= _COUNTED_BYTES else ""
    raise DataError(f"{where}: expected lines of at most {most_bytes:,} bytes, found one of {more}{size:,} bytes; break it into sentences")
