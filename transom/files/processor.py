"""The processor's instruction sets, read from the system's own file."""

from pathlib import Path


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the names of the processor's instruction sets, as Linux spells them; none on other systems."""
    try:
        lines = cpuinfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return set()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))  # of x86, of ARM
    return set(next(flags, "").split())
