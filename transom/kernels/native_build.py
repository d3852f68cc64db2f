"""Build the native libraries (C++) on the machine that runs them, and cache them in the user's cache folder.

A library runs with the user's permissions. Therefore a cached library is loaded only if this user owns the file and the folder and no other
user can write to them. Owner and mode are checked on the open folder and the open file, and the library is loaded through the open file
descriptor. Without such a folder the library is built for one process and then removed.
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

NATIVE = Path(__file__).parent / "native"
STEP, ELEMENTWISE = NATIVE / "step.cpp", NATIVE / "elementwise.cpp"
DESCRIPTIONS = {STEP: "the native decoder", ELEMENTWISE: "the native operations of training"}
CHECK = Path(__file__).parent / "native_check.py"
FLAGS = [
    *("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread", "-fopenmp-simd"),
    *("-fno-fast-math", "-fno-math-errno", "-fno-trapping-math"),  # CXX may ask for fast math, with which exponentials are wrong
]

COMPILE_TIMEOUT = 60.0
"""Seconds after which a compiler and its child processes are killed."""

STALE_SECONDS = 3600.0
"""Age in seconds after which files of an interrupted build are removed."""

FAILURE_SECONDS = 3600.0
"""Seconds for which a failed build is not retried; causes such as a full disk or a busy machine are temporary."""

_DIGEST_SIZE = hashlib.sha256().digest_size
_BUILD, _FAILED = ".build-", ".failed"
_log = logging.getLogger(__name__)


class BuildError(Exception):
    """Raised when the library cannot be built, or cannot be used after building; the message is one line."""


class Compiler(NamedTuple):
    """A C++ compiler.

    Attributes:
        command: path of the program, followed by the options in the environment variable CXX.
        version: output of ``--version``.
    """

    command: tuple[str, ...]
    version: bytes


def find_compiler() -> Compiler:
    """Find the compiler named in the environment variable CXX, which may include options, or the system's compiler.

    Raises:
        BuildError: no compiler is found, or the compiler does not run.
    """
    wanted = os.environ.get("CXX", "").strip() or "c++"
    try:
        words = [wanted] if shutil.which(wanted) else shlex.split(wanted)  # a path may contain spaces
    except ValueError as error:
        raise BuildError(f"CXX: expected a compiler and its options, found {wanted!r} ({error}); correct or unset CXX") from error
    for program, *rest in (words, ["g++"], ["clang++"]):
        if (path := shutil.which(program)) is not None:
            return Compiler((path, *rest), _run([path, *rest, "--version"], check=False))
    raise BuildError("expected a C++ compiler, found none; install g++ or clang++, or set CXX")


class LibraryCache:
    """The current user's cache folder of compiled libraries, held open; a library's name is the hash of its sources, compiler and flags."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        """Wrap an open folder. Call ``open_cache``, which also checks the folder, instead."""
        self.folder = folder
        self.descriptor = descriptor

    def read(self, name: str, seconds: float) -> bytes | None:
        """Return the content of a private file written in the last ``seconds``; None if there is no such file."""
        if (opened := self.open(name)) is None:
            return None
        with os.fdopen(opened, "rb") as file:
            return file.read() if time.time() - os.fstat(opened).st_mtime < seconds else None

    def open(self, name: str) -> int | None:
        """Return a descriptor of a regular file that this user owns and no other user can write; None if there is no such file."""
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
        """Write a file atomically, readable by this user only."""
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
        """Remove a file if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_stale(self) -> None:
        """Remove files of interrupted builds that are older than ``STALE_SECONDS``."""
        for name in os.listdir(self.descriptor):  # noqa: PTH208 - the open folder, even if its path now names another one
            if name.startswith(_BUILD):
                status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > STALE_SECONDS:
                    self.remove(name)


def is_private(status: os.stat_result) -> bool:
    """Return whether a file or folder is owned by this user and writable by no other user."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def cache_folder() -> Path | None:
    """Return the user's cache folder; None if neither XDG_CACHE_HOME nor HOME is an absolute path below the root."""
    home = os.environ.get("HOME")
    if home is None:  # from the user database; "~" if it has no entry
        home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises
    for base, below in ((os.environ.get("XDG_CACHE_HOME", ""), ""), (home, ".cache")):
        path = Path(os.path.normpath(base)) if base else Path()
        if path.is_absolute() and path != Path(path.anchor):
            return path / below / "transom"
    return None


@contextmanager
def open_cache() -> Iterator[LibraryCache | None]:
    """Yield the cache, whose folder is created if missing; yield None if the folder is not private or cannot be opened."""
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
        yield LibraryCache(folder, descriptor) if is_private(os.fstat(descriptor)) else None
    finally:
        os.close(descriptor)


