"""Build the project's C++ on the machine that runs it, and keep the library in the user's cache folder.

A library runs as the user, so nothing is loaded but what this user wrote into a folder that nobody else can write: owner and mode are
checked on the open folder and on the open file, and the library is loaded through that same descriptor. Without such a folder the library
is built for one process and removed.
"""

import ctypes
import hashlib
import logging
import os
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent / "step" / "step.cpp"
CHECK = Path(__file__).parent / "native_check.py"
FLAGS = ["-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread"]

TIMEOUT = 60.0
"""Seconds that a compiler may take before it is killed with all that it started."""

STALE = 3600.0
"""Seconds after which what an interrupted build left is removed."""

REMEMBERED = 3600.0
"""Seconds for which a failed build is not tried again; a full disk or a busy machine does not last."""

_SEAL = hashlib.sha256().digest_size
_BUILD, _FAILED = ".build-", ".failed"
_log = logging.getLogger(__name__)


class BuildError(Exception):
    """The library could not be built, or not be used once built; the message is one line for people."""


class Compiler(NamedTuple):
    """A C++ compiler.

    Attributes:
        command: its words: the program's path, and what CXX says after it.
        version: what it says of itself.
    """

    command: tuple[str, ...]
    version: bytes


def find_compiler() -> Compiler:
    """Find the compiler that CXX names, which may be several words, or the system's.

    Raises:
        BuildError: there is none, or it does not answer.
    """
    wanted = os.environ.get("CXX", "").strip() or "c++"
    try:
        words = [wanted] if shutil.which(wanted) else shlex.split(wanted)  # a path may have spaces
    except ValueError as error:
        raise BuildError(f"CXX: expected a compiler and its options, found {wanted!r} ({error}); correct or unset it") from error
    for program, *rest in (words, ["g++"], ["clang++"]):
        if (path := shutil.which(program)) is not None:
            return Compiler((path, *rest), _run([path, *rest, "--version"], check=False))
    raise BuildError("no C++ compiler was found; install g++ or clang++, or name one in CXX")


class Cache:
    """An open folder of this user's, in which libraries are kept by the hash of all that they are built from."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        """Use ``open_cache``."""
        self.folder = folder
        self.descriptor = descriptor

    def read(self, name: str, seconds: float) -> bytes | None:
        """Read a file that was written in the last ``seconds``, and as ``open`` asks; None if there is none such."""
        if (opened := self.open(name)) is None:
            return None
        with os.fdopen(opened, "rb") as file:
            return file.read() if time.time() - os.fstat(opened).st_mtime < seconds else None

    def open(self, name: str) -> int | None:
        """Open a file that this user owns and nobody else can write; None if there is none such."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.descriptor)
        except OSError:
            return None
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and is_private(status):
            return descriptor
        os.close(descriptor)
        return None

    def write(self, name: str, content: bytes) -> None:
        """Put a file in place at once, readable by this user only."""
        partial = f"{_BUILD}{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(partial, flags, 0o600, dir_fd=self.descriptor), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            self.remove(partial)
            raise

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_stale(self) -> None:
        """Remove what interrupted builds left."""
        for name in os.listdir(self.descriptor):  # noqa: PTH208 - of the open folder, whatever its path leads to by now
            if name.startswith(_BUILD):
                status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > STALE:
                    self.remove(name)


def is_private(status: os.stat_result) -> bool:
    """Tell whether a file or folder is this user's and nobody else can write it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def cache_folder() -> Path | None:
    """Return the user's cache folder; None where neither XDG_CACHE_HOME nor HOME is an absolute path below the root."""
    home = os.environ.get("HOME")
    if home is None:  # the user database; "~" where that has none either
        home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises
    for base, below in ((os.environ.get("XDG_CACHE_HOME", ""), ""), (home, ".cache")):
        path = Path(os.path.normpath(base)) if base else Path()
        if path.is_absolute() and path != Path(path.anchor):
            return path / below / "transom"
    return None


@contextmanager
def open_cache() -> Iterator[Cache | None]:
    """Open the cache, making its folder if there is none; None where it is not safe to load from, or cannot be written."""
    if (folder := cache_folder()) is None:
        yield None
        return
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield Cache(folder, descriptor) if is_private(os.fstat(descriptor)) else None
    finally:
        os.close(descriptor)


