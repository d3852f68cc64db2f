"""The library is compiled where it can be and made anew where it is damaged; where it cannot, the reason is told and PyTorch does it."""

import _ctypes
import hashlib
import os
import select
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kernels.test_native_decoder import model_of, needs_library
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.backends.fused_inference import FusedSeq2Seq
from transom.errors import ConfigError
from transom.files.cpu_info import cpu_flags
from transom.kernels import native_build
from transom.kernels.native_build import FAILURE_SECONDS, BuildError, cache_folder, find_compiler
from transom.kernels.native_library import NATIVE_VARIABLE, load_native_library

pytestmark = pytest.mark.kernels


@pytest.fixture(scope="session")
def built() -> bytes:
    """Build the library once for all tests of where it is kept, unoptimized, which takes a quarter of the time."""
    return native_build._build(native_build.STEP, find_compiler(), ("-O0",))


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("transom.kernels.native_library.load_native_library", load_native_library.__wrapped__)
    return monkeypatch


def test_it_can_be_switched_off(uncached: pytest.MonkeyPatch) -> None:
    uncached.setenv(NATIVE_VARIABLE, "0")
    assert isinstance(build_decoder_backend(model_of(dtype=torch.bfloat16)), FusedSeq2Seq)
    with pytest.raises(ConfigError, match=f"but {NATIVE_VARIABLE}=0; set precision to 'auto'"):
        build_decoder_backend(model_of(), int8=True)


@needs_library
def test_without_a_compiler_pytorch_does_it(uncached: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uncached.setenv("PATH", str(tmp_path))
    uncached.delenv("CXX", raising=False)
    assert "expected a C++ compiler, found none" in load_native_library.__wrapped__().reason
    assert isinstance(build_decoder_backend(model_of(dtype=torch.bfloat16)), FusedSeq2Seq)


def compiler_script(folder: Path, script: str) -> str:
    """Write a compiler that knows its version and otherwise does as the script says."""
    path = folder / "my c++"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "1.0" && exit\n{script}\n')
    path.chmod(0o755)
    return str(path)


@needs_library
def test_a_compiler_named_with_half_a_quotation_is_told(uncached: pytest.MonkeyPatch) -> None:
    uncached.setenv("CXX", "g++ -DNAME='a")
    assert load_native_library.__wrapped__().reason.startswith(
        'CXX: expected a compiler and its options, found "g++ -DNAME=\'a" (No closing quotation)'
    )


@needs_library
def test_a_compiler_that_fails_is_told_once_and_remembered(uncached: pytest.MonkeyPatch, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("INFO", "transom")
    compiler = compiler_script(tmp_path, f"echo tried >> {tmp_path}/tries; echo 'step.cpp:1: error: no such header' >&2; exit 1")
    uncached.setenv("CXX", compiler)
    uncached.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert load_native_library.__wrapped__().reason == f"{compiler} failed: step.cpp:1: error: no such header"
    assert "compiling the native decoder" in caplog.text and caplog.text.count("no such header") == 1
    (marker,) = (tmp_path / "cache" / "transom").iterdir()
    assert load_native_library.__wrapped__().reason.endswith(f"(earlier failure; remove {marker} to retry)")
    assert (tmp_path / "tries").read_text() == "tried\n" and caplog.text.count("no such header") == 1
    os.utime(marker, (time.time() - FAILURE_SECONDS - 1,) * 2)
    assert load_native_library.__wrapped__().library is None and (tmp_path / "tries").read_text() == "tried\ntried\n"


@needs_library
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("printf 'step.cpp:1: Fehler f\\374r nichts, error\\n' >&2; exit 1", "step.cpp:1: Fehler f\ufffdr nichts, error"),
        ("echo 'step.cpp:1: error: and on' >&2; exec sleep 20", "timed out after 0.5 seconds"),
        ("sleep 20 & sleep 20", "timed out after 0.5 seconds"),
        ("exit 0", "produced no library: No such file or directory"),
        (f'for made; do :; done; cp "{_ctypes.__file__}" "$made"', "the compiled library failed its check"),
        ('for made; do :; done; echo no library > "$made"', "the compiled library failed its check"),
        ("kill -9 $$", "failed: exit code -9"),
    ],
)
def test_no_compiler_is_too_odd(uncached: pytest.MonkeyPatch, tmp_path: Path, script: str, told: str) -> None:
    uncached.setattr(native_build, "COMPILE_TIMEOUT", 0.5)
    uncached.setenv("CXX", compiler_script(tmp_path, script))
    uncached.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert load_native_library.__wrapped__().library is None
    assert told in load_native_library.__wrapped__().reason


def test_the_time_limit_ends_all_that_the_compiler_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native_build, "COMPILE_TIMEOUT", 0.5)
    with pytest.raises(BuildError, match="timed out"):
        native_build._run(["sh", "-c", f"sleep 30 & echo $! > {tmp_path}/child; wait"])
    child = int((tmp_path / "child").read_text())
    try:
        ended = os.pidfd_open(child)
    except ProcessLookupError:
        return  # it is gone
    assert select.select([ended], [], [], 10)[0], "it was not killed"
    os.close(ended)