def load_library(source: Path, compiler: Compiler, processor: Sequence[str], flags: Sequence[str] = ()) -> tuple[ctypes.CDLL, str]:
    """Load a library from the cache, or build it.

    Args:
        source: its C++ file; it may include other files of the folder.
        compiler: compiler for the build.
        processor: CPU flags; each set of flags has its own library.
        flags: additional compiler flags.

    Returns:
        The library and a description of its location.

    Raises:
        BuildError: the library cannot be built or used. A failed build is logged and recorded, so that the next process does not retry.
    """
    build_key = [*compiler.command, *FLAGS, *flags, *processor]
    sources = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    name = f"{source.stem}-" + hashlib.sha256(b"\0".join([*sources, compiler.version, "\0".join(build_key).encode()])).hexdigest()[:16]
    with open_cache() as cache:
        if cache is None:
            with _temporary_copy(_build(source, compiler, flags)) as path:
                return ctypes.CDLL(path), "built for this process only: the cache folder is missing or not private"
        if (library := _load_cached(cache, f"{name}.so")) is None:
            if (output := cache.read(name + _FAILED, FAILURE_SECONDS)) is not None:
                raise BuildError(f"{output.decode(errors='replace')} (earlier failure; remove {cache.folder / (name + _FAILED)} to retry)")
            try:
                content = _build(source, compiler, flags)
            except BuildError as error:
                _log.warning("%s cannot be built, using PyTorch's operations instead: %s", DESCRIPTIONS[source], error)
                with suppress(OSError):  # for example a full disk: the next process retries
                    cache.write(name + _FAILED, str(error).encode())
                raise
            cache.remove_stale()
            cache.write(f"{name}.so", content + hashlib.sha256(content).digest())
            library = _load_cached(cache, f"{name}.so")
        if library is None:
            raise BuildError(f"{cache.folder / name}.so cannot be read after it was written; set XDG_CACHE_HOME to another folder")
        return library, str(cache.folder / f"{name}.so")


def _load_cached(cache: LibraryCache, name: str) -> ctypes.CDLL | None:
    """Load a cached library through the checked file descriptor; None if it is missing or damaged.

    The descriptor stays open until the process ends: the system's loader identifies a library by its path, which contains the descriptor.
    """
    descriptor = cache.open(name)
    if descriptor is None:
        return None
    with os.fdopen(os.dup(descriptor), "rb") as file:
        data = file.read()
    if hashlib.sha256(data[:-_DIGEST_SIZE]).digest() != data[-_DIGEST_SIZE:]:
        os.close(descriptor)
        return None
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


def _build(source: Path, compiler: Compiler, flags: Sequence[str]) -> bytes:
    """Compile a library, check it in a separate process and return its bytes."""
    _log.info("compiling %s for this CPU, once (a few seconds; TRANSOM_NATIVE=0 disables it)", DESCRIPTIONS[source])
    with tempfile.TemporaryDirectory(prefix="transom-build-") as scratch:
        library_path = Path(scratch) / f"{source.stem}.so"
        _run([*compiler.command, *FLAGS, *flags, str(source), "-o", str(library_path)])
        try:
            content = library_path.read_bytes()
        except OSError as error:
            raise BuildError(f"{compiler.command[0]} produced no library: {error.strerror}") from error
        _run([sys.executable, "-I", str(CHECK), str(library_path)], "the compiled library failed its check")
        return content


def _run(command: Sequence[str], what: str = "", check: bool = True) -> bytes:
    """Run a program with a timeout, kill its child processes afterwards, and return its output.

    Raises:
        BuildError: the program cannot run, times out, or exits with an error while ``check`` is True.
    """
    what = what or f"{command[0]} failed"
    with tempfile.TemporaryFile() as output:  # not a pipe, which a child process could keep open
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            raise BuildError(f"{what}: {error.strerror}") from error
        try:
            code = process.wait(COMPILE_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{what}: timed out after {COMPILE_TIMEOUT:g} seconds") from error
        finally:
            _kill_process_group(process)
        output.seek(0)
        printed = output.read(2**20)
    if check and code:
        lines = printed.decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
        raise BuildError(f"{what}: {next((line for line in lines if 'error' in line), lines[-1])}")
    return printed


def _kill_process_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and its remaining child processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def _temporary_copy(content: bytes) -> Iterator[str]:
    """Yield the path of a temporary copy of a library, which is removed at the end of the ``with`` block."""
    with tempfile.TemporaryDirectory(prefix="transom-build-") as scratch:
        path = Path(scratch) / "library.so"
        path.write_bytes(content)
        yield str(path)
