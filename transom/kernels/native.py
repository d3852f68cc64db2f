"""Load the native library (C++), which ``native_build`` compiles on the machine that runs it."""

import ctypes
import os
from functools import cache
from typing import NamedTuple

from transom.files.processor import processor_flags
from transom.kernels import native_structs
from transom.kernels.native_build import BuildError, find_compiler, load

SWITCH = "TRANSOM_NATIVE"
"""Environment variable; 0 disables the native library in favor of PyTorch's operations."""

_NEEDED = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
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
"""Argument types and result type of each function of ``step.cpp``."""


class Native(NamedTuple):
    """Result of loading the native library.

    Attributes:
        library: the loaded library, or None.
        reason: path of the library, or the reason why it is missing.
    """

    library: ctypes.CDLL | None
    reason: str


@cache
def native() -> Native:
    """Load the library; the first call on a machine compiles it (about three seconds)."""
    if os.environ.get(SWITCH, "1") == "0":
        return Native(None, f"{SWITCH}=0")
    if missing := sorted(_NEEDED - processor_flags()):
        return Native(None, f"this CPU has no {missing[0]}")
    try:
        library, where = compiled()
    except (BuildError, OSError, AttributeError) as error:  # AttributeError: a library without our functions
        return Native(None, str(error))
    if not library.transom_works():
        return Native(None, "the operating system does not permit use of this CPU's matrix unit")
    return Native(library, where)


def compiled(*flags: str) -> tuple[ctypes.CDLL, str]:
    """Build and load the library with additional compiler ``flags``, and declare its functions.

    Returns:
        The library and a description of its location.

    Raises:
        BuildError: the library cannot be built.
    """
    library, where = load(find_compiler(), sorted(processor_flags()), flags)
    return declared(library), where


def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare argument and result types of a library's functions for ctypes; attach the structures that they read as ``structs``."""
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    library.structs = native_structs  # type: ignore[attr-defined]
    return library
