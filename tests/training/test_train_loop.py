"""The loop: a run that was stopped or killed ends as the run left alone, bit for bit; selection, stopping, skipping."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from transom.checkpoints.run_files import WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_tensors
from transom.errors import ConfigError, TransomError
from transom.parallel.shared_checkpoints import SharedCheckpoints
from transom.tasks.task import build_training_setup
from transom.tasks.translation.schema import TranslationRecipe
from transom.training import step_timer, train_loop
from transom.training.checkpoint_selection import is_better
from transom.training.events import CheckpointSaved, Event, Forecast, StepFinished, TrainingFinished, TrainingStarted, ValidationFinished
from transom.training.metrics_window import TIMED
from transom.training.train_loop import train

TRAINING = {
    "max_steps": 12,
    "batch_tokens": 96,
    "grad_accum_steps": 2,
    "learning_rate": 0.01,
    "precision": "bf16",
    "average": {"kind": "checkpoints", "n_checkpoints": 3},
    "validate_every": 4,
    "validate_bleu": 4,
    "checkpoint_every": 3,
    "log_every": 2,
}
MODEL = {"d_model": 8, "n_heads": 2, "d_ff": 16, "n_encoder_layers": 1, "n_decoder_layers": 1, "max_seq_len": 32, "dropout": 0.1}


def recipe(model: Mapping[str, Any] = MODEL, parallel: Mapping[str, int] = {}, **training: Any) -> TranslationRecipe:
    return TranslationRecipe.model_validate(
        {
            "data": {"generate": {"kind": "reverse", "n_train": 100, "n_valid": 10, "n_test": 10, "max_length": 5}},
            "tokenizer": {"kind": "bpe", "vocab_size": 300, "bpe_dropout": 0.2},
            "model": model,
            "training": {**TRAINING, **training},
            "parallel": parallel,
            "decoding": {"beam_size": 2, "max_length": 16},
        }
    )


def sit(
    out: Path, callback: Callable[[Event], None] = lambda _: None, stop: Callable[[], bool] = lambda: False, **training: Any
) -> TrainingFinished:
    """One sitting of a run in ``out``, going on with what is there."""
    with RunFolder.create(out, resume=True) as folder:
        return train(build_training_setup(recipe(**training), Path(), folder), [callback], stop)


class Killed(Exception):
    """Stands for kill -9: nothing in the loop handles it."""


def kill_at(step: int, kind: type[Event]) -> Callable[[Event], None]:
    def callback(event: Event) -> None:
        if isinstance(event, kind) and event.step >= step:
            raise Killed

    return callback


KILLS = (
    kill_at(0, TrainingStarted),
    kill_at(2, StepFinished),
    kill_at(4, ValidationFinished),
    kill_at(6, CheckpointSaved),
    kill_at(8, StepFinished),
)
"""Deaths of a run's sittings, one after another, in each of its phases."""


def die(result: Callable[[Callable[[Event], None]], object], kills: Sequence[Callable[[Event], None]] = KILLS) -> None:
    """Take a sitting for each death."""
    for callback in kills:
        with pytest.raises(Killed):
            result(callback)


def die_and_end_the_same(result: Callable[..., object], at: Path, kills: Sequence[Callable[[Event], None]] = KILLS) -> None:
    """Compare a run that dies and goes on, again and again, with one that is left alone; ``result`` takes a folder and an observer."""
    result(at / "alone")
    die(partial(result, at / "killed"), kills)
    result(at / "killed")
    same(at / "alone", at / "killed")


