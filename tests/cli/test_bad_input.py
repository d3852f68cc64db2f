"""Bad input of every kind: one ``error:`` line, exit 2, before step 1, and nothing lost or half-written."""

import gzip
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Call, Trained, sets, write_pairs

GOOD = "ab\nba\ncab\n" * 20

BAD = {
    "unequal line counts": (GOOD.replace("ba\n", "", 1).encode(), "found 59 and 60 lines"),
    "invalid UTF-8": (GOOD.encode() + b"a\xffb\n", ":61:2: expected UTF-8, found byte 0xff"),
    "UTF-16": (GOOD.encode("utf-16"), "found UTF-16"),
    "lone CR": (GOOD.encode() + b"a\rb\n", ":61:2: expected lines that end with \\n or \\r\\n, found a carriage return inside a line"),
    "NUL": (GOOD.encode() + b"a\0b\n", ":61:2: expected text, found a NUL byte"),
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


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("recipe.toml", "a = " + "[" * 900),
        ("recipe.toml", ".".join("a" * 20_000) + " = 1"),
        ("recipe.toml", "[training]\nseed = " + "9" * 5_000),
        ("recipe.toml", "[decoding]\nmax_length_ratio = 1e308"),
        ("tokenizer.json", '{"format_version": 1, "source": ' + "9" * 5_000 + "}"),
        ("tokenizer.json", '{"format_version": 1, "source": NaN}'),
        ("config.json", '{"format_version": 1, "model": {"kind": "seq2seq", "d_ff": ' + "9" * 5_000 + "}}"),
        ("config.json", '{"format_version": 1, "model": {"kind": "seq2seq", "dropout": NaN}}'),
        ("config.json", '{"format_version": 1, "model": {"kind": "seq2seq", "dropout": 1e400}}'),
    ],
)
def test_files_of_a_run_that_unfold(file: str, content: str, copied: Path, transom: Call) -> None:
    (copied / file).write_text(content)
    assert str(copied / file) in transom("translate", copied, "ab").error


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "recipe.toml"])
def test_files_of_a_run_that_never_end(file: str, copied: Path, transom: Call) -> None:
    for special in (lambda path: os.mkfifo(path), lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir()):
        path = copied / file
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        special(path)
        assert str(path) in transom("translate", copied, "ab").error


def test_a_device_or_a_pipe_is_read_by_no_command(trained: Trained, transom: Call, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for special in (tmp_path / "pipe.toml", Path("/dev/zero")):
        for words in (
            ["tokenizer", "show", special],
            ["train", special],
            ["translate", trained.folder, "--input", special],
            ["evaluate", trained.folder, "--source", special, "--target", trained.target],
            ["evaluate", trained.folder, "--source", trained.source, "--target", special],
            ["train", "translation", "--source", special, "--target", trained.target, "--out", tmp_path / "run"],
            ["compare-attention", trained.folder, "--input", special],
            ["train", "text-bpe", "--text", special, "--out", tmp_path / "run"],
            ["train", "images", "--images", special, "--out", tmp_path / "run"],
        ):
            assert f"{special}: expected a file, found a device or a pipe" in transom(*words).error, words


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
    assert "expected an empty folder or a run folder, found the file" in transom(*trained.command, "--out", tmp_path).error
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert "thesis.txt" in transom(*trained.command, "--out", tmp_path / "thesis.txt").error


def test_a_resumed_run_keeps_its_recipe(copied: Path, trained: Trained, transom: Call) -> None:
    error = transom(*trained.command, "--out", copied, "--resume", "--set", "model.d_ff=32").error
    assert "d_ff" in error and "keeps its" in error


def test_a_resumed_run_keeps_its_data(transom: Call, tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path, 120)
    command = ("train", "translation", "--source", source, "--target", target, "--out", tmp_path / "run", *sets(*TINY), "--json")
    assert transom(*command, "--set", "training.max_steps=5").code == 0
    target.write_text(target.read_text().replace("ba", "bb"))
    error = transom(*command, "--resume", "--set", "training.max_steps=7").error
    assert "restore the files, or start a new run with another --out" in error
    write_pairs(tmp_path, 120)
    assert transom(*command, "--resume", "--set", "training.max_steps=7").json["step"] == 7
    (tmp_path / "moved").mkdir()
    moved = [path.rename(tmp_path / "moved" / path.name) for path in (source, target)]
    elsewhere = [moved[0] if part == source else moved[1] if part == target else part for part in command]
    assert transom(*elsewhere, "--resume", "--set", "training.max_steps=9").json["step"] == 9


def test_a_run_without_its_recipe_does_not_go_on(copied: Path, trained: Trained, transom: Call) -> None:
    (copied / "recipe.toml").unlink()
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != ".transom.lock"}
    assert "expected the recipe of the resumed run" in transom(*trained.command, "--out", copied, "--resume").error
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.d_ff=1000000000000", "model: expected a model that can be trained in"),
        ("model.d_ff=10000000000000000000000", "model.d_ff: expected a whole number of at most 64 bits"),
        ("model.max_seq_len=2000000", "model.max_seq_len: expected a sinusoidal position table of at most 16,777,216 numbers"),
        ("model.max_seq_len=2", "expected at least one pair to train on"),
        ("model.max_seq_len=3", "expected at most model.max_seq_len = 3 tokens per sentence"),
        ("training.batch_tokens=1", "training.batch_tokens: expected at least"),
    ],
)
def test_a_run_that_cannot_begin_leaves_nothing_in_the_way(
    override: str, message: str, trained: Trained, transom: Call, tmp_path: Path
) -> None:
    assert message in transom(*trained.command, "--out", tmp_path / "run", "--set", override).error
    assert not (tmp_path / "run").exists()


def test_paths_with_a_tilde(trained: Trained, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell reads ``~`` on the command line, transom in a recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(trained.source.parent))
    (tmp_path / "~nobody.s").write_text("ab\n")
    assert transom("score", trained.folder, "--source", "~nobody.s", "--target", "~nobody.s", "--json").code == 0
    files = f'data.train={{ source = "{trained.source.name}", target = "{trained.target.name}" }}'
    command = ("train", "translation", *sets(*TINY, files, "training.max_steps=1"), "--json")
    assert transom(*command, "--out", "run", "--set", "data.root=~").code == 0
    assert f'root = "{trained.source.parent}"' in (tmp_path / "run" / "recipe.toml").read_text()
    assert "an unknown home folder" in transom(*command, "--out", "other", "--set", "data.root=~nobody-at-all/x").error


def test_a_file_name_that_is_not_utf8(trained: Trained, transom: Call, tmp_path: Path) -> None:
    odd = tmp_path / "odd\udcff"
    shutil.copy(trained.source, odd)
    error = transom("train", "translation", "--source", odd, "--target", odd, "--out", tmp_path / "run").error
    assert error == f"error: {str(odd)!a}: expected a path in UTF-8, the encoding of recipes, found other bytes; rename the file or folder"


def test_a_recipe_with_a_typo(transom: Call, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('[data]\ngenerate = "copy"\n[training]\nmax_stps = 3\n')
    error = transom("train", tmp_path / "my.toml", "--out", tmp_path / "run").error
    assert (
        error
        == f"error: {tmp_path / 'my.toml'}:4: unknown field training.max_stps; did you mean training.max_steps or training.max_minutes?"
    )


def test_an_out_that_is_not_utf8_is_refused_before_training(trained: Trained, transom: Call, tmp_path: Path) -> None:
    assert "expected a folder name in UTF-8" in transom(*trained.command, "--out", tmp_path / "odd\udcff").error
    assert not list(tmp_path.iterdir())
