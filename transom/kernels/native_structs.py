"""ctypes mirrors of the structures in the native libraries, field by field, and conversion of status codes to exceptions."""

import ctypes


class LinearStruct(ctypes.Structure):
    """A linear map with tiled weights; mirrors ``Linear`` in ``products.h``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "bias")),
        *((name, ctypes.c_int32) for name in ("in_features", "out_features", "activation")),
    ]


class NormStruct(ctypes.Structure):
    """A layer or RMS normalization; ``gain`` is null for no normalization."""

    _fields_ = [("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("eps", ctypes.c_float), ("centered", ctypes.c_int32)]


_NORMS = ("attn_pre_norm", "attn_post_norm", "cross_pre_norm", "cross_post_norm", "ff_pre_norm", "ff_post_norm")
_LINEARS = ("qkv", "o", "q", "cross_o", "gate", "up", "down")


class BlockStruct(ctypes.Structure):
    """Norms and linear maps of a block."""

    _fields_ = [(name, NormStruct) for name in _NORMS] + [(name, LinearStruct) for name in _LINEARS]


class EmbeddingStruct(ctypes.Structure):
    """Embedding of tokens and their positions."""

    _fields_ = [
        ("table", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("is_bfloat16", "vocabulary")),
        ("positions", ctypes.c_void_p),
        ("n_positions", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("norm", NormStruct),
    ]


class DecoderStruct(ctypes.Structure):
    """The embedding, a decoder stack and the output projection."""

    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("kind", "n_blocks", "d_model", "n_heads", "n_kv_heads", "d_head", "d_value", "rotary_pairs", "n_rotations")
        ),
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
        ("embedding", EmbeddingStruct),
        ("blocks", ctypes.POINTER(BlockStruct)),
        ("norm", NormStruct),
        ("unembed", LinearStruct),
    ]


class AttentionStruct(ctypes.Structure):
    """Shapes and strides of attention; mirrors ``AttentionShape`` in ``attention.h``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "kv_heads", "group", "queries", "keys", "d_head", "d_value", "block", "row")),
        *((f"{tensor}_{axis}", ctypes.c_int64) for tensor in ("q", "k", "v", "z", "mask") for axis in ("batch", "head", "token")),
        ("scale", ctypes.c_float),
    ]


class GradientStruct(ctypes.Structure):
    """Gradient of a linear layer's outputs, and where to write its weight's and bias's; mirrors ``Gradient`` in ``weight_gradient.h``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("numbers", "weight", "bias")),
        *((name, ctypes.c_int64) for name in ("columns", "stride")),
    ]


class SequencesStruct(ctypes.Structure):
    """Sequences that an encoder reads, and the bias of their attention scores."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "length", "n_heads", "d_head", "d_value")),
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("bias_row", "bias_head", "bias_query")),
    ]


class MemoryStruct(ctypes.Structure):
    """Shape of the keys and values of the sources: per block (sources, heads, length, width of a key and its value)."""

    _fields_ = [(name, ctypes.c_int32) for name in ("sources", "length", "n_heads", "width")]


class StateStruct(ctypes.Structure):
    """State of a search between decoding steps."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "length", "capacity", "max_length", "max_source_length", "log_softmax")),
        *((name, ctypes.c_void_p) for name in ("sources", "lengths", "slots", "tokens", "memory")),
        ("memory_stride", ctypes.c_int64),
        ("inputs", ctypes.c_void_p),
        ("input_stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("logits", "greedy")),
    ]


class GreedyStruct(ctypes.Structure):
    """State of greedy search; mirrors ``Greedy`` in ``next_token.h``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tokens", "log_p", "min_length", "max_length", "suppressed", "rows")),
        *((name, ctypes.c_int32) for name in ("width", "n_tokens", "n_suppressed")),
        ("end", ctypes.c_int64),
    ]


def raise_for_status(status: int) -> None:
    """Raise an exception if a function of ``step.cpp`` returned a nonzero status: MemoryError, IndexError or RuntimeError."""
    if status:
        kind, what = {1: (MemoryError, "out of memory"), 2: (IndexError, "out of bounds")}.get(status, (RuntimeError, "unknown error"))
        raise kind(f"the native library failed: {what} (status {status})")
