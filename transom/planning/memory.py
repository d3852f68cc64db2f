"""How the C library hands out memory: large blocks that are freed and asked for again, thousands of times a step."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_ON_HEAP, _NEVER = 1 << 30, (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed for the next request instead of giving it back to the system.

    A block that is given back comes again as pages that the kernel must clear on first touch; on small models that costs about a tenth
    of a training step. The process stays as large as it once was. Elsewhere than with glibc this does nothing.

    Returns:
        Whether the setting was made.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    return bool(libc.mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP) and libc.mallopt(_TRIM_THRESHOLD, _NEVER))
