"""What a training sets in its process, and gives back when it ends: it may run inside somebody else's program."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from transom.planning.memory import KERNELS, freed_memory_kept
from transom.planning.precision import using_threads


@contextmanager
def training_process() -> Iterator[None]:
    """Set this process up for a training; afterwards random state, threads, environment, warning filters and allocator are as they were.

    Two settings outlive the training, because they cannot be read back or changed again, and they change no result: the C library's
    thresholds stay where they would have grown to (``memory.freed_memory_kept``), and oneDNN keeps the number of kernels that it was told
    before its first product.
    """
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with (
        torch.random.fork_rng(gpus),
        using_threads(torch.get_num_threads()),
        environment_with(KERNELS),
        warnings.catch_warnings(),
        freed_memory_kept(),
    ):
        yield


@contextmanager
def environment_with(defaults: dict[str, str]) -> Iterator[None]:
    """Set the environment variables that are not set, for a while; afterwards all are as before, also those that PyTorch's imports set."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in defaults.items() if name not in before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
