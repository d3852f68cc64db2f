"""Masked language modeling, classification and embedding: metrics, and that training works."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import ANIMALS, SAYS, changed, measured, sit
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import Recipe
from transom.data.batch import PaddedSequences, contrastive_batch
from transom.data.tokenizer.special_tokens import EOS
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.fill_mask import MaskFiller
from transom.errors import ConfigError, DataError
from transom.models.build import build_model
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.classification.task import ClassificationTask
from transom.tasks.embedding.schema import EmbeddingRecipe
from transom.tasks.load import load
from transom.tasks.masked.schema import MaskedRecipe
from transom.tasks.task import build_training_setup
from transom.training.objectives.objective import CrossEntropy, forward_pass


@pytest.fixture(params=["masked", "classes", "pairs"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    found: Recipe = request.getfixturevalue(request.param)
    return found


def test_a_classifier_leaves_tokens_of_training_texts_out(classes: ClassificationRecipe, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        task = build_training_setup(changed(classes, word_dropout=0.5), tmp_path, folder).task
    assert isinstance(task, ClassificationTask)
    _, slices = next(task.loader.batches_from(0))
    assert any(batch.source.lengths.min() < 5 for batch in slices), "a text has four words and the start symbol"
    assert all(batch.source.lengths.min() == 5 for batch in task.valid_batches)


def test_a_longer_text_is_refused_where_asked(classes: ClassificationRecipe, tmp_path: Path) -> None:
    raw = classes.model_dump()
    raw["data"] |= {"too_long": "refuse", "valid": {"file": str(tmp_path / "valid.tsv")}}
    (tmp_path / "valid.tsv").write_text("a dog thing\tanimal\na" + " red" * 99 + "\tcolour\n")
    with pytest.raises(DataError, match=r"valid\.tsv, line 2: expected at most model.max_seq_len = \d+ tokens, .* found 101; shorten it"):
        sit(ClassificationRecipe.model_validate(raw), tmp_path / "refused")


@pytest.mark.long
def test_a_classifier_learns_and_says_how_well(classes: ClassificationRecipe, tmp_path: Path) -> None:
    finished = sit(changed(classes, max_steps=60, best_checkpoint_metric="accuracy", average="none"), tmp_path / "run")
    assert finished.best["accuracy"] == 100.0 and "perplexity" not in finished.best
    classifier = load(tmp_path / "run")
    assert isinstance(classifier, Classifier) and classifier.model.config.classes == ("animal", "colour")
    assert [each.label for each in classifier.classify(["a blue thing", "a bird thing"])] == ["colour", "animal"]
    record = RunFolder.open(tmp_path / "run").metrics.read()[-1]
    assert {"text", "class", "found", "p"} == set(record["samples"][0])


def test_the_mask_is_no_symbol_of_the_tokenizer(masked: MaskedRecipe, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.mask_token_id: expected none, found 5: the mask token is not part of the tokenizer"):
        sit(masked.with_fields("model", mask_token_id=5), tmp_path / "run")


@pytest.mark.long
def test_a_masked_model_learns_from_both_sides(masked: MaskedRecipe, tmp_path: Path) -> None:
    slow = {"max_steps": 400, "batch_tokens": 256, "validate_every": 100, "checkpoint_every": 400, "average": "none", "precision": "fp32"}
    finished = sit(changed(masked, **slow), tmp_path / "run")
    assert finished.best["perplexity"] == pytest.approx(math.exp(finished.best["loss"]))
    mask_filler = load(tmp_path / "run")
    assert isinstance(mask_filler, MaskFiller)
    for animal, says in zip(ANIMALS, SAYS, strict=True):
        before, behind = (mask_filler.fill([text], top_k=1)[0][0][0] for text in (f"the red {animal} [MASK]", f"the red [MASK] {says}"))
        assert (before.text, behind.text) == (says, animal) and min(before.p, behind.p) > 0.5
    sample = next(record for record in RunFolder.open(tmp_path / "run").metrics.read() if record["kind"] == "validation")["samples"][0]
    assert "[MASK]" in sample["text"] and {"filled", "was"} <= set(sample)


def test_the_figures_are_means_over_what_counts(recipe: Recipe, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        parts = build_training_setup(changed(recipe, precision="fp32"), Path(), folder)
        task: Any = parts.task
        figures, _ = measured(parts)
        total, right, n = 0.0, 0, 0
        for batch in task.valid_batches:
            with torch.no_grad():
                log_p = parts.eval_model(batch).log_softmax(-1)[batch.loss_mask]
            labels = batch.labels[batch.loss_mask]
            total, n = total - log_p.gather(-1, labels[:, None]).sum().item(), n + len(labels)
            right += int((log_p.argmax(-1) == labels).sum())
    assert total / n > 0.1 and figures["loss"] == pytest.approx(total / n, rel=1e-5)
    if not isinstance(recipe, EmbeddingRecipe):  # which searches among all pairs, not those of a batch
        assert figures["accuracy"] == pytest.approx(100 * right / n)
    assert task.flops(task.valid_batches[0]) > 0 and task.describe_sample(0).startswith(("line ", str(tmp_path)))


def test_classes_that_changed_are_not_gone_on_with(classes: ClassificationRecipe, tmp_path: Path) -> None:
    sit(classes, tmp_path / "run")
    path = Path(classes.data.train.file)  # type: ignore[union-attr]
    path.write_text(path.read_text() + "\na thing\tother")
    with pytest.raises(DataError, match="expected one of the classes 'animal', 'colour', found 'other'"):
        sit(changed(classes, max_steps=12), tmp_path / "run")


@pytest.mark.long
def test_vectors_of_pairs_come_near(pairs: EmbeddingRecipe, tmp_path: Path) -> None:
    raw = changed(pairs, max_steps=150, batch_tokens=200, validate_every=50, average="none", precision="fp32").model_dump()
    raw["data"]["valid"] = raw["data"]["train"]
    finished = sit(EmbeddingRecipe.model_validate(raw), tmp_path / "run")
    assert finished.best["accuracy"] > 90
    embedder = load(tmp_path / "run", "fp32")
    assert isinstance(embedder, Embedder)
    left, right = embedder.embed(["3 dog", "4 cat"]), embedder.embed(["perro 3", "gato 4", "gato 3"])
    assert (left @ right.T).argmax(1).tolist() == [0, 1]
    expected = embedder.model.vectors(PaddedSequences.pad([[EOS, *embedder.tokenizer.encode("3 dog")]]))[0]  # type: ignore[attr-defined]
    assert torch.allclose(torch.from_numpy(left[0]), expected.float(), atol=1e-5)


def test_the_loss_of_pairs_is_that_of_the_paper(pairs: EmbeddingRecipe) -> None:
    torch.manual_seed(1)
    model = build_model(pairs.model.model_copy(update={"vocab_size": 60})).double().eval()
    batch = contrastive_batch([[5, 6], [7], [8, 9, 10]], [[11], [12, 13], [14]], [0, 1, 2])
    u, v = (model.vectors(side) for side in (batch.source, batch.target))  # type: ignore[operator]
    cosines = torch.tensor([[torch.cosine_similarity(a, b, dim=0).item() for b in v] for a in u], dtype=torch.float64)
    expected = sum(-math.log(math.exp(cosines[i, i] / 0.05) / sum(math.exp(c / 0.05) for c in cosines[i])) for i in range(3))
    loss, _, nll = CrossEntropy(0.0).loss(forward_pass(model, batch))
    assert loss.item() == pytest.approx(expected, rel=1e-6) and nll.item() == pytest.approx(expected, rel=1e-6)
    assert torch.allclose(model(batch), cosines / 0.05, atol=1e-5)
