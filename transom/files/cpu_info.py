"""Instruction sets of the CPU, read from /proc/cpuinfo."""

from pathlib import Path


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the CPU's instruction-set flags by their Linux names, such as ``avx2``; empty on other systems."""
    try:
        lines = cpuinfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return set()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))  # x86, ARM
    return set(next(flags, "").split())
