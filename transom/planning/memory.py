"""Check that a model fits in memory: the limits of this process and what it holds."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import torch

from transom.errors import ConfigError

BYTES_PER_PARAMETER = 12
"""Minimum memory of training per parameter: a weight, a gradient and the weight of the copy for validation, in float32."""


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
    return min([_physical_memory(), *_resource_limits(), *_control_group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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


def available_memory(n_processes: int = 1) -> int:
    """Return the bytes that this process may hold, of a machine that ``n_processes`` equal processes share.

    It is the least of RLIMIT_DATA, of its share of the machine's memory and of that of its control groups, and of what it holds now and its
    share of the free memory of the system (proc(5), MemAvailable). What other processes of its control groups hold is not subtracted.
    """
    shared = [_physical_memory(), *_control_group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]
    limits = [*_resource_limits(), *(size // n_processes for size in shared)]
    meminfo = Path("/proc/meminfo")
    for line in meminfo.read_text().splitlines() if meminfo.is_file() else ():
        if line.startswith("MemAvailable:"):
            limits.append(used_memory(torch.device("cpu")) + 1024 * int(line.split()[1]) // n_processes)
    return min(limits)


def free_memory(n_processes: int = 1) -> int:
    """Return the bytes that this process may still allocate, of a machine that ``n_processes`` equal processes share."""
    left = [limit - data_memory() for limit in _resource_limits()]
    return max(0, min([available_memory(n_processes) - used_memory(torch.device("cpu")), *left]))


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


def reset_peak_memory(device: torch.device) -> None:
    """Let ``peak_memory`` count from now on. Does nothing on a CPU without Linux (proc(5), clear_refs)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # other systems, and sandboxes that forbid it: the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


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
