"""Sounds as a task: resumed runs are bit-identical, another run is begun from, and what is known of the model is right."""

from pathlib import Path
from typing import Any

import torch

from tests.training.conftest import changed, measured, sit
from transom.checkpoints.run_files import WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_tensors
from transom.inspection.names import sites
from transom.models.build import build_model
from transom.planning.flops import count_flops
from transom.planning.parameters import count_parameters
from transom.tasks.audio.schema import AudioRecipe, SpectrogramTransformer
from transom.tasks.audio.task import SoundClassifier
from transom.tasks.load import load
from transom.tasks.task import set_up


def recipe(**training: Any) -> AudioRecipe:
    """Return a recipe of a tiny model on few synthesized sounds."""
    model = {"image_size": 8, "sample_rate": 4000, "seconds": 0.25, "window": 128, "patch_size": 2}
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16}
    steps = {"max_steps": 8, "validate_every": 4, "checkpoint_every": 4, "batch_sounds": 16, "precision": "fp32"}
    made = {"kind": "synthesized-sounds", "n_train": 70, "n_valid": 14, "n_test": 14}
    return AudioRecipe.model_validate({"data": {"generate": made}, "model": model | sizes, "training": steps | training})


def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path: Path) -> None:
    paper = {"schedule": "paper"}  # its rate does not depend on the last step
    sit(recipe(**paper), tmp_path / "whole")
    sit(recipe(**paper, max_steps=4), tmp_path / "parts")
    sit(recipe(**paper), tmp_path / "parts")
    whole, parts = (read_tensors(tmp_path / name / WEIGHTS) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys() and all(torch.equal(whole[name], parts[name]) for name in whole)


def test_figures_are_those_of_the_answers(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        parts = set_up(recipe(), Path(), folder)
        figures, samples = measured(parts)
    task: Any = parts.task
    answers = SoundClassifier(parts.validated).classify_spectra(task.valid.load(range(14)))  # type: ignore[arg-type]
    right = [each.label == label for each, label in zip(answers, task.valid.labels, strict=True)]
    assert figures["accuracy"] == 100 * sum(right) / 14 and "perplexity" not in figures
    assert [sample["found"] for sample in samples] == [each.label for each in answers[:6]]
    assert "sounds" in task.report.lines()[0] and "speaker" in task.place(0)


def test_a_run_begins_from_another_and_is_loaded(tmp_path: Path) -> None:
    sit(recipe(), tmp_path / "first")
    with RunFolder.create(tmp_path / "second") as folder:
        parts = set_up(changed(recipe(), start_from=str(tmp_path / "first")), Path(), folder)
    ours, theirs = parts.model.state_dict(), read_tensors(tmp_path / "first" / WEIGHTS)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if not name.startswith("unembedding"))
    assert isinstance(load(tmp_path / "first"), SoundClassifier)


def test_parameters_operations_and_sites_are_known() -> None:
    config = SpectrogramTransformer(image_size=8, patch_size=2, d_model=16, n_layers=1, n_heads=2, d_ff=16, classes=("a", "b"))
    assert count_parameters(config).total == sum(p.numel() for p in build_model(config).parameters())
    parts = count_flops(config, 3, config.n_positions, 1).parts
    assert parts["patches"] == 2 * 3 * 16 * 4 * 16 and parts["unembedding"] == 2 * 16 * 2 * 3
    assert any("encoder.blocks.0.attn" in str(site) for site in sites(config))
