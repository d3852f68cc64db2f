"""Training with any number of labels per text: the loss, what is learned, what is refused, and resuming."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.conftest import ANIMALS, COLOURS, MODEL, TRAINING, changed, sit
from tests.training.test_train_loop import die_and_end_the_same, kill_at
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import load_recipe
from transom.data.reports.baseline import worse_than_baseline
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.multi_label import MultiLabelClassifier, choose_thresholds
from transom.errors import ConfigError, DataError
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.load import load
from transom.training.events import Callback, CheckpointSaved, StepFinished
from transom.training.losses import binary_cross_entropy


@pytest.fixture
def labels(tmp_path: Path) -> ClassificationRecipe:
    """Texts with an animal, a colour, both or neither, and the labels for these."""
    lines = list[str]()
    for i in range(12):
        for animal in ("", *ANIMALS):
            for colour in ("", *COLOURS):
                joined = "|".join(name for name, word in (("colour", colour), ("animal", animal)) if word)
                lines.append(f"{i} a {' '.join(filter(None, (animal, colour)))} thing\t{joined}")
    (tmp_path / "labels.tsv").write_text("\n".join(lines))
    data = {"train": {"file": str(tmp_path / "labels.tsv")}, "multi_label": True}
    tokenizer = {"kind": "whitespace", "vocab_size": 60}
    return ClassificationRecipe.model_validate({"data": data, "tokenizer": tokenizer, "model": MODEL, "training": TRAINING})


def test_the_loss_by_hand() -> None:
    torch.manual_seed(1)
    logits, y = torch.randn(7, 3, dtype=torch.float64, requires_grad=True), (torch.rand(7, 3) < 0.5).double()
    loss, nll = binary_cross_entropy(logits, y, 0.1)
    p = 1 / (1 + torch.exp(-logits))
    assert nll.item() == pytest.approx(-(y * p.log() + (1 - y) * (1 - p).log()).sum().item(), rel=1e-12)
    smooth = 0.9 * y + 0.05
    assert loss.item() == pytest.approx(-(smooth * p.log() + (1 - smooth) * (1 - p).log()).sum().item(), rel=1e-12)
    loss.backward()
    assert logits.grad is not None and torch.allclose(logits.grad, (p - smooth).detach())
    far = torch.tensor([[800.0, -800.0]])
    assert binary_cross_entropy(far, torch.tensor([[0.0, 1.0]]), 0.0)[1].item() == 1600.0, "no overflow"


@pytest.mark.long
def test_a_classifier_learns_labels_and_keeps_thresholds(labels: ClassificationRecipe, tmp_path: Path) -> None:
    finished = sit(changed(labels, max_steps=160, best_checkpoint_metric="micro_f1", average="none", precision="fp32"), tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    assert finished.best["micro_f1"] > 95 and finished.best["hamming_loss"] < 0.05 and "accuracy" not in finished.best
    config = json.loads((tmp_path / "run" / "config.json").read_text())["model"]
    assert config["multi_label"] and config["classes"] == ["animal", "colour"]
    found = load(tmp_path / "run", "fp32", kind=Classifier)
    assert isinstance(found, MultiLabelClassifier)
    answers = found.classify(["5 a dog thing", "5 a red cat thing", "5 a thing"])
    assert [set(each.labels) for each in answers] == [{"animal"}, {"animal", "colour"}, set()]
    sample = run.metrics.read()[-1]["samples"][0]
    assert {"text", "class", "found"} == set(sample)
    bf16 = load(tmp_path / "run", "bf16")
    assert bf16.thresholds.tolist() == found.thresholds.tolist()


def test_the_kept_thresholds_are_those_of_the_kept_weights(labels: ClassificationRecipe, tmp_path: Path) -> None:
    raw = changed(labels, max_steps=12, precision="fp32").model_dump()  # averages checkpoints: the better of two weights is kept
    raw["data"]["valid"] = raw["data"]["train"]
    sit(ClassificationRecipe.model_validate(raw), tmp_path / "run")
    found = load(tmp_path / "run", "fp32")
    lines = [line.split("\t") for line in (tmp_path / "labels.tsv").read_text().split("\n")]
    sets = np.array([[name in known.split("|") for name in ("animal", "colour")] for _, known in lines], np.uint8)
    assert found.thresholds.tolist() == choose_thresholds(found.predict_proba([text for text, _ in lines]), sets).tolist()
    assert found.thresholds.tolist() != [0.5, 0.5]


@pytest.mark.long
def test_it_is_better_than_its_baseline(labels: ClassificationRecipe, tmp_path: Path) -> None:
    seen: list[Any] = []
    finished = sit(changed(labels, max_steps=60, average="none"), tmp_path / "run", seen.append)
    baseline = seen[0].facts["data"]["baseline"]
    assert [each["key"] for each in baseline] == ["loss", "micro_f1"] and worse_than_baseline(finished.best, baseline) == []
    assert baseline[0]["value"] == pytest.approx(2 * (0.75 * math.log(4 / 3) + 0.25 * math.log(4)), rel=0.2)
    (worse,) = worse_than_baseline({"micro_f1": 1.0}, baseline)
    assert worse.startswith("validation micro F1 1.0% is worse than always answering '")


def test_a_run_that_dies_ends_the_same(labels: ClassificationRecipe, tmp_path: Path) -> None:
    def result(out: Path, callback: Callback = lambda _: None) -> None:
        sit(labels, out, callback)

    die_and_end_the_same(result, tmp_path, [kill_at(3, CheckpointSaved), kill_at(8, StepFinished)])


def test_a_run_is_resumed_with_and_without_the_field(labels: ClassificationRecipe, tmp_path: Path) -> None:
    """What the data were read as is kept in the model: a recipe that says nothing about it resumes the run."""
    path = tmp_path / "labels.jsonl"
    lines = [line.split("\t") for line in (tmp_path / "labels.tsv").read_text().split("\n")]
    path.write_text("\n".join(json.dumps({"text": text, "label": [name for name in known.split("|") if name]}) for text, known in lines))
    raw = labels.model_dump()
    raw["data"] |= {"train": {"file": str(path)}, "multi_label": None}
    recipe = ClassificationRecipe.model_validate(raw)
    sit(recipe, tmp_path / "run")
    assert sit(changed(recipe, max_steps=12), tmp_path / "run").step == 12
    assert load_recipe(tmp_path / "run" / "recipe.toml")[0].model.multi_label  # type: ignore[attr-defined]
    raw["data"]["multi_label"] = False
    with pytest.raises((ConfigError, DataError)):
        sit(ClassificationRecipe.model_validate(raw), tmp_path / "run")


def test_a_class_with_a_separator_in_its_name_is_kept(tmp_path: Path, labels: ClassificationRecipe) -> None:
    raw = labels.model_dump()
    raw["data"]["multi_label"] = False
    (tmp_path / "labels.tsv").write_text(
        "\n".join(f"{i} a {word} thing\t{name}" for i in range(30) for word, name in (("x", "a|b"), ("y", "c")))
    )
    sit(ClassificationRecipe.model_validate(raw), tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())["model"]
    assert config["classes"] == ["a|b", "c"] and config["multi_label"] is False


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"best_checkpoint_metric": "accuracy"},
            "expected 'loss' or 'micro_f1' or 'macro_f1' for texts with any number of labels, found 'accuracy'",
        ),
        ({"r_drop": 1.0}, "training.r_drop: expected 0 for texts with any number of labels, found 1"),
    ],
)
def test_settings_for_one_class_are_refused(labels: ClassificationRecipe, tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sit(changed(labels, **fields), tmp_path / "run")
    assert expected in str(caught.value)


def test_f1_is_refused_for_one_class_per_text(classes: ClassificationRecipe, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected 'loss' or 'accuracy' for texts with one class each, found 'micro_f1'"):
        sit(changed(classes, best_checkpoint_metric="micro_f1"), tmp_path / "run")
