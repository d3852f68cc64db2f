"""What crosses to ``step.cpp``: the structures that its functions read, field for field, and the errors that they report."""

import ctypes


class Linear(ctypes.Structure):
    """A linear map in tiles, ``Linear`` of ``products.h``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "bias")),
        *((name, ctypes.c_int32) for name in ("inner", "outer", "after")),
    ]


class Norm(ctypes.Structure):
    """A norm; none where ``gain`` is null."""

    _fields_ = [("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("eps", ctypes.c_float), ("centred", ctypes.c_int32)]


_NORMS = ("attn_before", "attn_after", "cross_before", "cross_after", "ff_before", "ff_after")
_LINEARS = ("qkv", "o", "q", "cross_o", "gate", "up", "down")


class Block(ctypes.Structure):
    """A block of the stack."""

    _fields_ = [(name, Norm) for name in _NORMS] + [(name, Linear) for name in _LINEARS]


class Decoder(ctypes.Structure):
    """A stack of blocks and the output map."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("kind", "n_blocks", "d_model", "n_heads", "n_kv_heads", "d_head", "d_value", "pairs")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
        ("blocks", ctypes.POINTER(Block)),
        ("norm", Norm),
        ("unembed", Linear),
    ]


class State(ctypes.Structure):
    """Where a search stands."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "length", "capacity", "max_length", "longest")),
        *((name, ctypes.c_void_p) for name in ("sources", "lengths", "slots", "tokens", "memory")),
        ("memory_stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("x", "logits")),
    ]


def check(status: int) -> None:
    """Raise what a function of ``step.cpp`` reported: MemoryError, IndexError or RuntimeError; 0 is success."""
    if status:
        kind = {1: MemoryError, 2: IndexError}.get(status, RuntimeError)
        raise kind(f"the compiled step failed: {({1: 'no memory', 2: 'out of bounds'}).get(status, 'unknown error')} (status {status})")
