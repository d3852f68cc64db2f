"""Load the native library (C++), which ``native_build`` compiles on the machine that runs it."""

import ctypes
import os
from functools import cache
from typing import NamedTuple

from transom.files.cpu_info import cpu_flags
from transom.kernels import native_structs
from transom.kernels.native_build import BuildError, find_compiler, load_library

NATIVE_VARIABLE = "TRANSOM_NATIVE"
"""Environment variable. If it is 0, PyTorch's operations are used instead of the native library."""

_REQUIRED_CPU_FLAGS = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[list[type], type | None]] = {
    "transom_is_supported": ([], _INT),
    "transom_packed_bytes": ([_INT] * 3, ctypes.c_int64),
    "transom_pack": ([_INT, _POINTER, _INT, _INT, _POINTER, _POINTER], None),
    "transom_linear": ([_INT, _POINTER, _POINTER, _INT, _POINTER], _INT),
    "transom_create_workspace": ([_INT], _POINTER),
    "transom_free_workspace": ([_POINTER], None),
    "transom_step": ([_POINTER] * 3, _INT),
}
"""Argument types and result type of each function of ``step.cpp``."""


class NativeLibrary(NamedTuple):
    """Result of loading the native library.

    Attributes:
        library: the loaded library, or None.
        reason: path of the library, or the reason why ``library`` is None.
    """

    library: ctypes.CDLL | None
    reason: str


@cache
def load_native_library() -> NativeLibrary:
    """Load the native library. The first call on a machine compiles the library (about three seconds)."""
    if os.environ.get(NATIVE_VARIABLE, "1") == "0":
        return NativeLibrary(None, f"{NATIVE_VARIABLE}=0")
    if missing := sorted(_REQUIRED_CPU_FLAGS - cpu_flags()):
        return NativeLibrary(None, f"this CPU has no {missing[0]}")
    try:
        library, where = build_and_load()
    except (BuildError, OSError, AttributeError) as error:  # AttributeError: a library without our functions
        return NativeLibrary(None, str(error))
    if not library.transom_is_supported():
        return NativeLibrary(None, "the operating system does not permit use of this CPU's matrix unit")
    return NativeLibrary(library, where)


def build_and_load(*flags: str) -> tuple[ctypes.CDLL, str]:
    """Build and load the library with additional compiler ``flags``, and declare its functions for ctypes.

    Returns:
        The library and a description of its location.

    Raises:
        BuildError: the library cannot be built.
    """
    library, where = load_library(find_compiler(), sorted(cpu_flags()), flags)
    return declare_functions(library), where


def declare_functions(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare argument and result types of a library's functions for ctypes; set ``library.structs`` to ``native_structs``."""
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    library.structs = native_structs  # type: ignore[attr-defined]
    return library