def traces(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What must be the same: every tensor of the last checkpoint and the kept weights, and the history but for its times."""
    folder = RunFolder.open(out)
    newest = folder.checkpoints.latest()
    assert newest is not None
    groups, state, _ = folder.checkpoints.load(newest.step)
    tensors = {f"{group}/{name}": x for group, entries in groups.items() for name, x in entries.items()}
    history = [{name: value for name, value in record.items() if name not in TIMED} for record in folder.metrics.read()]
    progress = {name: value for name, value in state["progress"].items() if name not in ("seconds", "window")}
    kept = {f"kept/{name}": x for name, x in read_tensors(out / WEIGHTS).items()}
    return {**tensors, **kept, "progress": progress, "step": newest.step}, history


def same(a: Path, b: Path) -> None:
    (tensors, history), (others, other_history) = traces(a), traces(b)
    assert history == other_history
    assert tensors.keys() == others.keys()
    for name, x in tensors.items():
        assert torch.equal(x, others[name]) if isinstance(x, torch.Tensor) else x == others[name], name


@pytest.mark.parametrize(
    "kinds",
    [
        {"average": {"kind": "checkpoints", "n_checkpoints": 3}, "optimizer": "adam"},
        pytest.param({"average": {"kind": "ema", "decay": 0.9}, "optimizer": "adamw"}, marks=pytest.mark.long),
        pytest.param({"average": {"kind": "none"}, "optimizer": "sgd"}, marks=pytest.mark.long),
        pytest.param({"average": {"kind": "none"}, "optimizer": "muon"}, marks=pytest.mark.long),
    ],
)
def test_killed_and_stopped_runs_end_as_the_run_left_alone(tmp_path: Path, kinds: dict[str, Any]) -> None:
    sit(tmp_path / "alone", **kinds)
    out = tmp_path / "killed"
    die(partial(sit, out, **kinds))
    steps: list[int] = []
    stopped = sit(out, lambda e: steps.append(e.step), lambda: bool(steps) and steps[-1] >= 10, **kinds)
    assert stopped.reason == "stopped" and stopped.step == 10  # asked for between two checkpoints
    assert sit(out, **kinds).reason == "max_steps"
    same(tmp_path / "alone", out)


@pytest.mark.long
def test_many_stops_between_two_checkpoints_lose_nothing(tmp_path: Path) -> None:
    many = {"max_steps": 22, "checkpoint_every": 5, "validate_every": 11}
    sit(tmp_path / "alone", **many)
    for _ in range(13):
        assert sit(tmp_path / "stopped", stop=lambda: True, **many).reason == "stopped"  # after each step
    sit(tmp_path / "stopped", **many)
    same(tmp_path / "alone", tmp_path / "stopped")


def test_a_run_stopped_at_its_last_step_is_validated_when_it_goes_on(tmp_path: Path) -> None:
    seen: list[Event] = []
    few = {"max_steps": 3, "checkpoint_every": 10, "validate_every": 10}
    assert sit(tmp_path, stop=lambda: bool(seen), callback=lambda e: seen.append(e) if e.step == 3 else None, **few).step == 3
    assert not (tmp_path / WEIGHTS).exists()
    resumed = sit(tmp_path, **few)
    assert (resumed.reason, resumed.step, resumed.best["step"]) == ("max_steps", 3, 3)
    assert (tmp_path / WEIGHTS).exists()


def test_validation_averages_the_present_weights_in(tmp_path: Path) -> None:
    seen: list[ValidationFinished] = []
    frequent = {"checkpoint_every": 6, "validate_every": 1, "validate_bleu": 0}
    sit(tmp_path, lambda e: seen.append(e) if isinstance(e, ValidationFinished) else None, **frequent)
    losses = [e.metrics["loss"] for e in seen]
    assert len(set(losses)) == len(losses) == 12


def test_a_finished_run_goes_on_when_more_steps_are_asked_for(tmp_path: Path) -> None:
    sit(tmp_path, schedule="inverse-sqrt")
    assert sit(tmp_path, schedule="inverse-sqrt").step == 12
    assert sit(tmp_path, schedule="inverse-sqrt", max_steps=14).step == 14


def test_a_resumed_run_keeps_its_recipe(tmp_path: Path) -> None:
    sit(tmp_path, max_steps=3)
    with pytest.raises(ConfigError, match=r"started with training.label_smoothing = 0.1, found 0.2"):
        sit(tmp_path, label_smoothing=0.2)


def test_the_kept_weights_are_those_of_the_best_validation(tmp_path: Path) -> None:
    seen: list[ValidationFinished] = []
    result = sit(tmp_path, lambda e: seen.append(e) if isinstance(e, ValidationFinished) else None)
    best = min(seen, key=lambda e: e.metrics["loss"])
    assert best.best and result.best == {"step": best.step, **best.metrics}
    assert [e.step for e in seen] == [4, 8, 12] and len(seen[0].samples) == 4


def test_any_validation_is_better_than_one_that_is_not_a_number() -> None:
    nan = {"loss": math.nan, "bleu": 0.0}
    finite = {"loss": 2.0, "bleu": 0.0}
    for select_by in ("loss", "bleu"):
        assert is_better(finite, nan, select_by)
        assert not is_better(nan, finite, select_by)
        assert not is_better(nan, nan, select_by)
    assert is_better({"loss": 1.0, "bleu": 0.0}, finite, "loss") and not is_better({"loss": 1.0, "bleu": 0.0}, finite, "bleu")


def test_patience_ends_a_run_that_stopped_improving(tmp_path: Path) -> None:
    still = {"learning_rate": 1e-30, "average": "none", "validate_every": 1, "validate_bleu": 0, "checkpoint_every": 5}
    result = sit(tmp_path, patience=2, **still)
    assert result.reason == "patience" and result.step == 3
    assert RunFolder.open(tmp_path).checkpoints.steps() == [3]  # no checkpoint was due there
    events: list[Event] = []
    resumed = sit(tmp_path, events.append, patience=2, **still)
    assert (resumed.reason, resumed.step, resumed.best) == ("patience", 3, result.best)
    assert [type(event) for event in events] == [TrainingStarted, TrainingFinished]


def test_a_run_that_patience_ended_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    still = {"learning_rate": 1e-30, "validate_every": 2, "validate_bleu": 0, "checkpoint_every": 3}
    sit(tmp_path / "alone", **still)
    ended = sit(tmp_path / "ended", patience=1, **still)
    assert (ended.reason, ended.step) == ("patience", 4)
    sit(tmp_path / "ended", patience=None, **still)
    same(tmp_path / "alone", tmp_path / "ended")


def test_minutes_end_a_run(tmp_path: Path) -> None:
    assert sit(tmp_path, max_minutes=1e-6).reason == "max_minutes"


def test_a_bad_batch_is_skipped_counted_and_named_and_twenty_in_a_row_stop_the_run(tmp_path: Path) -> None:
    events: list[Event] = []
    with pytest.raises(TransomError, match="found none in 20 consecutive steps up to step"):
        sit(tmp_path, events.append, learning_rate=1e38, max_grad_norm=None, max_steps=60)
    skipped = [e for e in events if isinstance(e, StepFinished) and e.skipped]
    assert len(skipped) >= 20 and all(1 <= int(place.removeprefix("line ")) <= 100 for e in skipped for place in e.skipped)
    records = [r for r in RunFolder.open(tmp_path).metrics.read() if r["kind"] == "skipped"]
    assert [(r["step"], r["samples"]) for r in records] == [(e.step, list(e.skipped)) for e in skipped]


@pytest.mark.long
def test_twenty_skips_in_a_row_leave_the_last_checkpoint_from_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Step 7 breaks the weights; every one from step 8 on is skipped. Checkpoints are due each 3 steps, validations each 4.
    monkeypatch.setattr(train_loop, "learning_rate", lambda step, training, d_model: 1e38 if step == 7 else 0.01)
    events: list[Event] = []
    with pytest.raises(TransomError, match="up to step 27; the checkpoint of step 6 is kept"):
        sit(tmp_path, events.append, max_grad_norm=None, max_steps=60)
    assert [e.step for e in events if isinstance(e, StepFinished) and e.skipped] == list(range(8, 28))
    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [3, 6] and [
        e.step for e in events if isinstance(e, ValidationFinished)
    ] == [4]
    checkpoints = RunFolder.open(tmp_path).checkpoints
    groups, state, _ = checkpoints.load(checkpoints.steps()[-1])
    assert state["progress"]["consecutive_skips"] == 0 and state["snapshots"] == [3, 6]
    assert all(x.isfinite().all() for x in groups["model"].values())

    events.clear()  # a stop that is asked for among the skips is saved, and they go on being counted
    assert sit(tmp_path, events.append, lambda: events[-1].step == 10, max_grad_norm=None, max_steps=60).reason == "stopped"
    losses = {e.step: e.loss for e in events if isinstance(e, StepFinished)}
    assert [step for step, loss in losses.items() if math.isfinite(loss)] == [7]  # the weights of step 6 are good
    assert checkpoints.steps()[-1] == 10
    with pytest.raises(TransomError, match="up to step 27"):
        sit(tmp_path, max_grad_norm=None, max_steps=60)
    assert checkpoints.steps()[-1] == 10


class Clock:
    """A clock that advances by a number of seconds at each look."""

    def __init__(self, tick: float) -> None:
        self.now, self.tick = 0.0, tick

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now


@pytest.mark.long
def test_the_forecast_says_epochs_and_the_plan_of_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timer, "FORECAST_STEPS", 4)
    monkeypatch.setattr(train_loop, "time", Clock(0.02))
    events: list[Event] = []
    result = sit(tmp_path, events.append, max_steps=1_000_000, max_minutes=0.05, validate_every=1000, checkpoint_every=1000)
    forecast, *_ = (e for e in events if isinstance(e, Forecast))
    assert forecast.step <= 4 < forecast.max_steps < 1_000_000
    plan, epochs = forecast.notes
    assert plan.startswith(f"about {forecast.max_steps:,} steps fit into 0.05 minutes: warmup of")
    assert epochs.startswith(f"{forecast.max_steps:,} steps are about ")
    steps = [e for e in events if isinstance(e, StepFinished)]
    assert [e.epochs for e in steps] == sorted(e.epochs for e in steps) and steps[0].epochs > 0
    assert result.reason == "max_minutes" and result.seconds < 2 * 3 and len([e for e in events if isinstance(e, ValidationFinished)]) >= 2
    rates = [e.learning_rate for e in steps]
    assert rates[-1] < 0.5 * max(rates), "the schedule ends with the time limit"
    logged = [record for record in RunFolder.open(tmp_path).metrics.read() if record["kind"] == "train"]
    assert len(logged) >= 20, "log_every is 10 without a time limit"


def test_a_slow_first_step_does_not_shorten_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.6)  # a tenth of the limit: the GPU starts
    monkeypatch.setattr(train_loop, "time", clock)
    events: list[Event] = []

    def notify(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepFinished):
            clock.tick = 0.02

    sit(tmp_path, notify, max_steps=1_000_000, max_minutes=0.1, validate_every=1000, checkpoint_every=1000)
    first = next(e for e in events if isinstance(e, Forecast))
    assert first.step >= 3 and first.max_steps > 100, first


def test_a_forecast_that_is_off_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timer, "FORECAST_STEPS", 4)
    clock = Clock(0.02)
    monkeypatch.setattr(train_loop, "time", clock)
    events: list[Event] = []

    def notify(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepFinished) and event.step == 10:
            clock.tick *= 3  # something else begins to use the machine

    sit(tmp_path, notify, max_steps=1_000_000, max_minutes=0.1, validate_every=1000, checkpoint_every=1000)
    first, *others = (e for e in events if isinstance(e, Forecast))
    assert others and others[0].max_steps < 0.8 * first.max_steps
    assert others[-1].max_steps == pytest.approx(max(e.step for e in events if isinstance(e, StepFinished)), rel=0.25)


def test_a_resumed_run_keeps_its_plan_and_makes_another_for_another_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timer, "FORECAST_STEPS", 4)
    settings = {"max_steps": 1_000_000, "validate_every": 1000, "checkpoint_every": 1000}
    die(partial(sit, tmp_path, max_minutes=1, checkpoint_minutes=1e-9, **settings), [kill_at(8, CheckpointSaved)])
    state = RunFolder.open(tmp_path).checkpoints
    plan = state.load(state.steps()[-1]).state["progress"]["plan"]
    assert plan["max_minutes"] == 1 and 8 < plan["max_steps"] < 1_000_000
    started: list[Event] = []
    sit(tmp_path, started.append, lambda: True, max_minutes=1, **settings)
    sit(tmp_path, started.append, lambda: True, max_minutes=2, **settings)
    assert [e.max_steps for e in started if isinstance(e, TrainingStarted)] == [plan["max_steps"], 1_000_000]


def test_the_record_holds_means_over_true_tokens(tmp_path: Path) -> None:
    events: list[Event] = []
    sit(tmp_path, events.append, log_every=3)
    steps = [e for e in events if isinstance(e, StepFinished)]
    lines = [r for r in RunFolder.open(tmp_path).metrics.read() if r["kind"] == "train"]
    assert [r["step"] for r in lines] == [3, 6, 9, 12]
    first = steps[:3]
    n_tokens = sum(e.n_target_tokens for e in first)
    assert lines[0]["nll"] == pytest.approx(sum(e.nll * e.n_target_tokens for e in first) / n_tokens)
    assert all(0 < e.matmul_utilization < 1 and e.seconds_left >= 0 and math.isfinite(e.loss) for e in steps)
    finished = events[-1]
    assert isinstance(finished, TrainingFinished) and finished.facts["n_target_tokens"] == sum(e.n_target_tokens for e in steps)


@pytest.mark.long
def test_checkpoints_by_time_change_nothing_but_what_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sit(tmp_path / "by-steps", checkpoint_minutes=None)
    monkeypatch.setattr(train_loop, "MAX_CHECKPOINT_SHARE", 1e9)
    saved: list[int] = []
    sit(tmp_path / "by-time", lambda e: saved.append(e.step) if isinstance(e, CheckpointSaved) else None, checkpoint_minutes=1e-9)
    assert saved == list(range(1, saved[-1] + 1)), "each step is due"
    same(tmp_path / "by-steps", tmp_path / "by-time")
    die(partial(sit, tmp_path / "killed", checkpoint_minutes=1e-9), [kill_at(5, CheckpointSaved)])
    steps: list[int] = []
    sit(tmp_path / "killed", lambda e: steps.append(e.step) if isinstance(e, StepFinished) else None, checkpoint_minutes=1e-9)
    assert steps[0] == 6, "a run goes on from the checkpoint of the last step"
    same(tmp_path / "by-steps", tmp_path / "killed")


@pytest.mark.long
def test_keep_checkpoints_keeps_weights_and_changes_nothing_else(tmp_path: Path) -> None:
    for name, more in (("few", 0), ("many", 3)):
        sit(tmp_path / name, keep_checkpoints=more, average={"kind": "none"})
    few, many = RunFolder.open(tmp_path / "few"), RunFolder.open(tmp_path / "many")
    assert few.checkpoints.steps() == [9, 12] and many.checkpoints.steps() == [6, 9, 12]
    assert many.checkpoints.load(6, only=["model"]).groups["model"]
    assert few.run_id == many.run_id and few.read("model.safetensors") == many.read("model.safetensors")


def test_checkpoints_by_time_take_at_most_one_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def now() -> float:
        clock[0] += 0.01
        return clock[0]

    monkeypatch.setattr(train_loop.time, "perf_counter", now)
    monkeypatch.setattr(SharedCheckpoints, "check", SharedCheckpoints.wait)  # a checkpoint is durable before the next step ends
    saved: list[tuple[int, float]] = []

    def tick(event: Event) -> None:
        if isinstance(event, StepFinished):
            clock[0] += 30.0
        if isinstance(event, CheckpointSaved):
            saved.append((event.step, clock[0]))

    sit(tmp_path, tick, checkpoint_minutes=2.0, checkpoint_every=1000, validate_every=1000, max_steps=20)
    between = [later - earlier for (_, earlier), (_, later) in pairwise(saved[:-1])]
    assert len(saved) > 2 and all(120 <= seconds <= 151 for seconds in between)
