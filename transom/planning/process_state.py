"""Set up a process for training, and restore its state afterwards: training may run inside a program of the user."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from transom.planning.freed_memory import restored_malloc
from transom.planning.precision import num_threads_set_to

ONEDNN_ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4096"}
"""Capacity of oneDNN's kernel cache, one kernel per product shape; oneDNN reads the variable once, before its first product.

Batches of sentences have about a hundred shapes, whose matrix products have an estimated three thousand shapes. The default capacity is
1,024 kernels; the other kernels are built repeatedly, which costs about 6% of a training step.
"""


@contextmanager
def preserved_process_state() -> Iterator[None]:
    """Set up this process for training; afterwards restore random state, threads, environment and warning filters.

    Three settings persist, because they cannot be read or cannot be changed again. They affect speed and memory, but no result. glibc's
    malloc thresholds stay at their usual maximum (``freed_memory.restored_malloc``). oneDNN keeps the capacity of its kernel cache. The
    peak of resident memory that Linux reports counts from the start of the training.
    """
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with (
        torch.random.fork_rng(gpus),
        num_threads_set_to(torch.get_num_threads()),
        environment_defaults(ONEDNN_ENVIRONMENT),
        warnings.catch_warnings(),
        restored_malloc(),
    ):
        yield


@contextmanager
def environment_defaults(defaults: dict[str, str]) -> Iterator[None]:
    """Set missing environment variables in the block; afterwards restore the whole environment, including variables set by PyTorch."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in defaults.items() if name not in before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
