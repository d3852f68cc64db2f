"""Tagging: metrics, training, report, and which runs it may start from."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.size import ROOT
from tests.training.conftest import changed, measured, sit
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import load_recipe
from transom.errors import ConfigError, DataError
from transom.inspection.activation_sites import list_sites
from transom.planning.parameters import count_parameters
from transom.tasks.load import load, load_embedder
from transom.tasks.masked.schema import MaskedRecipe
from transom.tasks.tagging.entities import entity_scores
from transom.tasks.tagging.predictor import EntitySpan, TaggedText, Tagger
from transom.tasks.tagging.schema import TaggingRecipe
from transom.tasks.tagging.tagged_files import TaggedSentences
from transom.tasks.tagging.task import TaggingTask
from transom.tasks.task import build_training_setup
from transom.training.objectives.r_drop import RDrop

EXACT = {"precision": "fp32", "average": "none"}


def test_figures_are_of_words_and_of_entities(tags: TaggingRecipe, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        parts = build_training_setup(changed(tags, precision="fp32"), Path(), folder)
        task, model = parts.task, parts.eval_model
        assert isinstance(task, TaggingTask)
        figures, samples = measured(parts)
    assert task.recipe.model.classes == ("B-ANIMAL", "B-PER", "I-ANIMAL", "I-PER", "O")
    total, right, n, found = 0.0, 0, 0, dict[int, list[str]]()
    for batch in task.valid_batches:
        with torch.no_grad():
            log_p = model(batch).log_softmax(-1)
        for row, sample in enumerate(batch.sample_ids):
            of_words, labels = log_p[row][batch.loss_mask[row]], batch.labels[row][batch.loss_mask[row]]
            found[sample] = [task.recipe.model.classes[label] for label in of_words.argmax(-1).tolist()]
            total -= of_words.gather(-1, labels[:, None]).sum().item()
            right, n = right + int((of_words.argmax(-1) == labels).sum()), n + len(labels)
    whole, _ = entity_scores(task.valid.tags, [found[i] for i in range(len(task.valid))])
    assert n == sum(map(len, task.valid.words)) and "perplexity" not in figures
    assert (figures["loss"], figures["accuracy"], figures["f1"]) == pytest.approx((total / n, 100 * right / n, 100 * whole.f1), rel=1e-5)
    assert samples[0]["words"].split("\n") == task.valid.words[0] and samples[0]["tagged"].split("\n") == found[0]
    assert task.flops(task.valid_batches[0]) > 0 and task.describe_sample(0).startswith(str(tmp_path))
    assert count_parameters(task.recipe.model).parts["unembedding"] == 16 * 5
    assert any(site.address == "encoder.blocks.0.attn.q" for site in list_sites(task.recipe.model))


@pytest.mark.long
def test_entities_are_found(tags: TaggingRecipe, tmp_path: Path) -> None:
    recipe = changed(
        tags, **EXACT, max_steps=150, validate_every=50, best_checkpoint_metric="f1", r_drop=0.5, blank_noising=0.05, label_smoothing=0.1
    )
    finished = sit(recipe, tmp_path / "run")
    assert finished.best["f1"] > 99
    tagger = load(tmp_path / "run", "fp32")
    assert isinstance(tagger, Tagger)
    (found,) = tagger.tag(["3 the red  dog sees Luis Torres"])
    assert found.entities == [EntitySpan("ANIMAL", "dog", 11, 14), EntitySpan("PER", "Luis Torres", 20, 31)] and min(found.p) > 0.5
    (words,) = tagger.tag([["3", "the", "red", "dog", "sees", "Luis", "Torres"]])
    assert words.tags == found.tags and words.entities[0] == EntitySpan("ANIMAL", "dog", 10, 13)
    known = TaggedSentences([words.words], [["O", "O", "O", "B-ANIMAL", "O", "B-PER", "O"]], "here")
    scores = tagger.score(known)
    assert scores.accuracy == pytest.approx(600 / 7) and scores.entities is not None
    assert scores.entities[1:] == (0.5, 0.5, 0.5) and scores.labels["ANIMAL"].f1 == 1
    long = tagger.tag([" ".join(["the red dog"] * 20)])[0]
    dogs = sum(each.label == "ANIMAL" and each.text == "dog" for each in long.entities)
    assert len(long.tags) == 60 and long.windows > 1 and dogs >= 10, "what is longer than the model reads is read in windows"
    assert tagger.tag([""])[0] == TaggedText([], [], [], [], 0) and tagger.tag([]) == []
    with pytest.raises(DataError, match="expected a list of texts"):
        tagger.tag("a text")
    assert load_embedder(tmp_path / "run").embed(["the dog"]).shape == (1, 16)


def test_each_sentence_may_be_read_twice(tags: TaggingRecipe, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        parts = build_training_setup(changed(tags, r_drop=1.0), Path(), folder)
    assert isinstance(parts.task.objective(parts.model), RDrop)


def test_tags_that_stand_for_themselves_have_no_entities(tags: TaggingRecipe, tmp_path: Path) -> None:
    (tmp_path / "pos.conll").write_text("".join(f"the DET\ndog{i} NOUN\nsleeps VERB\n\n" for i in range(30)))
    raw = tags.model_dump() | {"data": {"train": {"file": str(tmp_path / "pos.conll")}}}
    recipe = TaggingRecipe.model_validate(raw)
    assert "f1" not in sit(changed(recipe, best_checkpoint_metric="accuracy"), tmp_path / "run").best
    tagger: Any = load(tmp_path / "run")
    found = tagger.tag(["the dog sleeps"])[0]
    assert set(found.tags) <= {"DET", "NOUN", "VERB"} and found.entities == []
    with pytest.raises(
        ConfigError, match=r"training.best_checkpoint_metric: expected entity tags .* found tags such as 'DET'; set it to 'accuracy'"
    ):
        sit(changed(recipe, best_checkpoint_metric="f1"), tmp_path / "other")


def test_tags_of_validation_alone_are_refused_and_so_are_those_of_another_file(tags: TaggingRecipe, tmp_path: Path) -> None:
    (tmp_path / "valid.conll").write_text("the\tO\ndog\tB-BEAST\n")
    raw = tags.model_dump()
    raw["data"]["valid"] = {"file": str(tmp_path / "valid.conll")}
    with pytest.raises(DataError, match=r"valid.conll:2: expected one of the tags 'B-ANIMAL', .* found 'B-BEAST'"):
        sit(TaggingRecipe.model_validate(raw), tmp_path / "run")
    (tmp_path / "tagged.conll").write_text("a\tO\n\nb\tO\n")
    with pytest.raises(DataError, match=r"expected 2 to 10,000 tags, found 1 \('O'\); check tag_column"):
        sit(tags, tmp_path / "run")


def test_it_starts_from_an_encoder_of_masked_tokens(masked: MaskedRecipe, tags: TaggingRecipe, tmp_path: Path) -> None:
    sit(masked, tmp_path / "masked")
    with RunFolder.create(tmp_path / "run") as folder:
        parts = build_training_setup(changed(tags, init_from=str(tmp_path / "masked")), Path(), folder)
    other = load(tmp_path / "masked", "fp32").model.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in parts.model.state_dict().items() if name.startswith("encoder."))


@pytest.mark.soak
def test_the_packaged_recipe_reaches_its_f1(tmp_path: Path) -> None:
    recipe, base = load_recipe("phrasebook-tags", ["training.max_steps=400"])
    with RunFolder.create(tmp_path / "run") as folder:
        parts = build_training_setup(recipe, base, folder)
        assert parts.task.report.problems == []
    assert sit(recipe, tmp_path / "run").best["f1"] > 99


@pytest.mark.long
def test_a_tagger_is_built_from_its_fields_before_anything_of_the_task_is_imported() -> None:
    fields = {"kind": "token-tagger", "vocab_size": 9, "classes": ["a", "b", "c"], "d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 1}
    calls = "torch.tensor([[2, 3, 4]]), attention_mask=torch.tensor([[1, 1, 0]])"
    script = f"import torch, transom\nprint(tuple(transom.build({fields})({calls}).shape))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == "(1, 3, 3)\n", done.stderr
