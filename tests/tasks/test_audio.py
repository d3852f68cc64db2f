"""Audio classification: training, resuming, validation metrics, report, and fine-tuning."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import changed, measured, sit
from tests.waves import wav
from transom.checkpoints.run_files import WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_tensors
from transom.config.recipe import load_recipe
from transom.inspection.activation_sites import list_sites
from transom.inspection.example_batch import build_example_batch
from transom.inspection.pages.describe import describe_architecture
from transom.models.vision import VisionTransformer
from transom.planning.flops import count_flops
from transom.planning.parameters import count_parameters
from transom.tasks.audio.loader import synthesize_split
from transom.tasks.audio.schema import AudioFilesConfig, AudioRecipe, SpectrogramTransformerConfig
from transom.tasks.audio.synthetic import CLASSES, synthesize
from transom.tasks.audio.task import AudioClassifier
from transom.tasks.load import load
from transom.tasks.task import build_training_setup
from transom.training.events import TrainingFinished
from transom.training.train_loop import train

SMALL = (
    "data.generate.n_train=90",
    "data.generate.n_valid=18",
    "data.generate.n_test=9",
    "model.image_size=16",
    "model.seconds=0.256",
    "model.sample_rate=8000",
    "model.n_fft=256",
    "model.d_model=16",
    "model.n_layers=1",
    "model.n_heads=2",
    "model.d_ff=32",
    "training.batch_size=16",
    "training.max_steps=10",
    "training.validate_every=4",
    "training.checkpoint_every=3",
    "training.log_every=2",
    "training.grad_accum_steps=2",
)


@pytest.fixture
def sounds() -> AudioRecipe:
    """Return a small version of the packaged recipe."""
    recipe = load_recipe("synthetic-sounds", SMALL)[0]
    assert isinstance(recipe, AudioRecipe)
    return recipe


def test_it_trains_and_answers(sounds: AudioRecipe, tmp_path: Path) -> None:
    finished: TrainingFinished = sit(sounds, tmp_path / "run")
    assert set(finished.best) >= {"loss", "accuracy"} and "perplexity" not in finished.best
    classifier = load(tmp_path / "run")
    assert isinstance(classifier, AudioClassifier) and classifier.model.config.classes == tuple(sorted(CLASSES))
    (tmp_path / "x.wav").write_bytes(wav(synthesize("noise", "test", 0, 1, 22050, 9000), rate=22050))
    (found,) = classifier.classify([tmp_path / "x.wav"])
    assert set(found.probabilities) == set(CLASSES) and sum(found.probabilities.values()) == pytest.approx(1.0, abs=1e-5)
    assert classifier.predict_proba([tmp_path / "x.wav"]).sum() == pytest.approx(1.0) and repr(classifier).startswith("<AudioClassifier: ")
    assert set(RunFolder.open(tmp_path / "run").metrics.read()[-1]["samples"][0]) == {"picture", "text", "class", "found", "p"}
    batch = build_example_batch(classifier, None, tmp_path / "x.wav").batch
    assert batch.pixels.shape == (1, 1, 16, 16)


@pytest.mark.long
def test_a_resumed_run_is_the_run_that_was_never_stopped(sounds: AudioRecipe, tmp_path: Path) -> None:
    sit(sounds, tmp_path / "whole")
    steps: list[int] = []
    with RunFolder.create(tmp_path / "parts") as folder:
        stopped = train(
            build_training_setup(sounds, Path(), folder), [lambda event: steps.append(event.step)], lambda: bool(steps) and steps[-1] >= 4
        )
    assert stopped.reason == "stopped" and 4 <= stopped.step < 10
    assert sit(sounds, tmp_path / "parts").reason == "max_steps"
    assert (tmp_path / "whole" / WEIGHTS).read_bytes() == (tmp_path / "parts" / WEIGHTS).read_bytes()


def test_figures_and_words(sounds: AudioRecipe, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        parts = build_training_setup(changed(sounds, precision="fp32"), Path(), folder)
        task: Any = parts.task
        figures, samples = measured(parts)
    found = AudioClassifier(parts.eval_model).classify_pixels(task.valid.load(range(18)))  # type: ignore[arg-type]
    assert figures["accuracy"] == pytest.approx(100 * sum(a.label == b for a, b in zip(found, task.valid.labels, strict=True)) / 18)
    assert [sample["found"] for sample in samples] == [each.label for each in found[: len(samples)]]
    told = task.report.lines()
    assert any("90 sounds" in line for line in told) and not any("image" in line for line in told)
    assert "spectrograms of 16 mel bands and 16 frames of 0.256 s at 8,000 Hz, 4 x 4 patches" in describe_architecture(parts.recipe)
    assert AudioFilesConfig(audio="here").shown == ["here"]


def test_parameters_sites_and_flops_are_those_of_the_network(sounds: AudioRecipe) -> None:
    config = sounds.with_fields("model", classes=("a", "b", "c")).model
    with torch.random.fork_rng():
        model = VisionTransformer(config)
    assert count_parameters(config).total == sum(p.numel() for p in model.parameters())
    assert [site.address for site in list_sites(config) if site.address.endswith("pooled")] and count_flops(config, 2, 16, 1).parts[
        "patches"
    ] > 0


@pytest.mark.long
def test_another_run_starts_from_a_trained_one(sounds: AudioRecipe, tmp_path: Path) -> None:
    sit(changed(sounds, max_steps=3), tmp_path / "first")
    with RunFolder.create(tmp_path / "second") as folder:
        parts = build_training_setup(changed(sounds, init_from=str(tmp_path / "first")), Path(), folder)
    ours, theirs = parts.model.state_dict(), read_tensors(tmp_path / "first" / WEIGHTS)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if ".blocks." in name)


def test_frames_need_samples() -> None:
    with pytest.raises(ValueError, match="expected at least one sample per frame"):
        SpectrogramTransformerConfig(seconds=0.001)


@pytest.mark.soak
def test_the_packaged_recipe_knows_speakers_and_pitches_that_it_never_heard(tmp_path: Path) -> None:
    recipe = load_recipe("synthetic-sounds")[0]
    assert sit(recipe, tmp_path / "run").best["accuracy"] >= 99
    classifier = load(tmp_path / "run")
    known = synthesize_split("test", 900, 1, classifier.model.config)
    found = classifier.classify_pixels(known.load(range(900)))
    assert sum(a.label == b for a, b in zip(found, known.labels, strict=True)) >= 891
