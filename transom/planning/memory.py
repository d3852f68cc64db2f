"""Memory: whether a model fits in it, and how the C library hands it out, in large blocks, thousands of times a step."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from transom.errors import ConfigError

BYTES_PER_PARAMETER = 12
"""What training holds at the least: weights, gradients and the weights that are validated, in float32."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_ON_HEAP, _NEVER = 1 << 30, (1 << 31) - 1
_LARGEST_BY_DEFAULT = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long)
"""Where glibc's own threshold of separate mappings ends, which grows with what a process frees (mallopt(3), M_MMAP_THRESHOLD)."""

_ASKED_FOR = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
_TUNABLES = ("glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold")
"""By which a user sets the same thresholds for a whole process."""

KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4096"}
"""Lets oneDNN keep all the kernels that it makes, one a shape of product; it asks the environment once, before its first product.

Batches of sentences have a hundred shapes, which make, by estimate, three thousand shapes of products; by itself it keeps 1,024 and makes
the others again and again, for some 6 % of a training step.
"""


def refuse_larger_than_memory(n_parameters: int, device: torch.device) -> None:
    """Refuse to build a model that could not be trained here.

    Args:
        n_parameters: of the model.
        device: where it would be.

    Raises:
        ConfigError: its parameters alone are more than all the memory there is.
    """
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if n_parameters * BYTES_PER_PARAMETER > there:
        raise ConfigError(
            f"model: expected one that fits in {there / 1e9:.1f} GB of memory, found {n_parameters:,} parameters, which take at least"
            f" {n_parameters * BYTES_PER_PARAMETER / 1e9:,.1f} GB to train; lower the widths, the layers or tokenizer.vocab_size"
        )


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed for the next request instead of giving it back to the system.

    A block that is given back comes again as pages that the kernel must clear on first touch; on small models that costs about a tenth
    of a training step. What is held so goes back by ``give_back_freed_memory``. Elsewhere than with glibc this does nothing, nor where
    the environment sets these thresholds.

    Returns:
        Whether the setting was made.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if _ASKED_FOR & os.environ.keys() or any(name in tunables for name in _TUNABLES):
        return False
    return _set_thresholds(_LARGEST_ON_HEAP, _NEVER)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory for a while, then give it back to the system and set the thresholds as a process has them by itself.

    glibc cannot say what its thresholds were. They begin at 128 KiB, and freeing a larger block raises them, to 32 MiB (64 MiB for what
    is kept) in a process that has freed one tensor of that size, until they are set, which ends their growing. So they are set to where
    they would have ended: at 128 KiB for good, each larger tensor of the caller's would be cleared by the kernel on first touch.
    """
    kept = keep_freed_memory()
    try:
        yield
    finally:
        if kept:
            _set_thresholds(_LARGEST_BY_DEFAULT, 2 * _LARGEST_BY_DEFAULT)
            give_back_freed_memory()


def give_back_freed_memory() -> None:
    """Give what glibc holds unused back to the system: now and then, so that holes between blocks of many sizes do not add up."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _set_thresholds(largest_on_heap: int, most_kept: int) -> bool:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    return bool(libc.mallopt(_MMAP_THRESHOLD, largest_on_heap) and libc.mallopt(_TRIM_THRESHOLD, most_kept))
