"""The project's own C++: compiled once on the machine that runs it, for its processor, and kept in the user's cache folder."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from transom.errors import DiskError
from transom.weights.durable import write_file

SOURCE = Path(__file__).parent / "step" / "step.cpp"
SWITCH = "TRANSOM_NATIVE"
"""Environment variable; 0 keeps to PyTorch's operations."""

FLAGS = ["-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread"]
_NEEDED = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
_TIMEOUT = 60.0
_SEAL = hashlib.sha256().digest_size
_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[list[type], type | None]] = {
    "transom_works": ([], _INT),
    "transom_packed_bytes": ([_INT] * 3, ctypes.c_int64),
    "transom_pack": ([_INT, _POINTER, _INT, _INT, _POINTER, _POINTER], None),
    "transom_product": ([_INT, _POINTER, _POINTER, _INT, _POINTER], _INT),
    "transom_open": ([_INT], _POINTER),
    "transom_close": ([_POINTER], None),
    "transom_step": ([_POINTER] * 3, _INT),
}
"""Arguments and result of each function of ``step.cpp``."""


@dataclass(frozen=True)
class Native:
    """What became of the library.

    Attributes:
        library: loaded, or None.
        reason: for people, why there is none or where it lies.
    """

    library: ctypes.CDLL | None
    reason: str


@cache
def native() -> Native:
    """Load the library, compiling it first where this machine has not done so yet (about three seconds)."""
    if os.environ.get(SWITCH, "1") == "0":
        return Native(None, f"{SWITCH}=0")
    if missing := sorted(_NEEDED - _processor_flags()):
        return Native(None, f"this processor has no {missing[0]}")
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return Native(None, "no C++ compiler was found; install g++ or clang++, or name one in CXX")
    try:
        path = compiled(compiler)
        library = opened(path)
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError, DiskError) as error:  # no home, no such function
        return Native(None, f"{compiler} could not make it: {_first_line(error)}")
    if not library.transom_works():
        return Native(None, "the system does not let programs use this processor's matrix unit")
    return Native(library, str(path))


def compiled(compiler: str, *flags: str) -> Path:
    """Give the compiled library's path; two processes that compile at once both end with a whole file, and a damaged one is made anew."""
    facts = [compiler, *FLAGS, *flags, *sorted(_processor_flags())]
    name = hashlib.sha256(b"".join([*(path.read_bytes() for path in sorted(SOURCE.parent.iterdir())), "\0".join(facts).encode()]))
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transom"
    path = folder / f"step-{name.hexdigest()[:16]}.so"
    if not _is_whole(path):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            command = [compiler, *FLAGS, *flags, str(SOURCE), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)
            library = made.read_bytes()
            write_file(path, library + hashlib.sha256(library).digest())
    return path


def opened(path: Path) -> ctypes.CDLL:
    """Load a compiled library and tell ctypes what its functions take and give."""
    library = ctypes.CDLL(str(path))
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def _is_whole(path: Path) -> bool:
    """Tell whether a library is as it was written, its SHA-256 behind it: the system's loader ends the process over a damaged one."""
    data = path.read_bytes() if path.is_file() else b""
    return hashlib.sha256(data[:-_SEAL]).digest() == data[-_SEAL:]


def _processor_flags() -> set[str]:
    """Read what the processor can do; nothing where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def _first_line(error: Exception) -> str:
    told = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip() or str(error)  # in whatever encoding it speaks
    return next((line for line in told.splitlines() if "error" in line), told.partition("\n")[0])
