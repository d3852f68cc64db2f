"""Several processes share each batch: the same steps as one process makes, the same end after any stop, bad samples named from all."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import tiers
from tests.training.test_train_loop import die, kill_at, same, sit, traces
from transom.checkpoints.run_folder import RunFolder
from transom.errors import TransomError
from transom.training.events import CheckpointSaved, Event, StepFinished

EXACT = {"precision": "fp32", "max_steps": 6, "checkpoint_every": 3, "validate_every": 6, "validate_bleu": 0, "log_every": 1}
"""No rounding to speak of."""


def history(out: Path, **training: Any) -> list[StepFinished]:
    seen: list[Event] = []
    sit(out, seen.append, **{**EXACT, **training})
    return [event for event in seen if isinstance(event, StepFinished)]


@pytest.mark.parametrize("optimizer", tiers(["adam", "muon"], long=[]))
def test_three_processes_make_the_steps_of_one(tmp_path: Path, optimizer: str) -> None:
    alone, together = (history(tmp_path / str(n), parallel={"data": n}, optimizer=optimizer) for n in (1, 3))
    for one, three in zip(alone, together, strict=True):
        assert one.n_target_tokens == three.n_target_tokens
        assert (one.loss, one.nll, one.grad_norm) == pytest.approx((three.loss, three.nll, three.grad_norm), rel=2e-4)


@pytest.mark.long
def test_a_run_of_two_processes_goes_on_to_the_same_end(tmp_path: Path) -> None:
    sit(tmp_path / "alone", parallel={"data": 2})
    assert {"generators/cpu", "generators/rank-1.cpu"} <= traces(tmp_path / "alone")[0].keys()
    die(partial(sit, tmp_path / "killed", parallel={"data": 2}), [kill_at(2, StepFinished), kill_at(6, CheckpointSaved)])
    steps: list[int] = []
    stopped = sit(tmp_path / "killed", lambda e: steps.append(e.step), lambda: bool(steps) and steps[-1] >= 8, parallel={"data": 2})
    assert stopped.reason == "stopped"
    sit(tmp_path / "killed", parallel={"data": 2})
    same(tmp_path / "alone", tmp_path / "killed")


@pytest.mark.long
def test_bad_samples_are_named_from_all_processes(tmp_path: Path) -> None:
    def named(n: int) -> list[set[str]]:
        seen: list[Event] = []
        with pytest.raises(TransomError, match="found none in 20 consecutive steps"):
            sit(tmp_path / str(n), seen.append, learning_rate=1e38, max_grad_norm=None, max_steps=60, parallel={"data": n})
        return [set(event.skipped) for event in seen if isinstance(event, StepFinished) and event.skipped]

    assert named(1)[1:20] == named(2)[1:20]


@pytest.mark.long
def test_a_stopped_process_ends_the_run_in_one_line_and_its_checkpoint_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transom.parallel.processes.heartbeat.TIMEOUT", 2.0)

    def stop_the_other(event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            children = (pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split())
            (other,) = (int(pid) for pid in children if b"transom.training.rank_process" in Path("/proc", pid, "cmdline").read_bytes())
            os.kill(other, signal.SIGSTOP)

    with pytest.raises(TransomError, match=r"found none from rank 1 for [2-9] s: it was stopped.*the last checkpoint is kept") as error:
        sit(tmp_path, stop_the_other, **EXACT, parallel={"data": 2})
    assert "\n" not in str(error.value)
    kept = RunFolder.open(tmp_path).checkpoints.latest()
    assert kept is not None and kept.step == 3
