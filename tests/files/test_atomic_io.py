"""A name holds the old content or the new, never a mixture."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.checking import names, one_line
from transom.errors import DiskError
from transom.files import atomic_io
from transom.files.atomic_io import append_line, make_folder, remove, remove_partial_files, write_file, write_folder
from transom.files.safe_read import read_manifest, verify_files


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a"
    write_file(path, b"old")
    write_file(path, lambda: b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == {"a"}


def test_everything_reaches_the_disk_before_and_after_the_name(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor):
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noted_replace(self, target):
        events.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_file(tmp_path / "a", b"x")
    assert events == ["file", "rename", "folder"]
    events.clear()
    write_folder(tmp_path / "b", {"x": b"1", "y": b"2"})
    assert events == ["file", "file", "file", "rename", "folder", "folder"]


def test_a_folder_carries_its_manifest(tmp_path):
    write_folder(tmp_path / "step", {"x": b"one", "y": lambda: b""})
    manifest = read_manifest(tmp_path / "step", atomic_io.re.compile("[xy]"))
    verify_files(tmp_path / "step", manifest, "xy")
    assert manifest["x"]["bytes"] == 3
    assert manifest["y"]["sha256"] == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # of nothing, FIPS 180-2


def test_a_folder_is_replaced_whole(tmp_path):
    write_folder(tmp_path / "step", {"x": b"1", "gone": b"2"})
    write_folder(tmp_path / "step", {"x": b"3"})
    assert names(tmp_path / "step") == {"x", "manifest.json"}
    assert (tmp_path / "step" / "x").read_bytes() == b"3"
    assert names(tmp_path) == {"step"}


@pytest.mark.parametrize("limit", [0, 1, 4095, 4096, 99_999])
def test_a_disk_that_refuses_midway_leaves_the_old_file(tmp_path, limited_files, limit):
    path = tmp_path / "a"
    write_file(path, b"old")
    with limited_files(limit), pytest.raises(DiskError) as error:
        write_file(path, bytes(100_000))
    one_line(error, str(path), "existing files are unchanged", "free some space")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == {"a"}


@pytest.mark.parametrize("limit", [0, 50, 2000, 60_000])
def test_a_disk_that_refuses_midway_leaves_the_old_folder(tmp_path, limited_files, limit):
    write_folder(tmp_path / "step", {"x": b"old"})
    with limited_files(limit), pytest.raises(DiskError) as error:
        write_folder(tmp_path / "step", {"small": bytes(100), "x": bytes(100_000)})
    one_line(error, "step", "existing files are unchanged")
    assert (tmp_path / "step" / "x").read_bytes() == b"old"
    assert names(tmp_path) == {"step"}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full; free some space"),
        (errno.EDQUOT, "disk quota"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "hardware error"),
        (errno.ENOLCK, "No locks available"),
    ],
)
@pytest.mark.parametrize("call", [1, 2, 3])
def test_each_refusal_has_its_words(tmp_path, monkeypatch, number, words, call):
    """A full disk may show only when the data are forced to it, on any of the files."""
    calls, fsync = [], os.fsync

    def refusing(descriptor):
        calls.append(descriptor)
        if len(calls) == call:
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)
    with pytest.raises(DiskError) as error:
        write_folder(tmp_path / "step", {"x": b"1", "y": b"2"})
    one_line(error, words)
    assert names(tmp_path) == set()


def test_names_that_cannot_be_written(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    for name, words in {
        "folder": "expected a file, found a folder with that name",
        "file/below": "found a file where this path needs a folder",
        "n" * 300: "the name is too long",
        "missing/below": "the parent folder does not exist",
        "loop": "found a symbolic link with that name",
        "pipe": "found a device or a pipe",
        "link": "found a symbolic link with that name",
    }.items():
        with pytest.raises(DiskError) as error:
            write_file(tmp_path / name, b"x")
        one_line(error, words, name)
    with pytest.raises(DiskError) as error:
        write_folder(tmp_path / "file", {"x": b"1"})
    one_line(error, "found a file where this path needs a folder")
    with pytest.raises(DiskError):
        make_folder(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"
    assert names(tmp_path) == {"folder", "file", "loop", "link", "pipe"}


def test_an_interrupted_write_cleans_up(tmp_path):
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "a", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "b", {"x": b"1", "y": interrupted})
    assert names(tmp_path) == set()


def test_lines_are_added_whole(tmp_path, limited_files):
    path = tmp_path / "lines"
    append_line(path, "one")
    append_line(path, "two", sync=True)
    with limited_files(10), pytest.raises(DiskError) as error:
        append_line(path, "three")
    one_line(error, "its earlier lines are unchanged")
    assert path.read_text() == "one\ntwo\n"


def test_a_torn_line_is_ended_before_the_next(tmp_path):
    path = tmp_path / "lines"
    path.write_text("one\ntw")
    append_line(path, "three")
    assert path.read_text() == "one\ntw\nthree\n"


def test_lines_never_go_through_a_link(tmp_path):
    (tmp_path / "elsewhere").write_text("mine\n")
    (tmp_path / "lines").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskError) as error:
        append_line(tmp_path / "lines", "x")
    one_line(error, "found a symbolic link with that name")
    assert (tmp_path / "elsewhere").read_text() == "mine\n"


def test_leftovers_go_and_nothing_else(tmp_path):
    kept = {"a", "a.partial", "a.partial-xyz", ".partial-0123abcd", "a.partial-0123abcd.txt"}
    for name in kept | {"a.partial-0123abcd"}:
        (tmp_path / name).write_text("x")
    (tmp_path / "b.partial-00000000").mkdir()
    (tmp_path / "b.partial-00000000" / "x").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_text("mine")
    (tmp_path / "c.partial-00000000").symlink_to(tmp_path / "elsewhere")
    remove_partial_files(tmp_path)
    assert names(tmp_path) == kept | {"elsewhere"}
    assert (tmp_path / "elsewhere" / "x").read_text() == "mine"


def test_removing_a_folder_takes_its_name_first(tmp_path, monkeypatch):
    write_folder(tmp_path / "step", {"x": b"1"})

    def dying(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_io.shutil, "rmtree", dying)
    with pytest.raises(KeyboardInterrupt):
        remove(tmp_path / "step")
    assert not (tmp_path / "step").exists()


def test_a_file_survives_kill_9_at_every_line(python):
    points = python("""
