"""The micro-batch that is found fits by prediction and by trial, and keeps the batch of the recipe."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from transom.config.model import DecoderConfig
from transom.config.training import CheckpointAverageConfig, EmaConfig, NoAverageConfig, SgdConfig, TextTrainingConfig, TrainingConfig
from transom.config.vision import VisionTransformerConfig
from transom.errors import ConfigError, TransomError
from transom.tasks.image_classification.schema import ImageTrainingConfig
from transom.training import find_batch as module
from transom.training.find_batch import find_batch
from transom.training.memory_trial import Trial, take_steps, try_steps
from transom.training.plan_run import PlanOptions, batch_shape, predict_bytes
from transom.training.simulated_step import BatchShape

CONFIG = DecoderConfig(d_model=16, n_heads=2, n_layers=1, d_ff=32, vocab_size=50, max_seq_len=64)
TRAINING = TextTrainingConfig(batch_tokens=64 * 4096, optimizer=SgdConfig(momentum=0.0), average=NoAverageConfig())
FITS = Trial(True, 1, 3, 4.0)


BASE, FIXED, PER_ROW = 200 << 20, 10 << 20, 1 << 20
"""Bytes of a process whose memory grows linearly: Python's own, those of the weights, and those of a row."""


def linear_plan(name: str, config: Any, training: TrainingConfig, options: PlanOptions) -> Any:
    """Plan a model whose memory grows linearly, in the form of ``plan_run``; a second micro-batch needs 1 MiB more."""
    shape, _ = batch_shape(config, training, options)
    fixed, size = FIXED + (shape.n_micro_batches > 1) * PER_ROW, options.device_bytes or 0
    fit = SimpleNamespace(largest_rows=max(0, (size - fixed) // PER_ROW))
    return SimpleNamespace(step=object(), memory=SimpleNamespace(total=fixed + shape.rows * PER_ROW), fit=fit)


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory grow linearly, so that the expected numbers of rows are those of a division."""
    monkeypatch.setattr(module, "data_memory", lambda: BASE)
    monkeypatch.setattr(module, "plan_run", linear_plan)


def test_a_batch_that_fits_stays_whole(linear: None) -> None:
    tried = list[BatchShape]()
    found = find_batch(CONFIG, TRAINING, BASE + FIXED + 4096 * PER_ROW, try_rows=lambda shape: tried.append(shape) or FITS)  # type: ignore[func-returns-value]
    assert (found.rows, found.grad_accum_steps, found.batch) == (4096, 1, 4096)
    assert found.settings == ("training.batch_tokens=262144", "training.grad_accum_steps=1")
    assert [(shape.rows, shape.n_micro_batches) for shape in tried] == [(4096, 1)]


@pytest.mark.parametrize(("rows", "expected"), [(4094, (2, 2048)), (1100, (4, 1024)), (37, (111, 37)), (1, (4096, 1))])
def test_the_fewest_micro_batches_that_fit_keep_the_batch(rows: int, expected: tuple[int, int], linear: None) -> None:
    limit = BASE + FIXED + (rows + 1) * PER_ROW
    found = find_batch(CONFIG, TRAINING, limit, try_rows=lambda _: FITS)
    assert (found.grad_accum_steps, found.rows) == expected
    assert found.predicted == BASE + FIXED + (found.rows + 1) * PER_ROW <= limit
    assert found.to_json()["set"] == list(found.settings)


@pytest.mark.long
def test_a_real_plan_fits_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """About as many rows fit into what 37 rows need, although the search starts with a plan of 4,096."""
    monkeypatch.setattr(module, "data_memory", lambda: BASE)
    shape = BatchShape(37, 0, 64, n_micro_batches=2)
    limit = BASE + predict_bytes(CONFIG, TRAINING, shape, torch.float32).total
    found = find_batch(CONFIG, TRAINING, limit, PlanOptions(precision="fp32"), try_rows=lambda _: FITS)
    assert 35 <= found.rows <= 37 and found.predicted <= limit


def test_a_trial_that_fails_is_followed_by_smaller_ones(linear: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, notes = list[int](), list[str]()

    def attempt(shape: BatchShape) -> Trial:
        tried.append(shape.rows)
        return FITS if shape.rows <= 3000 else Trial(False)

    found = find_batch(CONFIG, TRAINING, 64 << 30, try_rows=attempt, notify=notes.append)
    assert tried == [4096, 2048] and (found.rows, found.grad_accum_steps) == (2048, 2)
    assert [(rows, trial.fits) for rows, trial in found.trials] == [(4096, False), (2048, True)]
    assert notes == ["trying 4,096 rows per forward pass, 1 per step", "trying 2,048 rows per forward pass, 2 per step"]
    monkeypatch.setattr(module, "MAX_TRIALS", 2)
    with pytest.raises(ConfigError, match="--memory: expected a micro-batch that fits, found none in 2 trials"):
        find_batch(CONFIG, TRAINING, 64 << 30, try_rows=lambda _: Trial(False))


def test_images_are_counted_as_images(linear: None) -> None:
    config = VisionTransformerConfig(image_size=16, patch_size=4, d_model=16, n_heads=2, n_layers=1, d_ff=24, classes=("a", "b"))
    found = find_batch(config, ImageTrainingConfig(batch_size=24), 64 << 30, try_rows=lambda _: FITS)
    assert (found.unit, found.rows, found.settings[0]) == ("image", 24, "training.batch_size=24")


def test_what_cannot_be_found_is_refused(linear: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--memory: expected memory for one row of 64 tokens, found .* GiB, which are too little"):
        find_batch(CONFIG, TRAINING, 1000, try_rows=lambda _: FITS)
    monkeypatch.setattr(module, "plan_run", lambda *_: SimpleNamespace(step=None))
    with pytest.raises(ConfigError, match="model: expected a model whose activations can be predicted, found a recurrent one"):
        find_batch(CONFIG, TRAINING, 1 << 30, try_rows=lambda _: FITS)


def request(**changes: Any) -> dict[str, Any]:
    shape = {"rows": 2, "source": 0, "target": 8, "n_micro_batches": 2}
    training = {"optimizer": {"kind": "adamw"}, "average": {"kind": "none"}}
    fields: dict[str, Any] = {"model": CONFIG.model_dump(mode="json"), "training": training, "shape": shape, "precision": "fp32"}
    return fields | {"limit": None, "steps": 2, "threads": 1} | changes


@pytest.mark.parametrize("average", [NoAverageConfig(), EmaConfig(), CheckpointAverageConfig(n_checkpoints=2)], ids=lambda each: each.kind)
def test_a_trial_takes_steps_with_all_that_lasts(average: Any) -> None:
    found = take_steps(request(training={"optimizer": {"kind": "sgd"}, "average": average.model_dump(mode="json")}))
    assert found.fits and found.before > 0 and found.resident >= 0 and found.seconds > 0


def test_missing_memory_ends_a_trial_and_other_errors_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("transom.training.memory_trial.run_step", fail)
    error: Exception = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    assert not take_steps(request()).fits
    error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        take_steps(request())


@pytest.mark.soak
def test_a_child_process_has_no_more_than_its_limit() -> None:
    training = TextTrainingConfig(optimizer=SgdConfig(momentum=0.0), average=NoAverageConfig())
    shape = BatchShape(4, 0, 64)
    whole = try_steps(CONFIG, training, shape, "fp32", None)
    assert whole.fits
    wide = DecoderConfig(d_model=512, n_heads=2, n_layers=1, d_ff=32, vocab_size=200_000, max_seq_len=64)
    assert not try_steps(wide, training, shape, "fp32", whole.before + (256 << 20)).fits
    with pytest.raises(TransomError, match="expected the steps of a trial to run, found"):
        try_steps(CONFIG, training, BatchShape(1, 0, 4096), "fp32", None)
