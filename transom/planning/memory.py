"""Check that a model fits in memory, and configure how glibc's malloc and oneDNN reuse memory between training steps."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from transom.errors import ConfigError
from transom.planning.heap import MAX_HEAP_BLOCK, NEVER_TRIM, set_thresholds

BYTES_PER_PARAMETER = 12
"""Minimum memory of training per parameter: a weight, a gradient and the weight of the copy for validation, in float32."""

_MAX_DYNAMIC_MMAP_THRESHOLD = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long)
"""Upper limit of glibc's dynamic mmap threshold, which grows with the blocks that a process frees (mallopt(3), M_MMAP_THRESHOLD)."""

_MALLOC_VARIABLES = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
_GLIBC_TUNABLES = ("glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold")
"""Environment variables, and settings in ``GLIBC_TUNABLES``, with which a user sets the malloc thresholds of the whole process."""

ONEDNN_ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4096"}
"""Capacity of oneDNN's kernel cache, one kernel per product shape; oneDNN reads the variable once, before its first product.

Batches of sentences have about a hundred shapes, whose matrix products have an estimated three thousand shapes. The default capacity is
1,024 kernels; the other kernels are built repeatedly, which costs about 6% of a training step.
"""


def check_fits_in_memory(n_parameters: int, device: torch.device) -> None:
    """Raise ConfigError if a model cannot be trained in the memory of a device.

    Args:
        n_parameters: number of parameters of the model.
        device: device of the model.

    Raises:
        ConfigError: ``BYTES_PER_PARAMETER`` times the number of parameters exceeds the device's total memory.
    """
    available = device_memory(device)
    if n_parameters * BYTES_PER_PARAMETER > available:
        raise ConfigError(
            f"model: expected a model that can be trained in {available / 1e9:.1f} GB of memory, found {n_parameters:,} parameters,"
            f" which need at least {n_parameters * BYTES_PER_PARAMETER / 1e9:,.1f} GB; lower the widths, the layers or tokenizer.vocab_size"
        )


def device_memory(device: torch.device) -> int:
    """Return the memory of a device in bytes; on a CPU no more than the limits of this process: RLIMIT_DATA and its control groups."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_resource_limits(), *_control_group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _resource_limits() -> list[int]:
    if sys.platform == "win32":
        return []
    import resource  # which Windows lacks

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return [] if soft == resource.RLIM_INFINITY else [soft]


def _control_group_limits(membership: Path, mount: Path) -> list[int]:
    """Return the memory limits of the control groups of a process and of the groups around them (cgroups(7), versions 1 and 2).

    Args:
        membership: file whose lines are ``id:controllers:path``.
        mount: folder of the hierarchies.
    """
    files = list[Path]()
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (mount / "memory", "memory.limit_in_bytes") if controllers else (mount, "memory.max")
        group = root / path.lstrip("/")
        files += [folder / name for folder in (group, *group.parents) if folder.is_relative_to(root)]
    found = [file.read_text().strip() for file in files if file.is_file()]
    return [int(limit) for limit in found if limit.isdecimal()]


def used_memory(device: torch.device) -> int:
    """Return the bytes that this process holds now: resident in memory, or allocated on a GPU."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _resident("VmRSS:")


def peak_memory(device: torch.device) -> int:
    """Return the largest number of bytes that this process held at once: resident in memory, or allocated on a GPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return _resident("VmHWM:")


def data_memory() -> int:
    """Return the bytes of this process that RLIMIT_DATA limits, resident or not; without Linux the resident ones."""
    return _resident("VmData:")


def limit_data(size: int) -> None:
    """Let allocations fail in this process when its data exceed ``size`` bytes (setrlimit(2), RLIMIT_DATA). Does nothing on Windows."""
    if sys.platform != "win32":
        import resource  # which Windows lacks

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def _resident(field: str) -> int:
    """Read the resident memory from Linux; elsewhere return its peak, the only value that the system gives."""
    if (status := Path("/proc/self/status")).is_file():
        return next(1024 * int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field))
    import resource  # which Windows lacks

    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage if sys.platform == "darwin" else 1024 * usage


def raise_malloc_thresholds() -> bool:
    """Raise glibc's malloc thresholds, so that freed memory is reused instead of returned to the system.

    Returned memory comes back as pages that the system clears on first touch, which costs about 10% of a training step on small models.
    ``trim_malloc`` returns the memory held this way. Does nothing without glibc, or if the environment sets these thresholds.

    Returns:
        Whether the thresholds were set.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if _MALLOC_VARIABLES & os.environ.keys() or any(name in tunables for name in _GLIBC_TUNABLES):
        return False
    return set_thresholds(MAX_HEAP_BLOCK, NEVER_TRIM)


@contextmanager
def raised_malloc_thresholds() -> Iterator[None]:
    """Raise glibc's malloc thresholds in the block; afterwards return free memory and set the thresholds to their usual maximum.

    The previous thresholds cannot be read. They start at 128 KiB and grow as larger blocks are freed, up to 32 MiB for mmap and 64 MiB for
    trimming; setting them stops this growth. They are therefore set to this maximum: at 128 KiB, the pages of every larger tensor of the
    caller would be cleared on first touch.
    """
    raised = raise_malloc_thresholds()
    try:
        yield
    finally:
        if raised:
            set_thresholds(_MAX_DYNAMIC_MMAP_THRESHOLD, 2 * _MAX_DYNAMIC_MMAP_THRESHOLD)
            trim_malloc()


def trim_malloc() -> None:
    """Return unused memory from glibc to the system (``malloc_trim``); called occasionally to limit fragmentation."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
