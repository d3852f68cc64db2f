"""Set up a process for training, and restore its state afterwards: training may run inside a program of the user."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from transom.planning.memory import ONEDNN_ENVIRONMENT, raised_malloc_thresholds
from transom.planning.precision import num_threads_set_to


@contextmanager
def preserved_process_state() -> Iterator[None]:
    """Set up this process for training; afterwards restore random state, threads, environment and warning filters.

    Two settings persist, because they cannot be read or cannot be changed again. They affect speed and memory, but no result. glibc's
    malloc thresholds stay at their usual maximum (``memory.raised_malloc_thresholds``). oneDNN keeps the capacity of its kernel cache.
    """
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with (
        torch.random.fork_rng(gpus),
        num_threads_set_to(torch.get_num_threads()),
        environment_defaults(ONEDNN_ENVIRONMENT),
        warnings.catch_warnings(),
        raised_malloc_thresholds(),
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
