"""Strict reading of UTF-8 text files, with errors that name the file, line and byte."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn, Protocol, runtime_checkable

from transom.errors import DataError
from transom.files.limits import MAX_LINE_BYTES, MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO, MIN_UNPACKED_BYTES_FOR_RATIO
from transom.files.message import phrase
from transom.files.regular_files import open_regular_file

_MAX_MEASURED_BYTES = 1 << 30
_CHECK_INTERVAL_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_WIDE_BOMS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


@runtime_checkable
class LineStream(Protocol):
    """Interface of a binary stream with ``readline``, such as an open file, a decompressed file or standard input."""

    def readline(self, size: int = -1, /) -> bytes:
        """Return the bytes up to and including the next line end.

        The result has at most ``size`` bytes unless ``size`` is negative. It is empty at the end of the stream.
        """
        ...


def read_lines(path: str | Path, allow_empty: bool = False, max_line_bytes: int = MAX_LINE_BYTES) -> list[str]:
    r"""Read the lines of a text file, gzipped or not.

    Only ``\n`` and ``\r\n`` end a line. Other line separators, such as U+2028, U+0085 and form feeds, are ordinary characters. A byte-order
    mark at the start of the file is skipped.

    Args:
        path: a UTF-8 file.
        allow_empty: accept an empty file.
        max_line_bytes: maximum number of bytes per line.

    Returns:
        The lines without their line ends. An empty line is an empty string.

    Raises:
        DataError: the file is missing, empty, not a regular file or not readable, has a line that is too long, or is not clean UTF-8 text.
    """
    with open_bytes(path) as stream:
        lines = list(decode_lines(stream, str(path), max_line_bytes))
    if not lines and not allow_empty:
        raise DataError(f"{path}: expected at least one line, found an empty file; name another file")
    return lines


@contextmanager
def open_bytes(path: str | Path) -> Iterator[LineStream]:
    """Open a file for reading bytes and decompress it if it is gzipped.

    Args:
        path: a regular file.

    Yields:
        The stream of bytes, after decompression.

    Raises:
        DataError: the file cannot be opened or read, is a device or a pipe, is truncated, or exceeds the limits of decompressed size.
            Errors that occur while the stream is read are converted too.
    """
    if "\0" in str(path):
        raise DataError(f"{str(path)!r}: expected a path, found one with a NUL character; remove it")
    try:
        with open_regular_file(path, DataError) as stream:
            if stream.peek(2)[:2] == _GZIP_MAGIC or Path(path).suffix == ".gz":
                with gzip.GzipFile(fileobj=stream) as decompressed:
                    yield _DecompressedLines(decompressed, stream, str(path))
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


class _DecompressedLines:
    """Stream of decompressed bytes that limits their number, because a small gzip file can decompress to any size."""

    def __init__(self, decompressed: gzip.GzipFile, compressed: BinaryIO, name: str) -> None:
        """Store the gzip stream, the compressed stream from which it reads, and the name of the file for messages."""
        self._decompressed, self._compressed, self._name = decompressed, compressed, name
        self._n_bytes, self._n_bytes_at_check = 0, 0

    def readline(self, size: int = -1, /) -> bytes:
        """Return the bytes up to and including the next line end, or an empty string of bytes at the end of the stream.

        Args:
            size: maximum number of bytes to return. A negative value sets no maximum.

        Raises:
            DataError: the decompressed size exceeds the limits.
        """
        pieces, remaining = list[bytes](), size if size >= 0 else MAX_UNPACKED_BYTES
        while remaining:
            piece = self._decompressed.readline(min(remaining, MAX_LINE_BYTES))
            pieces.append(piece)
            remaining -= len(piece)
            self._n_bytes += len(piece)
            if self._n_bytes - self._n_bytes_at_check > _CHECK_INTERVAL_BYTES:
                self._check()
            if not piece or piece.endswith(b"\n"):
                break
        return b"".join(pieces)

    def _check(self) -> None:
        self._n_bytes_at_check = self._n_bytes
        ratio = self._n_bytes / max(self._compressed.tell(), 1)
        if self._n_bytes > MIN_UNPACKED_BYTES_FOR_RATIO and ratio > MAX_UNPACKED_RATIO:
            raise DataError(
                f"{self._name}: expected at most {MAX_UNPACKED_RATIO} decompressed bytes per compressed byte, found {ratio:,.0f} in"
                f" the first {self._n_bytes:,}; if the file is intended to be so, decompress it and name the result"
            )
        if self._n_bytes > MAX_UNPACKED_BYTES:
            raise DataError(
                f"{self._name}: expected at most {MAX_UNPACKED_BYTES:,} decompressed bytes, found more; split the text, or decompress it"
            )


def decode_lines(stream: LineStream, name: str, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Check and decode the lines of a byte stream, such as standard input, one by one.

    Args:
        stream: stream of UTF-8 bytes.
        name: name of the stream in messages.
        max_line_bytes: maximum number of bytes per line.

    Yields:
        Each line without its line end.

    Raises:
        DataError: a line is longer than ``max_line_bytes`` or is not clean UTF-8 text.
    """
    number = 0
    while piece := stream.readline(max_line_bytes + 2):
        number += 1
        where = f"{name}:{number}"
        if number == 1:
            _reject_wide_encoding(piece, name)
        line = piece.removesuffix(b"\n")
        if len(line) < len(piece):
            line = line.removesuffix(b"\r")
        if len(line) > max_line_bytes:
            _reject_long_line(stream, piece, where, max_line_bytes)
        text = _decode(line, where)
        if number == 1:
            text = text.removeprefix("\ufeff")
            if piece == codecs.BOM_UTF8:
                return
        yield text