@needs_library
def test_a_library_that_crashes_is_not_kept(uncached: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "crash.cpp"
    source.write_text("#include <cstdlib>\n__attribute__((constructor)) static void crash() { abort(); }\n")
    script = f'for made; do :; done; exec g++ -shared -fPIC {source} -o "$made"'
    uncached.setenv("CXX", compiler_script(tmp_path, script))
    uncached.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "failed its check: exit code -6" in load_native_library.__wrapped__().reason
    assert [path.suffix for path in (tmp_path / "cache" / "transom").iterdir()] == [".failed"]


@pytest.mark.long
@needs_library
def test_cxx_may_be_several_words(uncached: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uncached.setenv("CXX", "env LC_ALL=C g++ -DNOTHING")
    assert find_compiler().command[1:] == ("LC_ALL=C", "g++", "-DNOTHING") and b"Free Software" in find_compiler().version
    uncached.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_native_library.__wrapped__().library is not None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_CACHE_HOME": "/x/cache", "HOME": "/x"}, "/x/cache/transom"),
        ({"XDG_CACHE_HOME": "cache", "HOME": "/x"}, "/x/.cache/transom"),
        ({"XDG_CACHE_HOME": "", "HOME": "/x/"}, "/x/.cache/transom"),
        ({"HOME": "x"}, None),
        ({"HOME": ""}, None),
        ({"HOME": "/"}, None),
        ({"HOME": "//"}, None),
        ({"XDG_CACHE_HOME": "/", "HOME": ""}, None),
    ],
)
def test_the_cache_is_in_an_absolute_folder(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str | None) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = cache_folder()
    assert (None if found is None else str(found)) == expected


@needs_library
@pytest.mark.parametrize("harm", ["no home", "group may write", "all may write", "a link", "another user's", "a file"])
def test_an_unsafe_cache_folder_is_not_used(uncached: pytest.MonkeyPatch, tmp_path: Path, built: bytes, harm: str) -> None:
    uncached.setattr(native_build, "_build", lambda *_: built)
    folder = tmp_path / "cache" / "transom"
    uncached.setenv("XDG_CACHE_HOME", str(folder.parent))
    if harm == "no home":
        uncached.delenv("XDG_CACHE_HOME")
        uncached.setenv("HOME", "")
    elif harm == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.parent.mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif harm == "a file":
        folder.parent.mkdir()
        folder.touch()
    else:
        folder.mkdir(parents=True)
        folder.chmod({"group may write": 0o720, "all may write": 0o702}.get(harm, 0o700))
        if harm == "another user's":
            uncached.setattr(os, "geteuid", lambda: os.getuid() + 1)
    found = load_native_library.__wrapped__()
    assert found.library is not None and "built for this process only" in found.reason
    assert not folder.is_dir() or list(folder.iterdir()) == []


@needs_library
@pytest.mark.parametrize("harm", ["group may write", "a link", "another user's", "a pipe", "damaged", "cut", "empty"])
def test_a_library_that_is_not_as_this_user_wrote_it_is_made_anew(
    uncached: pytest.MonkeyPatch, tmp_path: Path, built: bytes, harm: str
) -> None:
    uncached.setattr(native_build, "_build", lambda *_: built)
    uncached.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = Path(load_native_library.__wrapped__().reason)
    whole = kept.read_bytes()
    mine = os.geteuid()
    if harm == "group may write":
        kept.chmod(0o620)
    elif harm == "a link":
        kept.rename(tmp_path / "other.so")
        kept.symlink_to(tmp_path / "other.so")
    elif harm == "a pipe":
        kept.unlink()
        os.mkfifo(kept)
    elif harm == "another user's":
        real = os.fstat
        asked: list[int] = []

        def owned(descriptor: int) -> os.stat_result:
            found = list(real(descriptor))
            if stat.S_ISREG(found[0]) and not asked:  # the planted library; what is built in its place is ours
                asked.append(descriptor)
                found[4] = mine + 1
            return os.stat_result(found)

        uncached.setattr(os, "fstat", owned)
    else:
        kept.unlink()  # not written in place: this process has the first one mapped, and runs its destructors at exit
        kept.write_bytes({"damaged": whole.replace(b"transom", b"trans0m", 1), "cut": whole[:-1], "empty": b""}[harm])
    before = kept.lstat().st_ino
    found = load_native_library.__wrapped__()
    assert found.library is not None and found.reason == str(kept)
    assert kept.lstat().st_ino != before and stat.S_IMODE(kept.lstat().st_mode) == 0o600
    assert kept.read_bytes()[-32:] == hashlib.sha256(kept.read_bytes()[:-32]).digest()


@needs_library
def test_what_interrupted_builds_left_is_removed_once_it_is_old(uncached: pytest.MonkeyPatch, tmp_path: Path, built: bytes) -> None:
    uncached.setattr(native_build, "_build", lambda *_: built)
    uncached.setenv("XDG_CACHE_HOME", str(tmp_path))
    (folder := tmp_path / "transom").mkdir(mode=0o700)
    old, new, other = (folder / name for name in (".build-0123", ".build-4567", "notes"))
    for path in (old, new, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (0, 0))
    assert load_native_library.__wrapped__().library is not None
    assert not old.exists() and new.exists() and other.exists()


@needs_library
def test_another_compiler_version_is_another_library(uncached: pytest.MonkeyPatch, tmp_path: Path, built: bytes) -> None:
    uncached.setattr(native_build, "_build", lambda *_: built)
    uncached.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = load_native_library.__wrapped__().reason
    compiler = find_compiler()
    uncached.setattr("transom.kernels.native_library.find_compiler", lambda: compiler._replace(version=b"another"))
    assert load_native_library.__wrapped__().reason != first


@pytest.mark.long
@pytest.mark.parametrize("source", [native_build.STEP, native_build.ELEMENTWISE], ids=lambda path: path.stem)
def test_the_source_has_no_warnings(source: Path, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None or "avx512_vnni" not in cpu_flags():
        pytest.skip("there is no g++, or a processor without AVX-512")
    command = [
        compiler,
        *native_build.FLAGS,
        "-Wall",
        "-Wextra",
        "-Wno-maybe-uninitialized",
        str(source),
        "-o",
        str(tmp_path / "step.so"),
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert told == ""
