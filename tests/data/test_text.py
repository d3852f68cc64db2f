"""Every error in a text file is one line that names file, line and byte."""

import gzip
import io
import os
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.data.text import text_io as module
from transom.data.text.text_io import check_text, decode_lines, read_lines
from transom.errors import DataError
from transom.files.limits import MAX_DOCUMENT_LINE_BYTES, MAX_LINE_BYTES

clean = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0\ufeff"))


def written(folder: Path, content: bytes, name: str = "a.txt") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def message_of(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_lines(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message and len(message) < 400
    return message.replace(str(path), "FILE")


@given(st.lists(clean, min_size=1), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_lines_come_back(lines: list[str], end: str, ended: bool) -> None:
    content = end.join(lines) + (end if ended or not lines[-1] else "")
    assert list(decode_lines(io.BytesIO(content.encode()), "x")) == lines


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei"
    assert read_lines(written(tmp_path, f"{text}\nsecond\r\n\nfourth".encode())) == [text, "second", "", "fourth"]


def test_mark_at_the_start_is_left_out_and_elsewhere_is_text(tmp_path: Path) -> None:
    assert read_lines(written(tmp_path, "\ufeffa\n\ufeffb\n".encode())) == ["a", "\ufeffb"]
    assert read_lines(written(tmp_path, "\ufeff\ufeffa".encode())) == ["\ufeffa"]
    assert read_lines(written(tmp_path, "\ufeff\nb".encode())) == ["", "b"]


def test_gzip_is_seen_by_content(tmp_path: Path) -> None:
    packed = gzip.compress("ä\nb\n".encode())
    assert read_lines(written(tmp_path, packed, "a.gz")) == read_lines(written(tmp_path, packed, "a.txt")) == ["ä", "b"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "FILE: expected at least one line, found an empty file"),
        ("\ufeff".encode(), "FILE: expected at least one line, found an empty file"),
        (b"ok\nab\xffc\n", "FILE:2:3: expected UTF-8, found byte 0xff"),
        ("\ufeffa".encode() + b"\xe4b", "FILE:1:5: expected UTF-8, found byte 0xe4"),
        ("ä".encode()[:1], "FILE:1:1: expected UTF-8, found byte 0xc3 (unexpected end of data)"),
        (b"\xed\xa0\x80\n", "FILE:1:1: expected UTF-8, found byte 0xed"),
        (b"a\nb\0c\n", "FILE:2:2: expected text, found a NUL byte"),
        (b"\0" * 100, "FILE:1:1: expected text, found a NUL byte"),
        (b"a\nbc\rd\n", "FILE:2:3: expected lines that end with \\n or \\r\\n, found a carriage return inside a line"),
        (b"a\rb\rc", "FILE:1:2: expected lines that end with \\n or \\r\\n, found a carriage return inside a line"),
        (b"a\r\nb\r\r\n", "FILE:2:2: expected lines that end with \\n or \\r\\n, found a carriage return inside a line"),
        (b"a\r\nb\r", "FILE:2:2: expected lines that end with \\n or \\r\\n, found a carriage return inside a line"),
        ("a dog\n".encode("utf-16"), "FILE: expected UTF-8, found UTF-16; convert it with iconv -f UTF-16 -t UTF-8 FILE > new-file"),
        (b"\xfe\xff" + "a dog\n".encode("utf-16-be"), "FILE: expected UTF-8, found UTF-16;"),
        ("a dog\n".encode("utf-16-le"), "FILE: expected UTF-8, found UTF-16LE; convert it with iconv -f UTF-16LE"),
        ("Zwei große Hunde – da\n".encode("utf-16-be"), "FILE: expected UTF-8, found UTF-16BE;"),
        ("a dog\n".encode("utf-32"), "FILE: expected UTF-8, found UTF-32;"),
        (gzip.compress(b"a\n" * 10000, mtime=0)[:-20], "FILE: expected complete gzip data"),
        (gzip.compress(b"a\n" * 10000, mtime=0)[:20], "FILE: expected complete gzip data"),
        (gzip.compress(b"ab\xff\n", mtime=0), "FILE:1:3: expected UTF-8, found byte 0xff"),
        (gzip.compress(b"", mtime=0), "FILE: expected at least one line, found an empty file"),
    ],
)
def test_bad_content(tmp_path: Path, content: bytes, expected: str) -> None:
    assert message_of(written(tmp_path, content)).startswith(expected)


def test_damaged_gzip(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(os.urandom(5000).hex().encode()))
    packed[len(packed) // 2] ^= 255
    assert "expected gzip data, found damaged data" in message_of(written(tmp_path, bytes(packed)))
    assert "expected gzip data, found damaged data" in message_of(written(tmp_path, b"plain text\n", "a.gz"))


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert message_of(tmp_path / "none.txt") == "FILE: no such file; check the path"
    assert message_of(tmp_path) == "FILE: expected a file, found a folder; choose a file in that folder"
    assert "Not a directory" in message_of(written(tmp_path, b"a\n") / "below")
    assert "File name too long" in message_of(tmp_path / ("x" * 300))
    with pytest.raises(DataError, match="NUL"):
        read_lines("a\0b")

    def refuse(path: Path, flags: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert message_of(tmp_path / "a.txt") == "FILE: cannot be read: Permission denied"


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_longest_line(tmp_path: Path, end: bytes) -> None:
    assert read_lines(written(tmp_path, b"short\n" + b"x" * MAX_LINE_BYTES + end)) == ["short", "x" * MAX_LINE_BYTES]
    message = message_of(written(tmp_path, b"short\n" + b"x" * (MAX_LINE_BYTES + 1) + end))
    assert message.startswith(f"FILE:2: expected lines of at most 1,048,576 bytes, found one of {MAX_LINE_BYTES + 1 + len(end):,} bytes")


def test_huge_line_is_refused_without_taking_it_in(tmp_path: Path) -> None:
    path = tmp_path / "huge.txt"
    with path.open("wb") as file:
        file.write(b"ok\n")
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b"\nmore\n")
    tracemalloc.start()
    message = message_of(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message.startswith("FILE:2:") and "100,000,001 bytes" in message
    assert peak < 10 * MAX_LINE_BYTES


def test_a_device_or_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link"):
        assert message_of(tmp_path / name).startswith("FILE: expected a file, found a device or a pipe; write its content to a file")


@pytest.mark.parametrize("max_line_bytes", [MAX_LINE_BYTES, MAX_DOCUMENT_LINE_BYTES])
@pytest.mark.parametrize("line", [b"\n", b"ab\n", b"a" * 1000 + b"\n", b"\0", b"a"], ids=["empty", "short", "long", "nul", "none"])
def test_a_gzip_bomb_is_refused_while_it_is_unpacked(
    line: bytes, max_line_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_UNPACKED_BYTES_FOR_RATIO", 1 << 16)  # a million empty lines take seconds
    monkeypatch.setattr(module, "MAX_UNPACKED_RATIO", 10)
    unit = line * ((1 << 20) // len(line))
    with gzip.open(tmp_path / "bomb.gz", "wb") as file:
        for _ in range(50):
            file.write(unit)
    with pytest.raises(DataError, match=r"bomb\.gz") as caught:
        read_lines(tmp_path / "bomb.gz", max_line_bytes=max_line_bytes)
    if line.endswith(b"\n") or max_line_bytes > MAX_LINE_BYTES:
        found = re.search(r"at most 10 decompressed bytes per compressed byte, found [0-9,]+ in the first ([0-9,]+)", str(caught.value))
        assert found and int(found[1].replace(",", "")) < 2 << 20, "ten times the 128 KiB that are read at once"


def test_a_gzip_file_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, gzip.compress(b"".join(b"%d\n" % n for n in range(60_000))), "a.gz")
    assert len(read_lines(path)) == 60_000
    monkeypatch.setattr(module, "MAX_UNPACKED_BYTES", 3 << 16)
    assert "expected at most 196,608 decompressed bytes, found more; split the text, or decompress it" in message_of(path)


def test_repeated_lines_of_a_small_file_are_no_bomb(tmp_path: Path) -> None:
    assert len(read_lines(written(tmp_path, gzip.compress(b"ab\n" * 100_000), "a.gz"))) == 100_000


def test_huge_line_of_old_mac_ends_says_so(tmp_path: Path) -> None:
    assert "FILE:1:9: expected lines that end with \\n or \\r\\n, found a carriage return" in message_of(
        written(tmp_path, b"sentence\r" * 200_000)
    )


def test_check_text() -> None:
    assert check_text("a\r\n\u2028😀", "x:1") == "a\r\n\u2028😀"
    for text, found in (("a\0b", "NUL"), ("a\ud800b", "U\\+D800")):
        with pytest.raises(DataError, match=f"x:1: expected text, found .*{found}"):
            check_text(text, "x:1")