from pathlib import Path
from kills import survive
from transom.files.atomic_io import append_line, remove_partial_files, write_file
path, lines = Path("a"), Path("lines")
path.write_bytes(b"old")
def check():
    assert path.read_bytes() in (b"old", b"new" * 9999)
    path.write_bytes(b"old")
survive(lambda: write_file(path, b"new" * 9999), check)
remove_partial_files(Path("."))
assert [entry.name for entry in Path(".").iterdir()] == ["a"]
def check_lines():
    assert lines.read_text() in ("one\\n", "one\\ntwo\\n")
    lines.write_text("one\\n")
lines.write_text("one\\n")
survive(lambda: append_line(lines, "two"), check_lines)
""").split()
    assert int(points[0]) > 15
    assert int(points[1]) > 8


def test_a_folder_survives_kill_9_at_every_line(python):
    points = python("""
import re, shutil
from pathlib import Path
from kills import survive
from transom.files.safe_read import read_manifest, verify_files
from transom.files.atomic_io import remove, remove_partial_files, write_folder
path = Path("step")
def check():
    if path.exists():
        verify_files(path, read_manifest(path, re.compile("[xy]")), "xy")
        shutil.rmtree(path)
    remove_partial_files(Path("."))
    assert not list(Path(".").iterdir())
survive(lambda: write_folder(path, {"x": b"1" * 9999, "y": b"2"}), check)
def check_removed():
    check()
    write_folder(path, {"x": b"1", "y": b"2"})
write_folder(path, {"x": b"1", "y": b"2"})
survive(lambda: remove(path), check_removed)
""").split()
    assert int(points[0]) > 30
    assert int(points[1]) > 4


WRITER = """
from pathlib import Path
from transom.files.atomic_io import write_file
n = 0
while True:
    n += 1
    content = str(n % 10).encode() * 3_000_000
    print(n, flush=True)
    write_file(Path("a"), content)
"""


def test_a_file_survives_kill_9_in_the_middle_of_a_write(tmp_path):
    """Killed as soon as it says that it begins to write, so that the signal lands inside the system's own calls."""
    (tmp_path / "a").write_bytes(b"0" * 3_000_000)
    root = Path(__file__).parents[2]
    for round_number in range(1, 7):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(round_number):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        content = (tmp_path / "a").read_bytes()
        assert len(content) == 3_000_000
        assert len(set(content)) == 1
    remove_partial_files(tmp_path)
    assert names(tmp_path) == {"a"}
