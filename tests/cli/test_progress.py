"""What a person sees while it works, and how a stop is asked for."""

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Call, Trained
from transom.tasks import progress
from transom.tasks.train import GracefulStop
from transom.training.events import Forecast, StepFinished, TrainingStarted


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the bars believe that a person watches."""
    monkeypatch.setattr(progress, "live", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")


@pytest.mark.usefixtures("_terminal")
def test_the_bar_of_a_training(trained: Trained, transom: Call, tmp_path: Path) -> None:
    outcome = transom(*trained.command, "--out", tmp_path / "run")
    assert outcome.code == 0
    assert "10/10 steps" in outcome.err and "tokens/s" in outcome.err and "of peak" in outcome.err and "left" in outcome.err
    assert "step 10: validation loss" in outcome.err
    assert "\x1b" not in outcome.out


@pytest.mark.usefixtures("_terminal")
def test_the_bar_of_a_translation(trained: Trained, transom: Call) -> None:
    outcome = transom("translate", trained.folder, "--input", trained.source)
    assert "120/120" in outcome.err and "sentences" in outcome.err and "/s" in outcome.err
    assert outcome.out.count("\n") == 120


def test_lines_where_nobody_watches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    for quiet in (False, True):
        with progress.show_progress("sentences", quiet) as notify:
            for done, seconds in ((5, 60.0), (6, 1.0), (10, 19.0)):  # 60 s of set-up and for the first five
                now += seconds
                notify(done, 20)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["5/20 sentences", "10/20 sentences  0.25/s  40 s left"]


def test_the_rate_is_measured_from_the_first_call_and_leaves_out_the_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    rate = progress._Rate()
    told = []
    for done, seconds in ((0, 60.0), (1, 2.0), (4, 6.0)):
        now += seconds
        told.append(rate(done, 10))
    assert told == ["", "0.5/s  18 s left", "0.5/s  12 s left"]


def test_skipped_steps_name_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.TrainingProgress() as shown:
        shown(
            TrainingStarted(
                Path("run"),
                3,
                10,
                {
                    "parameters": 5,
                    "active_parameters": 5,
                    "precision": "fp32",
                    "threads": "1 thread",
                    "processes": "",
                    "unit": "target tokens",
                },
                ("look at this",),
            )
        )
        shown(StepFinished(4, float("nan"), 1.0, 0.1, float("nan"), 7, 8.0, 0.1, 9.0, 1.5, skipped=tuple(f"line {n}" for n in range(12))))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["look at this", "5 parameters; fp32; 1 thread", "resuming from step 3"]
    assert lines[3] == f"step 4: loss or gradient was not finite, step skipped (samples: {', '.join(f'line {n}' for n in range(10))} ...)"


def test_busy_experts_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.TrainingProgress() as shown:
        shown(StepFinished(4, 2.0, 1.0, 0.1, 1.0, 7, 8.0, 0.1, 9.0, 1.5, aux_metrics={"max_expert_load": 1.5, "expert_overflow": 0}))
    assert "  max expert load 1.50 x mean  " in capsys.readouterr().err
    with progress.TrainingProgress() as shown:
        shown(StepFinished(4, 2.0, 1.0, 0.1, 1.0, 7, 8.0, 0.1, 9.0, 1.5, aux_metrics={"max_expert_load": 1.5, "expert_overflow": 1234}))
    assert "x mean, 1,234 dropped  " in capsys.readouterr().err


def test_what_the_pace_foresees_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.TrainingProgress() as shown:
        shown(Forecast(100, 1000, ("two", "lines")))
        shown(StepFinished(101, 2.0, 1.0, 0.1, 1.0, 7, 8.0, 0.1, 9.0, 1.25))
    told, more, line = capsys.readouterr().err.splitlines()
    assert (told, more) == ("two", "lines") and "  epoch 1.2  loss 2.000  " in line


def test_a_first_signal_asks_and_a_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), GracefulStop() as stop:
        assert not stop.requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested() and stop.signal == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_thread_leaves_signals_alone() -> None:
    seen = []

    def enter() -> None:
        with GracefulStop() as stop:
            seen.append(stop.requested())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [False]
