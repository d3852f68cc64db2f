"""Replay the allocations of a training step in an empty process, to see how far glibc's heap grows: tensors, and the gaps between them."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ALIGNMENT = 64
"""Alignment of the memory of PyTorch's tensors on a CPU, in bytes (c10/core/alignment.h)."""

SMALL_BLOCKS = (40, 112, 200)
"""Sizes of blocks that stand for what a tensor needs beside its numbers: its objects in C++ and a node of the autograd graph, in bytes.

They matter for their place. glibc's posix_memalign takes more than it needs and returns the rest in slivers. While a small block sits in
one, the freed tensor beside it is too short for the next tensor of the same size.
"""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""

MAX_HEAP_BLOCK, NEVER_TRIM = 1 << 30, (1 << 31) - 1
"""Values of both thresholds for training: larger blocks are mapped one by one, and freed memory stays with the process."""


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of mallinfo(3); ``arena`` is the heap, ``hblkhd`` what is mapped beside it."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def set_thresholds(mmap_threshold: int, trim_threshold: int) -> bool:
    """Set both thresholds of glibc's malloc; return whether there is a glibc that accepts them."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    return bool(libc.mallopt(MMAP_THRESHOLD, mmap_threshold) and libc.mallopt(TRIM_THRESHOLD, trim_threshold))


def heap_bytes(events: Sequence[int]) -> int | None:
    """Return how far the heap of a process grows that allocates and frees as ``events`` say; None without glibc, or beyond all memory.

    The memory is never written, so that it is reserved only: the replay needs next to none.

    Args:
        events: the size of a block to allocate, or -k to free the k-th block.
    """
    command = [sys.executable, "-I", str(Path(__file__).resolve())]
    run = subprocess.run(command, input=json.dumps(list(events)), capture_output=True, text=True, check=True)
    found: int | None = json.loads(run.stdout)
    return found


def replay(events: Sequence[int]) -> int | None:
    """Allocate and free in this process; return the growth of its heap and of its mapped blocks, at their largest."""
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "mallinfo2") and set_thresholds(MAX_HEAP_BLOCK, NEVER_TRIM)):
        return None
    libc.mallinfo2.restype, libc.free.argtypes = _Mallinfo, [ctypes.c_void_p]
    libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    blocks, block = list[list[int | None]](), ctypes.c_void_p()
    before, most = _held(libc), 0
    for event in events:
        if event < 0:
            for freed in blocks[-event - 1]:
                libc.free(freed)
            continue
        if libc.posix_memalign(ctypes.byref(block), ALIGNMENT, event):
            return None
        blocks.append([block.value, *map(libc.malloc, SMALL_BLOCKS)])
        if event >= MAX_HEAP_BLOCK:
            most = max(most, _held(libc))
    return max(most, _held(libc)) - before


def _held(libc: ctypes.CDLL) -> int:
    found = libc.mallinfo2()
    return int(found.arena + found.hblkhd)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(replay(json.load(sys.stdin))))
