"""Masked tokens and classes as tasks: what they measure, that they learn, and that a killed run ends as the run left alone."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_run import Killed, kill_at, same
from transom.config.recipe import ClassificationRecipe, EmbeddingRecipe, MaskedRecipe, Recipe
from transom.decoding.classifier import Classifier
from transom.decoding.embedder import Embedder
from transom.decoding.filler import Filler
from transom.decoding.load import load
from transom.errors import DataError
from transom.inputs.batch import Sequences, matched_batch
from transom.inputs.special import EOS
from transom.models.build import build_model
from transom.training.events import Finished, Saved, Started, Stepped, Validated
from transom.training.run import train
from transom.training.setup import set_up
from transom.training.step import batch_loss
from transom.weights.run_folder import RunFolder

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_seq_len": 16, "dropout": 0.1}
TRAINING = {
    "max_steps": 10,
    "batch_tokens": 64,
    "accumulate": 2,
    "learning_rate": 0.01,
    "schedule": {"kind": "cosine", "warmup_steps": 5},
    "precision": "bf16",
    "average": {"kind": "checkpoints", "last": 2},
    "validate_every": 4,
    "checkpoint_every": 3,
    "log_every": 2,
}
ANIMALS, SAYS, COLOURS = ["dog", "cat", "bird"], ["barks", "purrs", "sings"], ["red", "green", "blue"]


@pytest.fixture
def masked(tmp_path: Path) -> MaskedRecipe:
    """Sentences whose animal is told by what stands behind it."""
    lines = [f"the {colour} {animal} {says}" for colour in COLOURS for animal, says in zip(ANIMALS, SAYS, strict=True)] * 8
    (tmp_path / "text.txt").write_text("\n".join(f"{line} {i}" for i, line in enumerate(lines)))
    data = {"train": {"files": str(tmp_path / "text.txt"), "document": "line"}}
    tokenizer = {"kind": "whitespace", "vocab_size": 100}
    return MaskedRecipe.model_validate({"data": data, "tokenizer": tokenizer, "model": MODEL, "training": TRAINING})


@pytest.fixture
def classes(tmp_path: Path) -> ClassificationRecipe:
    """Texts whose class is told by one word."""
    lines = [
        f"{i} a {word} thing\t{label}" for i in range(40) for label, words in (("animal", ANIMALS), ("colour", COLOURS)) for word in words
    ]
    (tmp_path / "labelled.tsv").write_text("\n".join(lines))
    data = {"train": {"file": str(tmp_path / "labelled.tsv")}}
    tokenizer = {"kind": "whitespace", "vocab_size": 60}
    return ClassificationRecipe.model_validate({"data": data, "tokenizer": tokenizer, "model": MODEL, "training": TRAINING})


@pytest.fixture
def pairs(tmp_path: Path) -> EmbeddingRecipe:
    """Pairs whose sides share the number and the word, said in two ways."""
    words = list(zip(ANIMALS + COLOURS, ["perro", "gato", "ave", "rojo", "verde", "azul"], strict=True))
    lines = [(f"{i} {word}", f"{word_2} {i}") for i in range(20) for word, word_2 in words]
    for side, name in enumerate(("left", "right")):
        (tmp_path / name).write_text("\n".join(line[side] for line in lines) + "\n")
    data = {"train": {"source": str(tmp_path / "left"), "target": str(tmp_path / "right")}}
    tokenizer = {"kind": "whitespace", "vocab_size": 60}
    return EmbeddingRecipe.model_validate({"data": data, "tokenizer": tokenizer, "model": MODEL, "training": TRAINING})


@pytest.fixture(params=["masked", "classes", "pairs"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    found: Recipe = request.getfixturevalue(request.param)
    return found


def changed(recipe: Recipe, **training: Any) -> Recipe:
    raw = recipe.model_dump()
    raw["training"] |= training
    return type(recipe).model_validate(raw)


def sit(recipe: Recipe, out: Path, *observers: Any) -> Finished:
    with RunFolder.create(out, resume=True) as folder:
        return train(set_up(recipe, Path(), folder), observers)


def test_a_killed_run_ends_as_the_run_left_alone(recipe: Recipe, tmp_path: Path) -> None:
    sit(recipe, tmp_path / "alone")
    for observer in (kill_at(0, Started), kill_at(2, Stepped), kill_at(4, Validated), kill_at(6, Saved), kill_at(8, Stepped)):
        with pytest.raises(Killed):
            sit(recipe, tmp_path / "killed", observer)
    sit(recipe, tmp_path / "killed")
    same(tmp_path / "alone", tmp_path / "killed")


def test_two_processes_make_the_steps_of_one(recipe: Recipe, tmp_path: Path) -> None:
    if isinstance(recipe, EmbeddingRecipe):
        return  # each process has the pairs of its own part to tell apart
    raw = changed(recipe, precision="fp32", max_steps=4).model_dump()
    raw["model"] |= {"dropout": 0.0, **({"pooler_dropout": 0.0} if recipe.task == "classification" else {})}
    seen: dict[int, list[Stepped]] = {1: [], 2: []}
    for n, steps in seen.items():
        raw["training"]["processes"] = n
        sit(type(recipe).model_validate(raw), tmp_path / str(n), lambda e, steps=steps: steps.append(e) if isinstance(e, Stepped) else None)
    for one, two in zip(seen[1], seen[2], strict=True):
        assert (one.loss, one.grad_norm) == pytest.approx(
            (two.loss, two.grad_norm), rel=2e-4
        ) and one.n_target_tokens == two.n_target_tokens


def test_a_classifier_learns_and_says_how_well(classes: ClassificationRecipe, tmp_path: Path) -> None:
    finished = sit(changed(classes, max_steps=60, select_by="accuracy", average="none"), tmp_path / "run")
    assert finished.best["accuracy"] == 100.0 and "perplexity" not in finished.best
    classifier = load(tmp_path / "run")
    assert isinstance(classifier, Classifier) and classifier.model.config.classes == ("animal", "colour")
    assert [each.label for each in classifier.classify(["a blue thing", "a bird thing"])] == ["colour", "animal"]
    record = RunFolder.open(tmp_path / "run").metrics.read()[-1]
    assert {"text", "class", "found"} == set(record["samples"][0])


def test_a_masked_model_learns_from_both_sides(masked: MaskedRecipe, tmp_path: Path) -> None:
    slow = {"max_steps": 400, "batch_tokens": 256, "validate_every": 100, "checkpoint_every": 400, "average": "none", "precision": "fp32"}
    finished = sit(changed(masked, **slow), tmp_path / "run")
    assert finished.best["perplexity"] == pytest.approx(math.exp(finished.best["loss"]))
    filler = load(tmp_path / "run")
    assert isinstance(filler, Filler)
    for animal, says in zip(ANIMALS, SAYS, strict=True):
        before, behind = (filler.fill([text], top=1)[0][0][0] for text in (f"the red {animal} [MASK]", f"the red [MASK] {says}"))
        assert (before.text, behind.text) == (says, animal) and min(before.p, behind.p) > 0.5
    sample = next(record for record in RunFolder.open(tmp_path / "run").metrics.read() if record["kind"] == "validation")["samples"][0]
    assert "[MASK]" in sample["text"] and {"filled", "was"} <= set(sample)


def test_the_figures_are_means_over_what_counts(recipe: Recipe, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        parts = set_up(changed(recipe, precision="fp32"), Path(), folder)
        task: Any = parts.task
        figures, _ = task.validate(parts.validated, torch.autocast("cpu", enabled=False), parts.precision)
        total, right, n = 0.0, 0, 0
        for batch in task.valid_batches:
            with torch.no_grad():
                log_p = parts.validated(batch).log_softmax(-1)[batch.counted]
            labels = batch.labels[batch.counted]
            total, n = total - log_p.gather(-1, labels[:, None]).sum().item(), n + len(labels)
            right += int((log_p.argmax(-1) == labels).sum())
    assert figures["loss"] == pytest.approx(total / n, rel=1e-5)
    if not isinstance(recipe, EmbeddingRecipe):  # which searches among all pairs, not those of a batch
        assert figures["accuracy"] == pytest.approx(100 * right / n)
    assert task.flops(task.valid_batches[0]) > 0 and task.place(0).startswith(("line ", str(tmp_path)))


def test_classes_that_changed_are_not_gone_on_with(classes: ClassificationRecipe, tmp_path: Path) -> None:
    sit(classes, tmp_path / "run")
    path = Path(classes.data.train.file)  # type: ignore[union-attr]
    path.write_text(path.read_text() + "\na thing\tother")
    with pytest.raises(DataError, match="expected one of the classes 'animal', 'colour', found 'other'"):
        sit(changed(classes, max_steps=12), tmp_path / "run")


def test_vectors_of_pairs_come_near(pairs: EmbeddingRecipe, tmp_path: Path) -> None:
    raw = changed(pairs, max_steps=150, batch_tokens=200, validate_every=50, average="none", precision="fp32").model_dump()
    raw["data"]["valid"] = raw["data"]["train"]
    finished = sit(EmbeddingRecipe.model_validate(raw), tmp_path / "run")
    assert finished.best["accuracy"] > 90
    embedder = load(tmp_path / "run", "fp32")
    assert isinstance(embedder, Embedder)
    left, right = embedder.embed(["3 dog", "4 cat"]), embedder.embed(["perro 3", "gato 4", "gato 3"])
    assert (left @ right.T).argmax(1).tolist() == [0, 1]
    expected = embedder.model.vectors(Sequences.pad([[EOS, *embedder.tokenizer.encode("3 dog")]]))[0]  # type: ignore[attr-defined]
    assert torch.allclose(left[0], expected.float(), atol=1e-5)


def test_the_loss_of_pairs_is_that_of_the_paper(pairs: EmbeddingRecipe) -> None:
    torch.manual_seed(1)
    model = build_model(pairs.model.model_copy(update={"vocab_size": 60})).double().eval()
    batch = matched_batch([[5, 6], [7], [8, 9, 10]], [[11], [12, 13], [14]], [0, 1, 2])
    u, v = (model.vectors(side) for side in (batch.source, batch.target))  # type: ignore[operator]
    cosines = torch.tensor([[torch.cosine_similarity(a, b, dim=0).item() for b in v] for a in u], dtype=torch.float64)
    expected = sum(-math.log(math.exp(cosines[i, i] / 0.05) / sum(math.exp(c / 0.05) for c in cosines[i])) for i in range(3))
    loss, nll = batch_loss(model, batch, 0.0)
    assert loss.item() == pytest.approx(expected, rel=1e-6) and nll.item() == pytest.approx(expected, rel=1e-6)
    assert torch.allclose(model(batch), cosines / 0.05, atol=1e-5)
