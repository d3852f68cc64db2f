"""Strict reading of UTF-8 text, one sentence per line; every error names its file, line and byte."""

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
    """A binary stream with ``readline``: an open file, a decompressed one, or standard input."""

    def readline(self, size: int = -1, /) -> bytes:
        """Return the bytes up to and including the next line end, at most ``size`` of them; empty at the end of the stream."""
        ...


def read_lines(path: str | Path, empty: bool = False, most_bytes: int = MAX_LINE_BYTES) -> list[str]:
    r"""Read the lines of a text file, gzipped or not.

    Only ``\n`` and ``\r\n`` end a line: U+2028, U+0085, form feeds and the like are ordinary characters. A byte-order mark at the
    start is skipped.

    Args:
        path: a UTF-8 file.
        allow_empty: accept an empty file.
        most_bytes: maximum number of bytes per line.

    Returns:
        The lines without their line ends; an empty line is an empty string.

    Raises:
        DataError: the file is missing, empty, not a file, not readable, or not clean UTF-8 text; the message names file, line and byte.
    """
    with open_bytes(path) as stream:
        lines = list(decode_lines(stream, str(path), most_bytes))
    if not lines and not empty:
        raise DataError(f"{path}: expected at least one line, found an empty file; name another file")
    return lines


@contextmanager
def open_bytes(path: str | Path) -> Iterator[ByteLines]:
    """Open a file for reading bytes and decompress it if its content is gzip; read errors become a DataError.

    Args:
        path: a regular file.

    Yields:
        The stream of (decompressed) bytes.

    Raises:
        DataError: the file cannot be opened or read, is a device or a pipe, is truncated, or exceeds the limits of decompressed size.
    """
    if "\0" in str(path):
        raise DataError(f"{str(path)!r}: expected a path, found one with a NUL character; remove it")
    try:
        with open_regular(path, DataError) as stream:
            if stream.peek(2)[:2] == _GZIP_MAGIC or Path(path).suffix == ".gz":
                with gzip.GzipFile(fileobj=stream) as unpacked:
                    yield _Unpacked(unpacked, stream, str(path))
            else:
                yield stream
    except EOFError as error:
        raise DataError(f"{path}: expected complete gzip data, found a truncated file; copy the whole file again") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: expected gzip data, found damaged data ({error}); copy the file again, or rename it if it is not gzipped"
        ) from error
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


class _Unpacked:
    """Decompressed bytes, counted while reading, because a small file can decompress to any size."""

    def __init__(self, unpacked: gzip.GzipFile, packed: BinaryIO, name: str) -> None:
        """Wrap a gzip stream, the compressed stream under it, and the file's name for messages."""
        self._unpacked, self._packed, self._name = unpacked, packed, name
        self._done, self._checked = 0, 0

    def readline(self, size: int = -1, /) -> bytes:
        """Return the bytes up to and including the next line end, at most ``size`` of them; empty at the end of the stream.

        Raises:
            DataError: the decompressed size exceeds the limits.
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
                f"{self._name}: expected at most {MAX_UNPACKED_RATIO} decompressed bytes per compressed byte, found {ratio:,.0f} in"
                f" the first {self._done:,}; if the file is intended to be so, decompress it and name the result"
            )
        if self._done > MAX_UNPACKED_BYTES:
            raise DataError(
                f"{self._name}: expected at most {MAX_UNPACKED_BYTES:,} decompressed bytes, found more; split the text, or decompress it"
            )


def decode_lines(stream: ByteLines, name: str, most_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Check and decode the lines of a byte stream, such as standard input, one by one.

    Args:
        stream: UTF-8 bytes.
        name: name of the stream in messages.
        most_bytes: maximum number of bytes per line.

    Yields:
        Each line without its line end.

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
    """Reject a string that no clean UTF-8 file can contain, such as a lone surrogate from a JSON escape.

    Args:
        text: any string.
        where: position of the string, for messages.

    Returns:
        The same string.

    Raises:
        DataError: the string contains a NUL or half a surrogate pair.
    """
    if "\0" in text:
        raise DataError(f"{where}: expected text, found a NUL character; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: expected text, found half a surrogate pair (U+{ord(text[error.start]):04X}), which is no character; remove it"
        ) from error
    return text


def expanded(path: str) -> Path:
    """Return a recipe's path with ``~`` expanded to the home folder.

    Raises:
        DataError: there is no such home folder, or the path is not UTF-8, so that no recipe can contain it.
    """
    check_text(path, f"the name {path!a}")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(f"{path}: expected a path, found an unknown home folder ({error}); write the full path") from error


def _decode(line: bytes, where: str) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}:{error.start + 1}: expected UTF-8, found byte 0x{line[error.start]:02x} ({error.reason});"
            " convert the file, for instance with iconv -f LATIN1 -t UTF-8"
        ) from error
    if "\r" in text:
        raise DataError(
            f"{where}:{line.index(13) + 1}: expected lines that end with \\n or \\r\\n, found a carriage return inside a line; remove it"
        )
    if "\0" in text:
        raise DataError(f"{where}:{line.index(0) + 1}: expected text, found a NUL byte; remove it or name another file")
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
        raise DataError(
            f"{where}:{piece.index(13) + 1}: expected lines that end with \\n or \\r\\n, found a carriage return inside a line; remove it"
        )
    size = len(piece)
    while not piece.endswith(b"\n") and size < _COUNTED_BYTES and (piece := stream.readline(MAX_LINE_BYTES)):
        size += len(piece)
    more = "at least " if size >= _COUNTED_BYTES else ""
    raise DataError(f"{where}: expected lines of at most {most_bytes:,} bytes, found one of {more}{size:,} bytes; split it into sentences")
