"""Load the native libraries (C++), which ``native_build`` compiles on the machine that runs them."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from transom.files.cpu_info import cpu_flags
from transom.kernels import native_structs
from transom.kernels.native_build import ELEMENTWISE, STEP, BuildError, find_compiler, load_library

NATIVE_VARIABLE = "TRANSOM_NATIVE"
"""Environment variable. If it is 0, PyTorch's operations are used instead of the native libraries."""

_REQUIRED_CPU_FLAGS = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
_INT, _LONG, _FLOAT, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_Functions = dict[str, tuple[list[type], type | None]]
_STEP_FUNCTIONS: _Functions = {
    "transom_is_supported": ([], _INT),
    "transom_packed_bytes": ([_INT] * 3, ctypes.c_int64),
    "transom_pack": ([_INT, _POINTER, _INT, _INT, _POINTER, _POINTER], None),
    "transom_linear": ([_INT, _POINTER, _POINTER, _INT, _POINTER, _INT], _INT),
    "transom_project_memory": ([_INT, *[_POINTER] * 4, _INT], _INT),
    "transom_set_openmp": ([_POINTER] * 3, None),
    "transom_encoder_project": ([_INT, *[_POINTER] * 2, _INT, _INT, _POINTER, _INT], _INT),
    "transom_encoder_finish": ([_INT, *[_POINTER] * 3, _INT, _INT, _INT], _INT),
    "transom_encoder_block": ([_INT, *[_POINTER] * 3, _INT, _INT], _INT),
    "transom_create_workspace": ([_INT, _INT], _POINTER),
    "transom_free_workspace": ([_POINTER], None),
    "transom_step": ([_POINTER] * 3, _INT),
    "transom_greedy_search": ([*[_POINTER] * 4, _INT], _INT),
}
"""Argument types and result type of each function of ``step.cpp``."""

_ELEMENTWISE: _Functions = {
    "activate": ([_INT, *[_POINTER] * 4, *[_LONG] * 3, _INT], None),
    "activate_backward": ([_INT, *[_POINTER] * 8, *[_LONG] * 3, _INT], _INT),
    "norm": ([*[_POINTER] * 6, _LONG, _LONG, _FLOAT, _INT], None),
    "norm_backward": ([*[_POINTER] * 8, _LONG, _LONG, _INT], _INT),
    "rotate": ([*[_POINTER] * 8, _LONG, _INT, _INT], None),
    "dropout": ([*[_POINTER] * 5, _LONG, _INT, _FLOAT, _INT], None),
    "logits_softmax": ([*[_POINTER] * 2, *[_LONG] * 2, _INT], None),
    "softmax": ([*[_POINTER] * 4, _INT], _LONG),
    "softmax_backward": ([*[_POINTER] * 2, _LONG, _LONG, _INT], None),
}
ELEMENTWISE_FUNCTIONS: _Functions = {
    f"transom_{name}_{dtype}": types for name, types in _ELEMENTWISE.items() for dtype in ("bfloat16", "float32")
}
ELEMENTWISE_FUNCTIONS |= {
    "transom_set_openmp": ([_POINTER] * 3, None),
    "transom_log_softmax": ([_POINTER, *[_LONG] * 2, _INT], None),
    "transom_largest": ([*[_POINTER] * 3, *[_LONG] * 2, _INT], None),
    "transom_can_use_matrix_unit": ([], _INT),
    "transom_attention_float32": ([*[_POINTER] * 8, _LONG, _INT], None),
    "transom_attention_backward_float32": ([*[_POINTER] * 11, _LONG, _INT], None),
}
"""Argument types and result type of each function of ``elementwise.cpp``."""

MATRIX_UNIT_FUNCTIONS: _Functions = {
    "transom_weight_gradients": ([_POINTER, _INT, _POINTER, _INT, *[_LONG] * 3, _POINTER, _INT], None),
    "transom_attention_bytes": ([_POINTER, _INT], _LONG),
    "transom_attention_bfloat16": ([*[_POINTER] * 8, _LONG, _INT], None),
    "transom_attention_backward_bfloat16": ([*[_POINTER] * 11, _LONG, _INT], None),
}
"""Functions that exist only if the library was compiled for a processor with a matrix unit."""


_OPENMP_FUNCTIONS = ("GOMP_parallel", "omp_get_num_threads", "omp_get_thread_num")


class NativeLibrary(NamedTuple):
    """Result of loading a native library.

    Attributes:
        library: the loaded library, or None.
        reason: path of the library, or the reason why ``library`` is None.
    """

    library: ctypes.CDLL | None
    reason: str


@cache
def load_native_library() -> NativeLibrary:
    """Load the native decoder. The first call on a machine compiles the library (about three seconds)."""
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
    """Build and load the native decoder with additional compiler ``flags``, and declare its functions for ctypes.

    Returns:
        The library and a description of its location.

    Raises:
        BuildError: the library cannot be built.
    """
    library, where = load_library(STEP, find_compiler(), sorted(cpu_flags()), flags)
    return use_openmp(declare_functions(library)), where


@cache
def load_elementwise_library() -> NativeLibrary:
    """Load the element-wise operations of training. The first call on a machine compiles the library (about two seconds)."""
    if os.environ.get(NATIVE_VARIABLE, "1") == "0":
        return NativeLibrary(None, f"{NATIVE_VARIABLE}=0")
    try:
        library, where = load_library(ELEMENTWISE, find_compiler(), sorted(cpu_flags()))
        return NativeLibrary(use_openmp(declare_elementwise_functions(library)), where)
    except (BuildError, OSError, AttributeError) as error:
        return NativeLibrary(None, str(error))


def declare_functions(library: ctypes.CDLL, functions: _Functions = _STEP_FUNCTIONS) -> ctypes.CDLL:
    """Declare argument and result types of a library's functions for ctypes; set ``library.structs`` to ``native_structs``."""
    for name, (arguments, result) in functions.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    library.structs = native_structs  # type: ignore[attr-defined]
    return library


def declare_elementwise_functions(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the functions of ``elementwise.cpp`` for ctypes, with those of the matrix unit if it can be used."""
    declare_functions(library, ELEMENTWISE_FUNCTIONS)
    return declare_functions(library, MATRIX_UNIT_FUNCTIONS) if library.transom_can_use_matrix_unit() else library


def use_openmp(library: ctypes.CDLL) -> ctypes.CDLL:
    """Let a library use the threads of the OpenMP library that PyTorch has loaded; without one it uses one thread."""
    for path in _openmp_libraries():
        openmp = ctypes.CDLL(str(path))
        if all(hasattr(openmp, name) for name in _OPENMP_FUNCTIONS):
            library.transom_set_openmp(*(ctypes.cast(getattr(openmp, name), ctypes.c_void_p) for name in _OPENMP_FUNCTIONS))
            break
    return library


def _openmp_libraries() -> list[Path]:
    """Return the paths of the OpenMP libraries of this process, that of PyTorch's own folder first."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found = {path for line in lines if (path := Path(line.split(maxsplit=5)[-1])).name.startswith(("libgomp", "libiomp", "libomp"))}
    return sorted(found, key=lambda path: (not path.is_relative_to(Path(torch.__file__).parent), path))
