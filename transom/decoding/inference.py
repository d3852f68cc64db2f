"""Inference helpers: preparing a model, checking call options, and mapping work over threads."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from transom.config.decoding import SamplingConfig
from transom.config.error_messages import validate
from transom.config.schema import Schema
from transom.config.suggestions import suggest
from transom.errors import ConfigError, DataError
from transom.models.base import Network

Settings = TypeVar("Settings", bound=Schema)
Job = TypeVar("Job")
Result = TypeVar("Result")
NetworkT = TypeVar("NetworkT", bound=Network)

ProgressCallback = Callable[[int, int], None]
"""Progress callback, called after every batch with (done, total)."""


class Deferred(Generic[Result]):
    """A value computed on first use; concurrent threads get the same value."""

    def __init__(self, make: Callable[[], Result]) -> None:
        self._make, self._lock, self._made = make, Lock(), list[Result]()

    @property
    def value(self) -> Result:
        """The value, computed on first use."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]


def ignore_progress(done: int, total: int) -> None:
    """Ignore progress: the default callback."""


def prepare_for_inference(model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Prepare a model for inference: cast its weights to ``dtype``, switch to evaluation mode, disable gradients."""
    model.to(device=device, dtype=dtype).eval().requires_grad_(False)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode inside the context; restore training mode on exit if it was on."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def unless_edited(backend: NetworkT | None, model: NetworkT) -> NetworkT:
    """Return a faster implementation of ``model``, if there is one and no edits are in force; else the model, which has the sites."""
    return model if backend is None or model.edits is not None else backend


def reject_single_item(given: object, what: str) -> None:
    """Reject a single text or file name where a list is expected.

    Args:
        given: argument of the caller.
        what: noun for one item of the list, such as "text".

    Raises:
        DataError: ``given`` is a single text or file name.
    """
    if isinstance(given, str | Path):
        raise DataError(f"expected a list of {what}s, found one {what}; put it in brackets: [{what}]")


def merge_options(settings: Settings, options: Mapping[str, object], known: Collection[str]) -> Settings:
    """Override settings by the options of a call and validate the result; options that are None are ignored.

    Args:
        settings: the settings of the recipe.
        options: the keyword arguments of the call.
        known: all valid option names, including options that are not settings.

    Raises:
        ConfigError: an option is unknown or its value is invalid.
    """
    for name in options:
        if name not in known:
            raise ConfigError(f"expected a known option, found {name!r}; {suggest(name, list(known))}")
    changes = {name: value for name, value in options.items() if name in type(settings).model_fields and value is not None}
    return validate(type(settings), {**settings.model_dump(), **changes}, lambda path: "decoding") if changes else settings


SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed")
"""Options that apply only with ``sample``."""


def sampling_settings(options: Mapping[str, Any]) -> SamplingConfig | None:
    """Return the settings of sampling that options of translation ask for; None without ``sample``.

    Raises:
        ConfigError: an option is invalid, or does not apply with ``sample`` or without it.
    """
    given = {name: options.get(name) for name in SAMPLING_OPTIONS if options.get(name) is not None}
    if not options.get("sample"):
        if given:
            raise ConfigError(f"decoding: expected {next(iter(given))} with sample=True, found it with beam search; leave it out")
        return None
    for name in ("beam_size", "length_penalty"):
        if options.get(name) is not None:
            raise ConfigError(f"decoding: expected {name} with beam search, found it with sample=True; leave it out")
    return merge_options(SamplingConfig(), given, SAMPLING_OPTIONS)


def parallel_map(work: Callable[[Job], Result], jobs: Sequence[Job], n_workers: int) -> Iterator[tuple[Job, Result]]:
    """Map a function over jobs in threads and yield each (job, result) when it completes.

    Results come in order with one worker and in order of completion with several.

    A decoding step consists of dozens of small operations. If several threads shared an operation, all would wait for the slowest one.
    Here every worker runs its operations on a single thread instead. PyTorch releases the GIL while an operation runs.

    Args:
        work: applied to each job. It runs in a new thread with PyTorch's default thread-local modes (autocast, inference mode).
        jobs: sorted by decreasing size.
        n_workers: maximum number of jobs that run at the same time.
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
        torch.set_num_threads(threads)  # a worker's setting also applies to threads started later
