"""Check a newly compiled library in a separate process: ``python native_check.py LIBRARY``.

This script does not import transom, so that it starts fast. A library that crashes this process is not cached.
"""

import ctypes
import math
import struct
import sys

INNER, OUTER, ROWS = 64, 48, 30


class LinearStruct(ctypes.Structure):
    """Mirrors ``Linear`` in ``products.h``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "bias")),
        *((name, ctypes.c_int32) for name in ("in_features", "out_features", "activation")),
    ]


def main(path: str) -> int:
    """Return 0 if a few results of the library are correct."""
    library = ctypes.CDLL(path)
    return check_step(library) if hasattr(library, "transom_step") else check_elementwise(library)


def check_elementwise(library: ctypes.CDLL) -> int:
    """Return 0 if max(0, x) * up, in numbers that are exact in bfloat16, and SiLU(x) * up, which computes exponentials, are correct."""
    n = 70
    x, up, out = ((ctypes.c_uint16 * n)() for _ in range(3))
    for i in range(n):
        x[i], up[i] = (0xC000 if i % 2 else 0x3F80), 0x4040  # -2 or 1, and 3
    library.transom_activate_bfloat16(0, x, None, up, out, *map(ctypes.c_int64, (1, n, n)), 1)
    if any((found & 0x7FFF) != (0 if i % 2 else 0x4040) for i, found in enumerate(out)):
        return 1
    library.transom_activate_bfloat16(3, x, None, up, out, *map(ctypes.c_int64, (1, n, n)), 1)
    expected = [3 * number / (1 + math.exp(-number)) for number in (1, -2)]
    return int(any(abs(_number(found) / expected[i % 2] - 1) > 0.01 for i, found in enumerate(out)))


def _number(bfloat16: int) -> float:
    number: float = struct.unpack("<f", struct.pack("<I", bfloat16 << 16))[0]
    return number


def check_step(library: ctypes.CDLL) -> int:
    """Return 0 if matrix products of all weight types are correct; the numbers of this test are exact in each of them."""
    library.transom_packed_bytes.restype = ctypes.c_int64
    library.transom_create_workspace.restype = ctypes.c_void_p
    if not library.transom_is_supported():
        return 0  # the operating system does not permit use of the matrix unit; reported when loading
    weight = (ctypes.c_float * (INNER * OUTER))(*(1.0 if (i * 7 + o) % 3 else -1.0 for o in range(OUTER) for i in range(INNER)))
    x = (ctypes.c_float * (INNER * ROWS))(*(1.0 if (i + row) % 2 else -1.0 for row in range(ROWS) for i in range(INNER)))
    expected = [sum(x[r * INNER + i] * weight[o * INNER + i] for i in range(INNER)) for r in range(ROWS) for o in range(OUTER)]
    for kind in (0, 1, 2):
        packed = (ctypes.c_uint8 * library.transom_packed_bytes(kind, INNER, OUTER))()
        scale, y = (ctypes.c_float * OUTER)(), (ctypes.c_float * (OUTER * ROWS))()
        library.transom_pack(kind, weight, INNER, OUTER, packed, scale)
        linear = LinearStruct(ctypes.addressof(packed), ctypes.addressof(scale), None, INNER, OUTER, 0)
        if library.transom_linear(kind, ctypes.byref(linear), x, ROWS, y, 1):
            return 3
        if any(abs(found - wanted) > 1e-3 for found, wanted in zip(y, expected, strict=True)):
            sys.exit(f"error: wrong product of kind {kind}")
    workspace = library.transom_create_workspace(2, 2)
    if not workspace:
        return 5
    library.transom_free_workspace(ctypes.c_void_p(workspace))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
