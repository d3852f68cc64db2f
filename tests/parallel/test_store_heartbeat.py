"""Under torchrun a rank notices others whose heartbeats stop or never begin, and a store that no longer answers; each is said once."""

import os
import queue
import threading
from typing import Any

import pytest
from torch import distributed

from transom.parallel.processes import store_heartbeat
from transom.parallel.processes.torchrun import TorchrunRank

LIMIT = 0.6


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> "queue.SimpleQueue[str]":
    """Return what a process would say before it ends."""
    messages: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr(store_heartbeat, "end_process", messages.put)
    monkeypatch.setenv("MASTER_ADDR", "first-host")
    return messages


def test_all_silent_ranks_are_named_with_their_hosts(said: "queue.SimpleQueue[str]", monkeypatch: pytest.MonkeyPatch) -> None:
    store = distributed.HashStore()  # type: ignore[attr-defined]  # documented, but missing from the module's stubs
    store.set("transom-host-run-1", "second-host")
    store.add("transom-heartbeat-run-1", 7)
    store.add("transom-heartbeat-run-3", -1)
    monkeypatch.setattr(store_heartbeat, "torchrun_store", lambda: store)
    with store_heartbeat.store_heartbeat(TorchrunRank(0, 4, 0), "run", LIMIT):
        message = said.get(timeout=30)
    assert "found none from rank 1 on second-host, rank 2 for" in message, "rank 2 has not begun, rank 3 has ended"
    assert store.get("transom-host-run-0").decode() == os.uname().nodename


@pytest.mark.parametrize(("local_rank", "expected"), [(0, "expected answers from first-host, the host of rank 0, found none for"), (1, "")])
def test_one_rank_of_a_host_says_that_the_store_does_not_answer(
    local_rank: int, expected: str, said: "queue.SimpleQueue[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    class Cut:
        """Store that does not answer."""

        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: over.wait(30)

    monkeypatch.setattr(store_heartbeat, "torchrun_store", Cut)
    with store_heartbeat.store_heartbeat(TorchrunRank(2, 4, local_rank), "run", LIMIT):
        message = said.get(timeout=30)
        over.set()
    assert message.startswith(expected) and bool(message) == bool(expected)
