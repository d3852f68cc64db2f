"""Give the memory of freed tensors back to the system, or keep it for later tensors: glibc's malloc (mallopt(3)).

Training decides by the memory that its steps need. Commands that answer many inputs keep it until all are answered.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch

from transom.planning.memory import available_memory, data_memory, peak_memory, reset_peak_memory

GIVEN_BACK_BLOCK = 4 << 20
"""Size from which a freed block is given back, in bytes; smaller ones are kept by malloc."""

MEASURED_STEPS = 2
"""Steps after which the memory that a training needs is known: from the second on, the state of the optimizer is there too."""

KEPT_FACTOR = 2
"""Memory of a process that keeps freed memory, as a multiple of what it needs, at most.

Measured 2026-11-27 for Vision Transformers on Linux: 1.1 to 2. A small block that settles beside a freed tensor leaves too little room for
the next tensor of the same size.
"""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""

_MAX_HEAP_BLOCK, _NEVER_TRIM = 1 << 30, (1 << 31) - 1
"""Thresholds with which malloc keeps freed memory, except that of blocks of 1 GiB or more. glibc before 2.35 refuses thresholds above
``_MAX_DYNAMIC_MMAP_THRESHOLD``."""

_MAX_DYNAMIC_MMAP_THRESHOLD = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long)
"""Upper limit of glibc's dynamic mmap threshold, which grows with the blocks that a process frees (mallopt(3), M_MMAP_THRESHOLD)."""

_MALLOC_VARIABLES = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
_GLIBC_TUNABLES = ("glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold")
"""Environment variables, and settings in ``GLIBC_TUNABLES``, with which a user sets the malloc thresholds of the whole process."""

Shortage = Literal["", "little room", "ran out"]
"""Why freed memory is not kept; empty if it is, or if that is not known yet."""


class Room(NamedTuple):
    """Memory of a training after its first steps, in bytes.

    Attributes:
        needed: most that this process held in its first steps, when it gave freed memory back.
        available: what it may hold.
    """

    needed: int
    available: int


class FreedMemoryPolicy:
    """Decides for a training on a CPU whether freed memory is given back to the system at once or kept.

    New pages are cleared when they are first touched, so that steps that give memory back take up to twice as long. Steps that keep it need
    up to twice the memory. The first steps therefore give it back; if twice their peak fits, later steps keep it.

    Attributes:
        room: memory after the first steps; None before, on a GPU, and where the thresholds of malloc cannot be set.
        kept: whether freed memory is kept now.
        shortage: why it is not kept: twice the peak does not fit, or memory ran out.
    """

    def __init__(self, device: torch.device, n_processes: int = 1) -> None:
        """Give memory back from now on, and count the peak of this process from now on; on a GPU, keep it.

        Args:
            device: device of the training.
            n_processes: number of processes that share the machine's memory.
        """
        self.room: Room | None = None
        self.kept = False
        self.shortage: Shortage = ""
        self._device, self._n_processes, self._n_steps = device, n_processes, 0
        self._gives_back = device.type == "cpu" and give_back_freed_memory()
        if self._gives_back:
            reset_peak_memory(device)
        elif device.type != "cpu":
            keep_freed_memory()

    def after_step(self) -> None:
        """Measure what the first steps needed, and keep freed memory from then on if there is room. Call it after each update."""
        self._n_steps += 1
        if self._n_steps != MEASURED_STEPS or not self._gives_back:
            return
        self.room = Room(peak_memory(self._device), available_memory(self._n_processes))
        if KEPT_FACTOR * max(self.room.needed, data_memory()) <= self.room.available:
            self.kept = keep_freed_memory()
        else:
            self.shortage = "little room"

    def give_back(self) -> None:
        """Give freed memory back from now on, and what is free now at once."""
        self.kept, self.shortage = False, "ran out"
        give_back_freed_memory()


def give_back_freed_memory() -> bool:
    """Let malloc give large blocks back to the system when they are freed, and what is free now at once.

    Does nothing without glibc, or if the environment sets the thresholds of malloc.

    Returns:
        Whether it does.
    """
    is_set = _set_thresholds(GIVEN_BACK_BLOCK, GIVEN_BACK_BLOCK)
    if is_set:
        trim_malloc()
    return is_set


def keep_freed_memory() -> bool:
    """Let malloc keep freed memory for later blocks; ``trim_malloc`` gives it back.

    Does nothing without glibc, or if the environment sets the thresholds of malloc.

    Returns:
        Whether it does.
    """
    return _set_thresholds(_MAX_HEAP_BLOCK, _NEVER_TRIM) or _set_thresholds(_MAX_DYNAMIC_MMAP_THRESHOLD, _NEVER_TRIM)


@contextmanager
def restored_malloc() -> Iterator[None]:
    """Keep freed memory in the block; afterwards return it and set the thresholds to their usual maximum.

    The previous thresholds cannot be read. They start at 128 KiB and grow as larger blocks are freed, up to 32 MiB for mmap and 64 MiB for
    trimming; setting them stops this growth. They are therefore set to this maximum: at 128 KiB, the pages of every larger tensor of the
    caller would be cleared on first touch.
    """
    is_set = keep_freed_memory()
    try:
        yield
    finally:
        if is_set:
            _set_thresholds(_MAX_DYNAMIC_MMAP_THRESHOLD, 2 * _MAX_DYNAMIC_MMAP_THRESHOLD)
            trim_malloc()


def trim_malloc() -> None:
    """Return unused memory from glibc to the system (``malloc_trim``); called occasionally to limit fragmentation."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _set_thresholds(mmap_threshold: int, trim_threshold: int) -> bool:
    """Set both thresholds of glibc's malloc, unless the environment does; return whether they were set."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if _MALLOC_VARIABLES & os.environ.keys() or any(name in tunables for name in _GLIBC_TUNABLES):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    return bool(libc.mallopt(_MMAP_THRESHOLD, mmap_threshold) and libc.mallopt(_TRIM_THRESHOLD, trim_threshold))
