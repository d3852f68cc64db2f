"""Work dealt out to threads: two searches side by side use two cores better than one search with two threads an operation."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")


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
