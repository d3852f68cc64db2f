"""The store in which the ranks that torchrun has started meet, and which may outlive them."""

import itertools
import os
import threading
import time
import uuid
from datetime import timedelta

from torch import distributed

from transom.parallel.processes.collectives import TIMEOUT, ProcessLostError
from transom.parallel.processes.torchrun import TorchrunRank

JOIN_TIMEOUT = timedelta(minutes=5)
"""Time in which the ranks must connect to the store, come together, and connect to each other."""

_POLL_SECONDS = 0.1

_numbers = itertools.count()
"""Numbers the runs of this program, which all ranks start in the same order."""


def torchrun_store() -> distributed.Store:  # type: ignore[name-defined]  # missing from the module's stubs
    """Connect to the store whose address is in the environment; rank 0 hosts it where no agent of torchrun does.

    Raises:
        ProcessLostError: the store cannot be reached.
    """
    try:
        store = next(distributed.rendezvous("env://", timeout=JOIN_TIMEOUT))[0]  # type: ignore[attr-defined]
    except RuntimeError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ProcessLostError(
            f"expected the store of the run at {address}, found no answer; check that this host can reach it, or give torchrun an address"
            " of the first host by --local-addr"
        ) from error
    store.set_timeout(TIMEOUT)
    return store


def meet(place: TorchrunRank) -> tuple[distributed.Store, str]:  # type: ignore[name-defined]
    """Wait until all ranks have come; return a part of the store that only they use, and its name.

    After a restart, torchrun's store still holds the addresses of the ranks before, to which the new ones must not connect. Each rank
    therefore asks rank 0, under a name that only it can know, for the name of the part, and confirms the answer.

    Raises:
        ProcessLostError: a rank does not come, or the store is lost.
    """
    try:
        return _meet(place)
    except RuntimeError as error:
        raise ProcessLostError("expected the store of the run to answer while processes start, found it lost; start again") from error


def _meet(place: TorchrunRank) -> tuple[distributed.Store, str]:  # type: ignore[name-defined]
    store, key = torchrun_store(), f"transom-{next(_numbers)}"
    pause = threading.Event()  # store.get would not return for a signal
    if place.rank > 0:
        own = uuid.uuid4().hex
        store.set(f"{key}-question-{place.rank}", own)
        while not store.check([f"{key}-answer-{own}"]):
            pause.wait(_POLL_SECONDS)
        name = store.get(f"{key}-answer-{own}").decode()
        store.set(f"{key}-{name}-{place.rank}", "")
    else:
        name, missing = uuid.uuid4().hex, set(range(1, place.size))
        deadline = time.monotonic() + JOIN_TIMEOUT.total_seconds()
        while missing:
            if time.monotonic() > deadline:
                raise ProcessLostError(
                    f"expected {place.size} processes to join, found none of rank {', '.join(map(str, sorted(missing)))} in"
                    f" {JOIN_TIMEOUT.total_seconds():.0f} s; check their hosts, and start again"
                )
            for rank in missing:
                if store.check([f"{key}-question-{rank}"]):  # perhaps of the rank before the restart
                    store.set(f"{key}-answer-{store.get(f'{key}-question-{rank}').decode()}", name)
            missing = {rank for rank in missing if not store.check([f"{key}-{name}-{rank}"])}
            pause.wait(_POLL_SECONDS if missing else 0)
    return distributed.PrefixStore(name, store), name  # type: ignore[attr-defined]
