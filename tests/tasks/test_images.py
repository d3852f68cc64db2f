"""Image classification: training, metrics, and fine-tuning at another image size."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.tiers import every
from tests.training.conftest import changed, measured, sit
from transom.checkpoints.run_files import WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_tensors
from transom.config.decoding import ImageInferenceConfig
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.errors import DataError
from transom.layers.position_encoding import resize_position_grid
from transom.tasks.image_classification.schema import ImageRecipe
from transom.tasks.load import load
from transom.tasks.task import build_training_setup
from transom.training.events import TrainingFinished


@pytest.fixture(params=every(2, ["vision", "convolutional"]))
def recipe(request: pytest.FixtureRequest) -> ImageRecipe:
    found: ImageRecipe = request.getfixturevalue(request.param)
    return found


def test_it_learns_and_answers(recipe: ImageRecipe, photos: Path, tmp_path: Path) -> None:
    plain: dict[str, Any] = {
        "augmentation": {"shift": 1},
        "average": "none",
        "grad_accum_steps": 1,
        "validate_every": 20,
        "checkpoint_every": 40,
    }
    finished: TrainingFinished = sit(changed(recipe, max_steps=80, **plain), tmp_path / "run")
    assert finished.best["accuracy"] == 100.0 and "perplexity" not in finished.best
    classifier = load(tmp_path / "run")
    assert isinstance(classifier, ImageClassifier) and classifier.model.config.classes == ("lying", "standing")
    told: list[tuple[int, int]] = []
    pair = [photos / "lying" / "1.png", photos / "standing" / "2.png"]
    found = classifier.classify(pair, lambda done, total: told.append((done, total)))
    assert told == [(2, 2)] and [each.label for each in found] == ["lying", "standing"] and all(each.p > 0.5 for each in found)
    assert sum(found[0].probabilities.values()) == pytest.approx(1.0)
    probabilities, vectors = classifier.predict_proba(pair), classifier.embed(pair)
    assert classifier.classes_.tolist() == ["lying", "standing"] and np.allclose(probabilities.sum(1), 1)
    assert probabilities[0].tolist() == pytest.approx([found[0].probabilities[label] for label in ("lying", "standing")])
    assert vectors.shape == (2, classifier.model.config.d_model) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert classifier.predict_proba([]).shape == (0, 2) and classifier.embed([]).shape == (0, vectors.shape[1])
    assert "<ImageClassifier: 2 classes (lying, standing), " in repr(classifier)
    record = RunFolder.open(tmp_path / "run").metrics.read()[-1]
    assert {"picture", "text", "class", "found", "p"} == set(record["samples"][0])
    assert record["samples"][0]["picture"].startswith("data:image/png;base64,")


def test_readable_files_are_classified_in_batches(vision: ImageRecipe, photos: Path, tmp_path: Path, monkeypatch: Any) -> None:
    sit(changed(vision, max_steps=2), tmp_path / "run")
    classifier = load(tmp_path / "run", kind=ImageClassifier)
    classifier = replace(classifier, inference_config=ImageInferenceConfig(batch_size=4))
    files = sorted(photos.rglob("*.png"))[:9]
    for place in (1, 8):
        files[place].write_text("not an image")
    sizes, told = list[int](), list[tuple[int, int]]()
    classify_pixels = ImageClassifier.classify_pixels
    monkeypatch.setattr(ImageClassifier, "classify_pixels", lambda self, pixels: sizes.append(len(pixels)) or classify_pixels(self, pixels))
    found = classifier.classify_readable(files, lambda done, total: told.append((done, total)))
    assert sizes == [3, 4] and told == [(4, 9), (8, 9), (9, 9)]
    assert [place for place, each in enumerate(found) if isinstance(each, DataError)] == [1, 8] and str(files[8]) in str(found[8])
    whole = classifier.classify([file for place, file in enumerate(files) if place not in (1, 8)])
    assert [each.label for each in found if not isinstance(each, DataError)] == [each.label for each in whole]  # type: ignore[union-attr]
    with pytest.raises(DataError, match="cannot be decoded"):
        classifier.classify(files)


def test_the_figures_are_those_of_the_images_as_they_are(recipe: ImageRecipe, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        parts = build_training_setup(changed(recipe, precision="fp32"), Path(), folder)
        task: Any = parts.task
        figures, samples = measured(parts)
    valid, classes = task.valid, parts.recipe.model.classes  # type: ignore[attr-defined]
    found = ImageClassifier(parts.eval_model).classify_pixels(valid.load(range(len(valid))))  # type: ignore[arg-type]
    right = [each.label == label for each, label in zip(found, valid.labels, strict=True)]
    nll = [-torch.tensor(each.probabilities[label]).log() for each, label in zip(found, valid.labels, strict=True)]
    assert figures["accuracy"] == pytest.approx(100 * sum(right) / len(right))
    assert figures["loss"] == pytest.approx(float(torch.stack(nll).mean()), rel=1e-4)
    of_name = dict(zip(valid.names, found, strict=True))
    assert [sample["found"] for sample in samples] == [of_name[sample["text"]].label for sample in samples]
    assert {sample["class"] for sample in samples} == set(classes) == {"lying", "standing"}
    assert task.describe_sample(0).startswith(("lying/", "standing/")) and len(task.report.lines()) >= 4


def test_a_network_of_another_size_begins_from_a_trained_one(vision: ImageRecipe, photos: Path, tmp_path: Path) -> None:
    small = changed(vision, max_steps=4)
    sit(small, tmp_path / "small")
    (photos / "round").mkdir()
    for number in range(4):
        Image.new("RGB", (10, 10), (200, 10 * number, 0)).save(photos / "round" / f"{number}.png")
    raw = changed(small, init_from=str(tmp_path / "small")).model_dump()
    raw["model"] |= {"image_size": 16, "d_model": 24, "n_layers": 3}
    with RunFolder.create(tmp_path / "large") as folder:
        parts = build_training_setup(ImageRecipe.model_validate(raw), Path(), folder)
    ours, theirs = parts.model.state_dict(), read_tensors(tmp_path / "small" / WEIGHTS)
    name = "embedding.position.table.weight"
    assert len(ours[name]) == 17 and torch.equal(ours[name], resize_position_grid(theirs[name], 17))
    assert torch.equal(ours["encoder.blocks.0.attn.q.weight"], theirs["encoder.blocks.0.attn.q.weight"])
    before: Any = RunFolder.open(tmp_path / "small").load_config()
    config: Any = parts.recipe.model
    assert (config.d_model, config.n_layers, config.pixel_mean) == (16, 1, before.pixel_mean) and len(config.classes) == 3
    assert parts.notes[0].endswith("newly initialized: unembedding.weight")


def test_images_that_changed_are_not_gone_on_with(recipe: ImageRecipe, photos: Path, tmp_path: Path) -> None:
    sit(recipe, tmp_path / "run")
    (photos / "round").mkdir()
    Image.new("RGB", (10, 10)).save(photos / "round" / "1.png")
    with pytest.raises(DataError, match=r"round/1\.png: expected one of the classes 'lying', 'standing', found 'round'"):
        sit(changed(recipe, max_steps=12), tmp_path / "run")
