"""The store in which the ranks that torchrun has started meet, and which may outlive them."""

import itertools
import threading
import uuid

from torch import distributed

from transom.parallel.collectives import TIMEOUT
from transom.parallel.torchrun import TorchrunRank

_POLL_SECONDS = 0.1

_numbers = itertools.count()
"""Numbers the runs of this program, which all ranks start in the same order."""


def torchrun_store() -> distributed.Store:  # type: ignore[name-defined]  # missing from the module's stubs
    """Connect to the store whose address is in the environment; rank 0 hosts it where no agent of torchrun does."""
    return next(distributed.rendezvous("env://", timeout=TIMEOUT))[0]  # type: ignore[attr-defined]


def meet(place: TorchrunRank) -> tuple[distributed.Store, str]:  # type: ignore[name-defined]
    """Wait until all ranks have come; return a part of the store that only they use, and its name.

    After a restart, torchrun's store still holds the addresses of the ranks before, to which the new ones must not connect. Each rank
    therefore asks rank 0, under a name that only it can know, for the name of the part, and confirms the answer.
    """
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
        while missing:
            for rank in missing:
                if store.check([f"{key}-question-{rank}"]):  # perhaps of the rank before the restart
                    store.set(f"{key}-answer-{store.get(f'{key}-question-{rank}').decode()}", name)
            missing = {rank for rank in missing if not store.check([f"{key}-{name}-{rank}"])}
            pause.wait(_POLL_SECONDS if missing else 0)
    return distributed.PrefixStore(name, store), name  # type: ignore[attr-defined]