def check_text(text: str, where: str) -> str:
    """Return a string unchanged if a clean UTF-8 file could contain it, and reject it otherwise.

    Args:
        text: any string, for example from JSON, whose escapes can produce half a surrogate pair.
        where: position of the string, for messages.

    Raises:
        DataError: the string contains a NUL character or half a surrogate pair.
    """
    if "\0" in text:
        raise DataError(phrase("errors.nul", "{where}: expected text, found a NUL character; remove it", where=where))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        english = "{where}: expected text, found half a surrogate pair (U+{code}), which is not a character; remove it"
        raise DataError(phrase("errors.surrogate", english, where=where, code=f"{ord(text[error.start]):04X}")) from error
    return text


def expand_path(path: str) -> Path:
    """Return a recipe's path, with a leading ``~`` replaced by the home folder.

    Raises:
        DataError: the home folder is unknown, or the path contains a NUL character or half a surrogate pair.
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


def _reject_wide_encoding(start: bytes, name: str) -> None:
    encoding = next((encoding for mark, encoding in _WIDE_BOMS.items() if start.startswith(mark)), None)
    halves = start[0:4096:2], start[1:4096:2]
    nuls = [half.count(0) for half in halves]
    if encoding is None and min(nuls) == 0 and max(nuls) >= 2 and max(nuls) > 0.6 * len(halves[0]):
        encoding = "UTF-16LE" if nuls[1] else "UTF-16BE"
    if encoding:
        raise DataError(f"{name}: expected UTF-8, found {encoding}; convert it with iconv -f {encoding} -t UTF-8 {name} > new-file")


def _reject_long_line(stream: LineStream, piece: bytes, where: str, max_line_bytes: int) -> NoReturn:
    if b"\r" in piece[:max_line_bytes]:
        raise DataError(
            f"{where}:{piece.index(13) + 1}: expected lines that end with \\n or \\r\\n, found a carriage return inside a line; remove it"
        )
    size = len(piece)
    while not piece.endswith(b"\n") and size < _MAX_MEASURED_BYTES and (piece := stream.readline(MAX_LINE_BYTES)):
        size += len(piece)
    more = "at least " if size >= _MAX_MEASURED_BYTES else ""
    raise DataError(
        f"{where}: expected lines of at most {max_line_bytes:,} bytes, found one of {more}{size:,} bytes; split it into sentences"
    )
