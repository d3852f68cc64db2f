"""A model made ready to answer, what it is asked, and its work dealt out to threads."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

import torch
from torch import nn

from transom.config.brick import Schema
from transom.config.explaining import check
from transom.config.names import nearest
from transom.errors import ConfigError, DataError

Settings = TypeVar("Settings", bound=Schema)
Job = TypeVar("Job")
Result = TypeVar("Result")

Tell = Callable[[int, int], None]
"""Is told how many are done, of how many, from batch to batch."""


class Deferred(Generic[Result]):
    """A value that is made on first use; threads that ask for it at the same time get the same one."""

    def __init__(self, make: Callable[[], Result]) -> None:
        """Hold the function that makes it."""
        self._make, self._lock, self._made = make, Lock(), list[Result]()

    @property
    def value(self) -> Result:
        """Return the value, making it where that was not done yet."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]


def unheard(done: int, total: int) -> None:
    """Tell nobody."""


def prepare(model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Freeze a model for answering: weights in the type of the matrix products, no dropout, no gradients."""
    model.to(device=device, dtype=dtype).eval().requires_grad_(False)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Turn dropout off for a while; a model in training goes back to it."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def refuse_one(given: object, what: str) -> None:
    """Refuse one text, or one file's name, in place of a list of them.

    Raises:
        DataError: it is one.
    """
    if isinstance(given, str | Path):
        raise DataError(f"expected a list of {what}s, found one {what}; put it in brackets: [{what}]")


def settled(settings: Settings, options: Mapping[str, object], known: Collection[str]) -> Settings:
    """Lay options over settings and check them; an option that is None changes nothing.

    Args:
        settings: the recipe's.
        options: of the call.
        known: the names that an option may have, those that are no setting too.

    Raises:
        ConfigError: an option is unknown, or its value does not fit.
    """
    for name in options:
        if name not in known:
            raise ConfigError(f"expected an option, found {name!r}; {nearest(name, list(known))}")
    changes = {name: value for name, value in options.items() if name in type(settings).model_fields and value is not None}
    return check(type(settings), {**settings.model_dump(), **changes}, lambda path: "decoding") if changes else settings


def deal_out(work: Callable[[Job], Result], jobs: Sequence[Job], n_workers: int) -> Iterator[tuple[Job, Result]]:
    """Yield each job with its result as it is done: in order on one worker, in any order on several.

    A search step is dozens of small operations. Split over threads, each of them waits for the slowest thread; dealt out, a worker runs its
    operations on one thread of its own and never waits. PyTorch's operations release the interpreter while they run.

    Args:
        work: what to do with a job. Thread-local modes of PyTorch (autocast, inference mode) are those of a new thread.
        jobs: the largest first.
        n_workers: most jobs at a time.
    """
    n_workers = min(n_workers, len(jobs))
    if n_workers < 2:
        yield from ((job, work(job)) for job in jobs)
        return
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(n_workers, "transom", torch.set_num_threads, (1,))
    try:
        pending = {pool.submit(work, job): job for job in jobs}
        for future in as_completed(pending):
            yield pending[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # a worker's setting is also that of threads to come
