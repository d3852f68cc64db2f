"""Bad input of every kind: one ``error:`` line, exit 2, before step 1, and nothing lost or half-written."""

import gzip
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Call, Trained, sets

GOOD = "ab\nba\ncab\n" * 20

BAD = {
    "unequal line counts": (GOOD.replace("ba\n", "", 1).encode(), "has 59 lines and"),
    "invalid UTF-8": (GOOD.encode() + b"a\xffb\n", ":61:2: expected UTF-8, found byte 0xff"),
    "UTF-16": (GOOD.encode("utf-16"), "found UTF-16"),
    "lone CR": (GOOD.encode() + b"a\rb\n", ":61:2: found a carriage return inside a line"),
    "NUL": (GOOD.encode() + b"a\0b\n", ":61:2: found a NUL byte"),
    "empty": (b"", "expected at least one line, found an empty file"),
    "broken gzip": (gzip.compress(GOOD.encode())[:-9], "source.bad"),
    "100 MB line": (b"a" * (2 << 20), "expected lines of at most 1,048,576 bytes"),
}


def attempt(transom: Call, folder: Path, source: Path) -> str:
    """Train on a source file; return the error after making sure that the run folder holds no model."""
    (folder / "good.target").write_text(GOOD)
    out = folder / "run"
    files = ("--source", source, "--target", folder / "good.target")
    error = transom("train", "translation", *files, "--out", out, *sets(*TINY)).error
    left = {path.name for path in out.rglob("*")} if out.exists() else set()
    assert left <= {".transom.lock"}, "a run that never began leaves no files"
    return error


@pytest.mark.parametrize("name", BAD)
def test_training_files(name: str, transom: Call, tmp_path: Path) -> None:
    content, message = BAD[name]
    (tmp_path / "source.bad").write_bytes(content)
    assert message in attempt(transom, tmp_path, tmp_path / "source.bad")


def test_a_folder_and_a_missing_file(transom: Call, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert str(tmp_path / "folder") in attempt(transom, tmp_path, tmp_path / "folder")
    assert "no such file" in attempt(transom, tmp_path, tmp_path / "missing")


def test_harmless_oddities_are_read(transom: Call, tmp_path: Path) -> None:
    odd = b"\xef\xbb\xbf" + GOOD.replace("ab\n", "a\u2028b\r\n").encode()
    (tmp_path / "odd.source").write_bytes(gzip.compress(odd))
    (tmp_path / "good.target").write_text(GOOD)
    files = ("--source", tmp_path / "odd.source", "--target", tmp_path / "good.target")
    assert transom("train", "translation", *files, "--out", tmp_path / "run", *sets(*TINY, "training.max_steps=1"), "--json").code == 0


@pytest.fixture
def copied(trained: Trained, tmp_path: Path) -> Path:
    """Give a copy of a run to damage."""
    return Path(shutil.copytree(trained.folder, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model.safetensors", lambda content: content[: len(content) // 2]),
        ("model.safetensors", lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]),
        ("model.safetensors", lambda content: b"PK\x03\x04" + content),
        ("model.safetensors", lambda content: b""),
        ("config.json", lambda content: content[:-4]),
        ("config.json", lambda content: content.replace(b'"d_model": 16', b'"d_model": 16000000')),
        ("config.json", lambda content: b"[" * 100_000),
        ("tokenizer.json", lambda content: content[:-9]),
        ("tokenizer.json", lambda content: b"\xff" + content),
        ("recipe.toml", lambda content: content + b"beam = 3\n"),
    ],
)
def test_damaged_runs(file: str, damage, copied: Path, transom: Call) -> None:  # type: ignore[no-untyped-def]
    before = (copied / file).read_bytes()
    after = damage(before)
    assert after != before
    (copied / file).write_bytes(after)
    assert str(copied / file) in transom("translate", copied, "ab").error


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_missing_files_of_a_run(file: str, copied: Path, transom: Call) -> None:
    (copied / file).unlink()
    assert file in transom("translate", copied, "ab").error


def test_output_that_cannot_be_written(trained: Trained, transom: Call, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("ab\n")
    for where in (tmp_path, tmp_path / "missing" / "out", Path("/dev/full")):
        assert str(where) in transom("translate", trained.folder, "--input", tmp_path / "in", "--output", where).error
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_an_out_that_is_no_run_is_left_alone(trained: Trained, transom: Call, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    assert "not empty and not a run's folder" in transom(*trained.command, "--out", tmp_path).error
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert "thesis.txt" in transom(*trained.command, "--out", tmp_path / "thesis.txt").error


def test_a_resumed_run_keeps_its_recipe(copied: Path, trained: Trained, transom: Call) -> None:
    error = transom(*trained.command, "--out", copied, "--resume", "--set", "model.d_ff=32").error
    assert "d_ff" in error and "keeps its" in error


def test_a_recipe_with_a_typo(transom: Call, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('[data]\ngenerate = "copy"\n[training]\nmax_stps = 3\n')
    error = transom("train", tmp_path / "my.toml", "--out", tmp_path / "run").error
    assert (
        error
        == f"error: {tmp_path / 'my.toml'}:4: unknown field training.max_stps; did you mean training.max_steps or training.max_minutes?"
    )
