"""Averages of weights against their definitions: what they hold of the weights of each step, and what a run validates and keeps."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.training.conftest import CONVOLUTIONAL, changed, measured, of_images, sit
from tests.training.test_resume import as_format_1
from tests.training.test_train_loop import Killed, kill_at, same
from transom.checkpoints.run_files import ADAPTER, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_tensors
from transom.config.model import DecoderConfig
from transom.config.recipe import Recipe
from transom.config.training import AnyAverage, CheckpointAverageConfig, EmaConfig, NoAverageConfig
from transom.models.build import build_model
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.masked.schema import MaskedRecipe
from transom.tasks.task import build_training_setup
from transom.training.events import CheckpointSaved, TrainingStarted, ValidationFinished
from transom.training.optimizer import build_optimizer
from transom.training.train_state import optimizer_parameter_names
from transom.training.weight_averaging import AVERAGED, RAW, WeightAverager

EMA = {"kind": "ema", "decay": 0.999}


def average(averager: WeightAverager, step: int) -> torch.Tensor:
    """Return the average of the one weight, or the present one where there is no other."""
    (first, *_) = averager.candidates(step).values()
    return first["weight"]


def test_none_gives_the_model_s_own_weights() -> None:
    model = nn.Linear(2, 2)
    averager = WeightAverager(NoAverageConfig(), model)
    averager.after_step()
    averager.after_checkpoint(1)
    assert list(averager.candidates(1)) == [RAW]
    assert all(torch.equal(averager.candidates(1)[RAW][name], p) for name, p in model.named_parameters())
    assert not averager.ema and not averager.snapshots


def unit(place: int, length: int) -> torch.Tensor:
    """Make a row that is 1 at one place."""
    return torch.eye(length, dtype=torch.float64)[[place]]


def coefficients(component: AnyAverage, steps: Sequence[str], restored_at: int) -> tuple[torch.Tensor, int]:
    """Read off what an average holds of the initial weights, in column 0, and of those of each update.

    The weights are one-hot: after update t they are the t-th unit vector. A skipped step updates nothing.

    Args:
        component: the kind of average.
        steps: what happens at each: "update", "skip" or "checkpoint", which is an update too.
        restored_at: place in ``steps`` before which the averager is written down and another one goes on.
    """
    model, n_updates = nn.Linear(len(steps) + 1, 1, bias=False).double(), 0
    model.weight.data = unit(0, len(steps) + 1)
    averager = WeightAverager(component, model)
    for step, kind in enumerate(steps, 1):
        if step == restored_at:
            before, averager = averager, WeightAverager(component, model)
            assert averager.restore(before.n_averaged, before.ema, before.snapshots) == []
        if kind != "skip":
            n_updates += 1
            model.weight.data = unit(n_updates, len(steps) + 1)
            averager.after_step()
        if kind == "checkpoint":
            averager.after_checkpoint(step)
    return average(averager, len(steps))[0].clone(), n_updates


STEPS = st.lists(st.sampled_from(["update", "update", "skip", "checkpoint"]), min_size=1, max_size=40)
KINDS = st.one_of(st.floats(1e-6, 1 - 1e-9), st.integers(1, 6), st.none())
"""A decay, how many checkpoints, or no average."""


@given(KINDS, STEPS, st.integers(1, 40))
def test_an_average_holds_nothing_of_the_initial_weights_and_all_of_the_updated_ones(
    kind: float | int | None, steps: list[str], restored_at: int
) -> None:
    component = (
        NoAverageConfig()
        if kind is None
        else CheckpointAverageConfig(n_checkpoints=kind)
        if isinstance(kind, int)
        else EmaConfig(decay=kind)
    )
    held, n_updates = coefficients(component, steps, restored_at)
    if not n_updates:  # nothing was learned: there is nothing else to hold
        assert held[0] == 1
        return
    assert held[0] == 0
    assert held.min() >= 0 and held[n_updates + 1 :].sum() == 0
    assert held.sum().item() == pytest.approx(1, rel=0, abs=1e-12)


@given(st.floats(0.01, 0.9999), st.integers(1, 40))
def test_the_moving_average_is_its_definition(decay: float, n: int) -> None:
    held, _ = coefficients(EmaConfig(decay=decay), ["update"] * n, 0)
    powers = [decay ** (n - t) for t in range(1, n + 1)]
    assert held[1:].tolist() == pytest.approx([power / math.fsum(powers) for power in powers], rel=1e-9)


def test_checkpoints_are_averaged_over_the_last_ones() -> None:
    model = nn.Linear(1, 1, bias=False)
    averager = WeightAverager(CheckpointAverageConfig(n_checkpoints=3), model)
    nn.init.constant_(model.weight, 7.0)
    averager.after_checkpoint(5)  # every step was skipped: these are the initial weights
    assert not averager.snapshots and average(averager, 5).item() == 7.0
    for step, value in ((10, 1.0), (20, 2.0), (30, 4.0), (40, 9.0)):
        nn.init.constant_(model.weight, value)
        averager.after_step()
        averager.after_checkpoint(step)
    assert sorted(averager.snapshots) == [20, 30, 40]
    assert average(averager, 40).item() == pytest.approx(5.0)


def test_between_checkpoints_the_present_weights_take_the_next_one_s_place() -> None:
    model = nn.Linear(1, 1, bias=False)
    averager = WeightAverager(CheckpointAverageConfig(n_checkpoints=3), model)
    for step, value in ((10, 1.0), (20, 2.0), (30, 4.0)):
        nn.init.constant_(model.weight, value)
        averager.after_step()
        averager.after_checkpoint(step)
    nn.init.constant_(model.weight, 9.0)
    assert average(averager, 35).item() == pytest.approx(5.0)
    assert sorted(averager.snapshots) == [10, 20, 30]  # looking keeps nothing


def test_where_both_are_the_same_weights_they_are_read_once() -> None:
    model = nn.Linear(1, 1, bias=False)
    for component in (EmaConfig(), CheckpointAverageConfig()):
        averager = WeightAverager(component, model)
        assert list(averager.candidates(0)) == [RAW]
        averager.after_step()
        averager.after_checkpoint(1)
        assert list(averager.candidates(1)) == [RAW]
        averager.after_step()
        averager.after_checkpoint(2)
        assert list(averager.candidates(2)) == [AVERAGED, RAW]


@pytest.fixture
def short(photos: Path) -> Recipe:
    """A run of 60 steps on a few images, far shorter than an average of 0.999 looks back."""
    recipe = of_images(CONVOLUTIONAL, photos)
    fields: dict[str, Any] = {
        "augmentation": {},
        "grad_accum_steps": 1,
        "learning_rate": 3e-3,
        "precision": "fp32",
        "best_checkpoint_metric": "loss",
    }
    return changed(recipe, max_steps=60, validate_every=20, checkpoint_every=20, **fields)


@pytest.mark.long
def test_a_short_run_with_an_average_is_no_worse_than_one_without(short: Recipe, tmp_path: Path) -> None:
    """The raw weights are the same in both runs, step by step, so what is kept can only gain by the average."""
    plain: list[ValidationFinished] = []
    seen: list[ValidationFinished] = []
    without = sit(
        changed(short, average="none"), tmp_path / "without", lambda e: plain.append(e) if isinstance(e, ValidationFinished) else None
    )
    kept = sit(changed(short, average=EMA), tmp_path / "with", lambda e: seen.append(e) if isinstance(e, ValidationFinished) else None)
    assert kept.best["loss"] <= without.best["loss"] < 0.5 < math.log(2), "better than guessing one of two classes"
    records = [r for r in RunFolder.open(tmp_path / "with").metrics.read() if r["kind"] == "validation"]
    assert [r["raw_loss"] for r in records] == [e.metrics["loss"] for e in plain], "averaging changes no step"
    for record, event in zip(records, seen, strict=True):
        assert record["loss"] == min(record["raw_loss"], record["averaged_loss"])
        assert record["weights"] == event.weights == ("raw" if record["raw_loss"] < record["averaged_loss"] else "averaged")
    best = next(r for r in reversed(records) if r["best"])
    assert (kept.weights, kept.best["loss"]) == (best["weights"], best["loss"])
    assert without.weights is None
    assert not any("weights" in r or "raw_loss" in r for r in RunFolder.open(tmp_path / "without").metrics.read())


@pytest.mark.long
def test_an_average_that_is_better_is_kept(masked: MaskedRecipe, tmp_path: Path) -> None:
    """Steps that are too long make the raw weights jump; what is kept is measured again from the folder."""
    fields: dict[str, Any] = {"average": {"kind": "ema", "decay": 0.8}, "grad_accum_steps": 1, "precision": "fp32", "validate_samples": 0}
    restless = changed(masked, max_steps=24, validate_every=2, learning_rate=0.05, **fields)
    kept = sit(restless, tmp_path / "run")
    records = [r for r in RunFolder.open(tmp_path / "run").metrics.read() if r["kind"] == "validation"]
    assert kept.weights == "averaged" and {r["weights"] for r in records} == {"raw", "averaged"}, "each is the better one at times"
    with RunFolder.create(tmp_path / "again") as folder:
        parts = build_training_setup(restless, Path(), folder)
    RunFolder.open(tmp_path / "run").load_weights(parts.eval_model)
    assert measured(parts)[0]["loss"] == pytest.approx(kept.best["loss"], rel=1e-5)


@pytest.mark.long
def test_the_figure_that_selects_decides_between_them(classes: ClassificationRecipe, tmp_path: Path) -> None:
    run = changed(classes, average=EMA, best_checkpoint_metric="accuracy", validate_every=2, learning_rate=0.03)
    sit(run, tmp_path / "run")
    records = [r for r in RunFolder.open(tmp_path / "run").metrics.read() if r["kind"] == "validation"]
    assert all("raw_accuracy" in r and "averaged_accuracy" in r for r in records)
    for r in records:
        assert r["accuracy"] == max(r["raw_accuracy"], r["averaged_accuracy"])
        if r["raw_accuracy"] == r["averaged_accuracy"]:
            assert r["loss"] == min(r["raw_loss"], r["averaged_loss"])


def test_patience_goes_by_the_better_of_the_two(short: Recipe, tmp_path: Path) -> None:
    still = changed(short, average=EMA, learning_rate=1e-30, validate_every=1, patience=2)
    finished = sit(still, tmp_path / "still")
    assert (finished.reason, finished.step) == ("patience", 3)


@pytest.mark.long
def test_maps_of_low_rank_are_averaged_without_their_beginning(classes: ClassificationRecipe, masked: MaskedRecipe, tmp_path: Path) -> None:
    """With decay near 1 the average is the plain mean of the maps after each step; B is 0 before the first, and is no part of it."""
    sit(changed(masked, max_steps=4), tmp_path / "base")
    tuned = changed(
        classes,
        init_from=str(tmp_path / "base"),
        adapter={"rank": 2},
        average={"kind": "ema", "decay": 1 - 1e-9},
        max_steps=3,
        checkpoint_every=1,
        validate_every=3,
        learning_rate=1e-4,
    )
    learned: list[dict[str, torch.Tensor]] = []

    def callback(event: object) -> None:
        if isinstance(event, CheckpointSaved):
            groups = RunFolder.open(tmp_path / "run").checkpoints.load(event.step).groups
            learned.append(groups["model"])
            mean = {name: torch.stack([each[name] for each in learned]).mean(0) for name in learned[0]}
            assert mean.keys() == groups["ema"].keys()
            assert all(torch.allclose(mean[name], x, rtol=1e-5, atol=1e-8) for name, x in groups["ema"].items())

    finished = sit(tuned, tmp_path / "run", callback)
    kept, (*_, last) = read_tensors(tmp_path / "run" / ADAPTER), learned
    groups = RunFolder.open(tmp_path / "run").checkpoints.load(3).groups
    chosen = last if finished.weights == "raw" else groups["ema"]
    assert len(learned) == 3 and all(torch.equal(x, chosen[name]) for name, x in kept.items())


def test_statistics_of_batch_norm_are_averaged_with_the_weights() -> None:
    recipe = {"kind": "decoder", "d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8, "vocab_size": 9, "norm": "batchnorm"}
    model = build_model(DecoderConfig.model_validate(recipe))
    buffers = dict(model.named_buffers())
    names = [name for name in model.state_dict() if name in buffers]
    averager = WeightAverager(EmaConfig(decay=0.5), model)
    for value in (1.0, 4.0):
        for name in names:
            buffers[name].fill_(value)
        averager.after_step()
    assert names and all(torch.allclose(averager.candidates(2)[AVERAGED][name], torch.tensor(3.0)) for name in names)


@pytest.mark.long
def test_a_killed_run_goes_on_with_its_average_from_the_first_steps(short: Recipe, tmp_path: Path) -> None:
    run = changed(short, average=EMA, max_steps=8, checkpoint_every=1, validate_every=2)
    sit(run, tmp_path / "alone")
    for step in (1, 2, 5):
        with pytest.raises(Killed):
            sit(run, tmp_path / "killed", kill_at(step, CheckpointSaved))
    sit(run, tmp_path / "killed")
    same(tmp_path / "alone", tmp_path / "killed")


def test_an_average_of_an_earlier_version_begins_anew(short: Recipe, tmp_path: Path) -> None:
    """A checkpoint of a version that began the average at the initial weights has no count; its average is dropped, and that is said."""
    run = changed(short, average=EMA, max_steps=6, checkpoint_every=3, validate_every=3)
    sit(changed(run, max_steps=3), tmp_path / "run")
    checkpoints = RunFolder.open(tmp_path / "run").checkpoints
    groups, state, _ = checkpoints.load(3)
    for name in ("n_averaged", "best_weights"):
        del state["progress"][name]
    poisoned = {name: torch.full_like(x, 1e6) for name, x in groups["ema"].items()}
    checkpoints.save(3, {**groups, "ema": poisoned}, state)
    with RunFolder.create(tmp_path / "run", resume=True) as folder:
        parts = build_training_setup(run, Path(), folder)
        numbers = {
            name: number
            for number, name in enumerate(optimizer_parameter_names(parts.model, build_optimizer(parts.model, run.training.optimizer)))
        }
    as_format_1(checkpoints, 3, numbers)
    seen: list[Any] = []
    finished = sit(run, tmp_path / "run", seen.append)
    notes = next(e for e in seen if isinstance(e, TrainingStarted)).notes
    assert any(note.startswith("the checkpoint's weight average includes the initial weights") for note in notes)
    assert finished.step == 6 and max(x.abs().max().item() for x in read_tensors(tmp_path / "run" / WEIGHTS).values()) < 100
    groups, state, _ = checkpoints.load(6)
    assert state["progress"]["n_averaged"] == 3 and all(x.abs().max() < 100 for x in groups["ema"].values())
