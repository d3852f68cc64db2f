"""The library is compiled where it can be and made anew where it is damaged; where it cannot, the reason is told and PyTorch does it."""

import _ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.decoding.test_compiled import model_of, needs_library
from transom.decoding import native as natives
from transom.decoding.flat import FlatSeq2Seq
from transom.decoding.native import SWITCH, compiled, native
from transom.decoding.searcher import searcher_of
from transom.errors import ConfigError


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("transom.decoding.searcher.native", native.__wrapped__)
    monkeypatch.setattr("transom.decoding.compiled.native", native.__wrapped__)
    return monkeypatch


def test_it_can_be_switched_off(uncached: pytest.MonkeyPatch) -> None:
    uncached.setenv(SWITCH, "0")
    assert isinstance(searcher_of(model_of(dtype=torch.bfloat16)), FlatSeq2Seq)
    with pytest.raises(ConfigError, match=f"and {SWITCH}=0; take auto"):
        searcher_of(model_of(), eight_bits=True)


@needs_library
def test_without_a_compiler_pytorch_does_it(uncached: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uncached.setenv("PATH", str(tmp_path))
    uncached.delenv("CXX", raising=False)
    assert "no C++ compiler was found" in native.__wrapped__().reason
    assert isinstance(searcher_of(model_of(dtype=torch.bfloat16)), FlatSeq2Seq)


@needs_library
def test_a_compiler_that_fails_is_told(uncached: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'step.cpp:1: error: no such header' >&2\nexit 1\n")
    compiler.chmod(0o755)
    uncached.setenv("CXX", str(compiler))
    uncached.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert native.__wrapped__().reason == f"{compiler} could not make it: step.cpp:1: error: no such header"
    assert list((tmp_path / "cache" / "transom").iterdir()) == []
    (tmp_path / "file").touch()  # and so is a cache folder that cannot be made
    uncached.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "could not make it" in native.__wrapped__().reason


@needs_library
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("printf 'step.cpp:1: Fehler f\\374r nichts, error\\n' >&2; exit 1", "step.cpp:1: Fehler f\ufffdr nichts, error"),
        ("echo 'step.cpp:1: error: and on' >&2; exec sleep 20", "step.cpp:1: error: and on"),
        ("exec sleep 20", "timed out after 0.5 seconds"),
        ("exit 0", "No such file or directory"),
        (f'for made; do :; done; cp "{_ctypes.__file__}" "$made"', "transom_works"),
    ],
)
def test_no_compiler_is_too_odd(uncached: pytest.MonkeyPatch, tmp_path: Path, script: str, told: str) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    uncached.setattr(natives, "_TIMEOUT", 0.5)
    uncached.setenv("CXX", str(compiler))
    uncached.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert native.__wrapped__().library is None
    assert told in native.__wrapped__().reason


@needs_library
def test_without_a_home_pytorch_does_it(uncached: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    uncached.delenv("XDG_CACHE_HOME", raising=False)
    uncached.setattr(Path, "home", nowhere)
    assert native.__wrapped__().reason.endswith("could not make it: Could not determine home directory.")


def test_a_damaged_library_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nfor made; do :; done\necho a library > "$made"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = compiled(str(compiler))
    whole = path.read_bytes()
    assert whole.startswith(b"a library")
    for damaged in (b"", whole[:20], whole[:-1], whole.replace(b"l", b"L", 1)):
        path.write_bytes(damaged)
        assert compiled(str(compiler)) == path
        assert path.read_bytes() == whole
    compiler.unlink()  # a whole one is not made anew
    assert compiled(str(compiler)) == path


def test_the_source_has_no_warnings(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    command = [
        compiler,
        *natives.FLAGS,
        "-Wall",
        "-Wextra",
        "-Wno-maybe-uninitialized",
        str(natives.SOURCE),
        "-o",
        str(tmp_path / "step.so"),
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert told == ""