def load(compiler: Compiler, processor: Sequence[str], flags: Sequence[str] = ()) -> tuple[ctypes.CDLL, str]:
    """Load the library, building it first where this machine has not done so yet; return it, and where it lies for people.

    Args:
        compiler: that builds it.
        processor: what the processor can do; another one needs another library.
        flags: after those of every build.

    Raises:
        BuildError: it cannot be built or used; a failed build is told once and remembered, so that the next process does not try again.
    """
    facts = [*compiler.command, *FLAGS, *flags, *processor]
    sources = [path.read_bytes() for path in sorted(SOURCE.parent.iterdir())]
    name = "step-" + hashlib.sha256(b"\0".join([*sources, compiler.version, "\0".join(facts).encode()])).hexdigest()[:16]
    with open_cache() as cache:
        if cache is None:
            with _private_copy(_build(compiler, flags)) as path:
                return ctypes.CDLL(path), "built for this process only: there is no cache folder that is safe to load from"
        if (library := _load_kept(cache, f"{name}.so")) is None:
            if (told := cache.read(name + _FAILED, REMEMBERED)) is not None:
                raise BuildError(f"{told.decode(errors='replace')} (remembered; remove {cache.folder / (name + _FAILED)} to try again)")
            try:
                content = _build(compiler, flags)
            except BuildError as error:
                _log.warning("the fast decoder cannot be built, PyTorch's operations take its place: %s", error)
                with suppress(OSError):  # a full disk: the next process tries again
                    cache.write(name + _FAILED, str(error).encode())
                raise
            cache.remove_stale()
            cache.write(f"{name}.so", content + hashlib.sha256(content).digest())
            library = _load_kept(cache, f"{name}.so")
        if library is None:
            raise BuildError(f"{cache.folder / name}.so cannot be read back")
        return library, str(cache.folder / f"{name}.so")


def _load_kept(cache: Cache, name: str) -> ctypes.CDLL | None:
    """Load a kept library through the descriptor that was checked; None if there is none, or it is not as it was written.

    The descriptor stays open as long as the process: the system's loader knows a library by its path, and this number is its path.
    """
    descriptor = cache.open(name)
    if descriptor is None:
        return None
    with os.fdopen(os.dup(descriptor), "rb") as file:
        data = file.read()
    if hashlib.sha256(data[:-_SEAL]).digest() != data[-_SEAL:]:
        os.close(descriptor)
        return None
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


def _build(compiler: Compiler, flags: Sequence[str]) -> bytes:
    """Compile the library and try it in a process of its own; return its bytes."""
    _log.info("compiling the fast decoder for this processor, once (a few seconds; TRANSOM_NATIVE=0 does without)")
    with tempfile.TemporaryDirectory(prefix="transom-build-") as scratch:
        made = Path(scratch) / "step.so"
        _run([*compiler.command, *FLAGS, *flags, str(SOURCE), "-o", str(made)])
        try:
            content = made.read_bytes()
        except OSError as error:
            raise BuildError(f"{compiler.command[0]} made no library: {error.strerror}") from error
        _run([sys.executable, "-I", str(CHECK), str(made)], "the compiled library failed its check")
        return content


def _run(command: Sequence[str], what: str = "", check: bool = True) -> bytes:
    """Run a program with a time limit that ends all that it started; return what it printed.

    Raises:
        BuildError: it cannot run, takes too long, or fails and ``check`` is set.
    """
    what = what or f"{command[0]} could not make it"
    with tempfile.TemporaryFile() as told:  # not a pipe, which what it started may hold open
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=told, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            raise BuildError(f"{what}: {error.strerror}") from error
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{what}: timed out after {TIMEOUT:g} seconds") from error
        finally:
            _end_group(process)
        told.seek(0)
        printed = told.read(2**20)
    if check and code:
        lines = printed.decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
        raise BuildError(f"{what}: {next((line for line in lines if 'error' in line), lines[-1])}")
    return printed


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and whatever it started that is still there."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def _private_copy(content: bytes) -> Iterator[str]:
    """Put a library into a folder of this process's own, until it is loaded."""
    with tempfile.TemporaryDirectory(prefix="transom-build-") as scratch:
        path = Path(scratch) / "step.so"
        path.write_bytes(content)
        yield str(path)
