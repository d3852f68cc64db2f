"""Fine-tuning: a run of any family starts from another, whole or by low-rank maps; what it takes, what stays fresh, how it goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import TRAINING, changed, sit
from tests.training.test_run import Killed, kill_at, same
from transom.config.recipe import ClassificationRecipe, LanguageRecipe, MaskedRecipe, Recipe
from transom.decoding.load import load
from transom.errors import CheckpointError, ConfigError
from transom.training.events import Started, Stepped
from transom.training.setup import set_up
from transom.weights.run_folder import ADAPTER, BASE, TOKENIZER, WEIGHTS, RunFolder
from transom.weights.tensors import read_tensors


@pytest.fixture
def pretrained(masked: MaskedRecipe, tmp_path: Path) -> Path:
    sit(changed(masked, max_steps=4), tmp_path / "pretrained")
    return tmp_path / "pretrained"


def test_a_classifier_starts_from_a_masked_models_encoder(classes: ClassificationRecipe, pretrained: Path, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "tuned") as folder:
        parts = set_up(changed(classes, start_from=str(pretrained)), Path(), folder)
    ours, theirs = parts.model.state_dict(), read_tensors(pretrained / WEIGHTS)
    taken = [name for name in ours if name in theirs and not name.startswith("unembedding")]
    assert all(torch.equal(ours[name], theirs[name]) for name in taken) and len(taken) > 15
    (note,) = parts.notes
    assert note.startswith(f"starts from {pretrained}: {len(taken)} of {len(ours)} tensors, its widths and bricks; ")
    assert note.endswith("fresh: pooler.weight, pooler.bias, unembedding.weight")
    assert (tmp_path / "tuned" / TOKENIZER).read_bytes() == (pretrained / TOKENIZER).read_bytes()


@pytest.mark.long
def test_a_run_that_starts_from_another_goes_on_by_itself(classes: ClassificationRecipe, pretrained: Path, tmp_path: Path) -> None:
    tuned = changed(classes, start_from=str(pretrained), processes=2)
    seen: list[Any] = []
    sit(tuned, tmp_path / "alone", seen.append)
    assert any(note.startswith("starts from") for note in next(e for e in seen if isinstance(e, Started)).notes)
    with pytest.raises(Killed):
        sit(tuned, tmp_path / "killed", kill_at(5, Stepped))
    for path in pretrained.iterdir():  # it needs nothing of the other any more
        path.rename(pretrained.parent / f"gone-{path.name}")
    sit(changed(classes, processes=2), tmp_path / "killed")
    same(tmp_path / "alone", tmp_path / "killed")
    assert "start_from" in (tmp_path / "killed" / "recipe.toml").read_text(), "the run says where it came from"


def test_the_other_run_decides_widths_and_bricks_and_the_recipe_the_rest(
    classes: ClassificationRecipe, pretrained: Path, tmp_path: Path
) -> None:
    raw = changed(classes, start_from=str(pretrained)).model_dump()
    raw["model"] |= {"d_model": 32, "n_layers": 2, "norm_placement": "pre", "dropout": 0.25, "pool": "start"}
    other = ClassificationRecipe.model_validate(raw)
    sit(other, tmp_path / "tuned")
    model = RunFolder.open(tmp_path / "tuned").load_config()
    assert (model.d_model, model.n_layers, model.norm_placement, model.dropout, model.pool) == (16, 1, "post", 0.25, "start")  # type: ignore[attr-defined]
    sit(changed(other, max_steps=12), tmp_path / "tuned")  # resumed by the same recipe


@pytest.fixture
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Recipe:
    """A small recipe of a family."""
    if request.param in ("masked", "classes", "pairs", "languages", "vision", "convolutional"):
        recipe: Recipe = request.getfixturevalue(request.param)
        return recipe
    if request.param == "recurrent-seq2seq":
        recipe = request.getfixturevalue("languages")
        return type(recipe).model_validate(recipe.model_dump() | {"model": {"kind": "recurrent-seq2seq", "d_model": 16, "dropout": 0.1}})
    masked = request.getfixturevalue("masked")
    model = {"d_model": 16, "n_layers": 1, "max_seq_len": 16} | ({"n_heads": 2} if request.param == "decoder" else {})
    training = {name: masked.training.model_dump()[name] for name in TRAINING}
    raw = {"data": masked.data, "tokenizer": masked.tokenizer, "training": training, "model": model | {"kind": request.param}}
    return LanguageRecipe.model_validate(raw)


TRANSFORMERS = ["masked", "classes", "pairs", "languages", "vision", "decoder"]


@pytest.mark.parametrize("family", [*TRANSFORMERS, "convolutional", "recurrent-seq2seq", "recurrent-decoder"], indirect=True)
def test_every_family_starts_from_a_run(family: Recipe, tmp_path: Path) -> None:
    """A run that hardly moves ends where the other ended, and nowhere near where it would have begun by itself."""
    alone = changed(family, average="none", max_steps=4)
    sit(alone, tmp_path / "first")
    still = {"learning_rate": 1e-9, "max_steps": 1, "seed": 2}
    sit(changed(alone, start_from=str(tmp_path / "first"), **still), tmp_path / "tuned")
    sit(changed(alone, **still), tmp_path / "fresh")
    first, tuned, fresh = (read_tensors(tmp_path / name / WEIGHTS) for name in ("first", "tuned", "fresh"))
    learned = [name for name in first if "running" not in name and "num_batches" not in name]
    assert all(torch.allclose(tuned[name], first[name], rtol=0, atol=1e-6) for name in learned)
    assert not all(torch.allclose(fresh[name], first[name], rtol=0, atol=1e-2) for name in learned)
    load(tmp_path / "tuned")


@pytest.mark.parametrize("family", TRANSFORMERS, indirect=True)
def test_every_transformer_is_tuned_by_low_rank_maps(family: Recipe, tmp_path: Path) -> None:
    sit(changed(family, average="none", max_steps=4), tmp_path / "first")
    sit(changed(family, average="none", max_steps=6, start_from=str(tmp_path / "first"), adapter={"rank": 2}), tmp_path / "tuned")
    first, base, whole = (read_tensors(tmp_path / at) for at in (f"first/{WEIGHTS}", f"tuned/{BASE}", f"tuned/{WEIGHTS}"))
    assert all(torch.equal(x, first[name]) for name, x in base.items())
    maps = {name.removesuffix(".lora_a") + ".weight" for name in read_tensors(tmp_path / "tuned" / ADAPTER) if name.endswith(".lora_a")}
    assert maps and all(not torch.equal(whole[name], first[name]) for name in maps)
    kept = base.keys() - maps
    assert kept and all(torch.equal(whole[name], first[name]) for name in kept)
    load(tmp_path / "tuned")


def test_what_does_not_fit_is_named(classes: ClassificationRecipe, pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a run's folder"):
        sit(changed(classes, start_from=str(tmp_path / "none")), tmp_path / "refused")
    recurrent = LanguageRecipe.model_validate({"data": {"train": {"files": "text.txt"}}, "model": {"kind": "recurrent-decoder"}})
    with pytest.raises(ConfigError, match="the same kind of network as recurrent-decoder, found encoder; name such a run"):
        sit(changed(recurrent, start_from=str(pretrained)), tmp_path / "refused")
    decoder = LanguageRecipe.model_validate({"data": {"train": {"files": str(tmp_path / "text.txt"), "document": "line"}}})
    with pytest.raises(ConfigError, match=r"found no decoder\.blocks\.0.*name a run of the same kind of network"):
        sit(changed(decoder, start_from=str(pretrained)), tmp_path / "refused")
