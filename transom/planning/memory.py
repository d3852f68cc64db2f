"""Memory: whether a model fits in it, and how the C library hands it out, in large blocks, thousands of times a step."""

import ctypes
import os

import torch

from transom.errors import ConfigError

BYTES_PER_PARAMETER = 12
"""What training holds at the least: weights, gradients and the weights that are validated, in float32."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_ON_HEAP, _NEVER = 1 << 30, (1 << 31) - 1


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
    of a training step. What is held so goes back by ``give_back_freed_memory``. Elsewhere than with glibc this does nothing.

    Returns:
        Whether the setting was made.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    return bool(libc.mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP) and libc.mallopt(_TRIM_THRESHOLD, _NEVER))


def keep_made_kernels() -> None:
    """Let oneDNN keep all the kernels that it makes, one a shape of product, unless the environment says how many.

    Batches of sentences have a hundred shapes, which make, by estimate, three thousand shapes of products; it keeps 1,024 and makes the
    others again and again, for some 6 % of a training step. It asks the environment once, before its first product.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")


def give_back_freed_memory() -> None:
    """Give what glibc holds unused back to the system: now and then, so that holes between blocks of many sizes do not add up."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
