"""ctypes mirrors of the structures in ``step.cpp`` and ``products.h``, field by field, and conversion of status codes to exceptions."""

import ctypes


class Linear(ctypes.Structure):
    """A linear map with tiled weights; mirrors ``Linear`` in ``products.h``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "bias")),
        *((name, ctypes.c_int32) for name in ("inner", "outer", "after")),
    ]


class Norm(ctypes.Structure):
    """A normalization; no normalization if ``gain`` is null."""

    _fields_ = [("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("eps", ctypes.c_float), ("centred", ctypes.c_int32)]


_NORMS = ("attn_before", "attn_after", "cross_before", "cross_after", "ff_before", "ff_after")
_LINEARS = ("qkv", "o", "q", "cross_o", "gate", "up", "down")


class Block(ctypes.Structure):
    """A decoder block."""

    _fields_ = [(name, Norm) for name in _NORMS] + [(name, Linear) for name in _LINEARS]


class Decoder(ctypes.Structure):
    """A decoder stack and the output projection."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("kind", "n_blocks", "d_model", "n_heads", "n_kv_heads", "d_head", "d_value", "pairs")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
        ("blocks", ctypes.POINTER(Block)),
        ("norm", Norm),
        ("unembed", Linear),
    ]


class State(ctypes.Structure):
    """State of a search between steps."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "length", "capacity", "max_length", "longest")),
        *((name, ctypes.c_void_p) for name in ("sources", "lengths", "slots", "tokens", "memory")),
        ("memory_stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("x", "logits")),
    ]


def check(status: int) -> None:
    """Raise the exception for a nonzero status of ``step.cpp``: MemoryError, IndexError or RuntimeError."""
    if status:
        kind = {1: MemoryError, 2: IndexError}.get(status, RuntimeError)
        raise kind(f"the native step failed: {({1: 'no memory', 2: 'out of bounds'}).get(status, 'unknown error')} (status {status})")
