"""Fine-tuning: a run of any family starts from another, whole or by low-rank maps; what it takes, what stays fresh, how it goes on."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiers import every
from tests.training.conftest import TRAINING, changed, sit
from tests.training.test_train_loop import Killed, kill_at, same
from transom.checkpoints.run_files import ADAPTER, BASE, TOKENIZER, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_tensors
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides
from transom.config.recipe import Recipe
from transom.errors import CheckpointError, ConfigError
from transom.models.build import build_model
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.image_classification.schema import ImageRecipe
from transom.tasks.language.schema import LanguageRecipe
from transom.tasks.load import load
from transom.tasks.masked.schema import MaskedRecipe
from transom.tasks.task import build_training_setup
from transom.training.events import StepFinished, TrainingStarted
from transom.training.finetune import inherit_model_shape, merge_model_fields


@pytest.fixture
def pretrained(masked: MaskedRecipe, tmp_path: Path) -> Path:
    sit(changed(masked, max_steps=4), tmp_path / "pretrained")
    return tmp_path / "pretrained"


def test_a_classifier_starts_from_a_masked_models_encoder(classes: ClassificationRecipe, pretrained: Path, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "tuned") as folder:
        parts = build_training_setup(changed(classes, init_from=str(pretrained)), Path(), folder)
    ours, theirs = parts.model.state_dict(), read_tensors(pretrained / WEIGHTS)
    taken = [name for name in ours if name in theirs and not name.startswith("unembedding")]
    assert all(torch.equal(ours[name], theirs[name]) for name in taken) and len(taken) > 15
    (note,) = parts.notes
    assert note.startswith(f"starts from {pretrained}: copies {len(taken)} of {len(ours)} tensors; ")
    assert note.endswith("newly initialized: pooler.weight, pooler.bias, unembedding.weight")
    assert (tmp_path / "tuned" / TOKENIZER).read_bytes() == (pretrained / TOKENIZER).read_bytes()


@pytest.mark.long
def test_a_run_that_starts_from_another_goes_on_by_itself(classes: ClassificationRecipe, pretrained: Path, tmp_path: Path) -> None:
    tuned = changed(classes, init_from=str(pretrained), processes=2)
    seen: list[Any] = []
    sit(tuned, tmp_path / "alone", seen.append)
    assert any(note.startswith("starts from") for note in next(e for e in seen if isinstance(e, TrainingStarted)).notes)
    with pytest.raises(Killed):
        sit(tuned, tmp_path / "killed", kill_at(5, StepFinished))
    for path in pretrained.iterdir():  # it needs nothing of the other any more
        path.rename(pretrained.parent / f"gone-{path.name}")
    sit(changed(classes, processes=2), tmp_path / "killed")
    same(tmp_path / "alone", tmp_path / "killed")
    assert "init_from" in (tmp_path / "killed" / "recipe.toml").read_text(), "the run says where it came from"


def test_the_other_run_decides_widths_and_components_and_the_recipe_the_rest(
    classes: ClassificationRecipe, pretrained: Path, tmp_path: Path
) -> None:
    raw = changed(classes, init_from=str(pretrained)).model_dump()
    raw["model"] |= {"d_model": 32, "n_layers": 2, "norm_placement": "pre", "dropout": 0.25, "pooling": "cls"}
    other = ClassificationRecipe.model_validate(raw)
    seen: list[Any] = []
    sit(other, tmp_path / "tuned", seen.append)
    unused = "n_layers 2, norm_placement 'pre'"
    notes = next(e for e in seen if isinstance(e, TrainingStarted)).notes
    assert f"the model's shape is that of {pretrained}; not used are the recipe's d_model 32, {unused}" in notes
    model = RunFolder.open(tmp_path / "tuned").load_config()
    assert (model.d_model, model.n_layers, model.norm_placement, model.dropout, model.pooling) == (16, 1, "post", 0.25, "cls")  # type: ignore[attr-defined]
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


@pytest.mark.parametrize("family", every(4, [*TRANSFORMERS, "convolutional", "recurrent-seq2seq", "recurrent-decoder"]), indirect=True)
def test_every_family_starts_from_a_run(family: Recipe, tmp_path: Path) -> None:
    """A run that hardly moves ends where the other ended, and nowhere near where it would have begun by itself."""
    alone = changed(family, average="none", max_steps=4)
    sit(alone, tmp_path / "first")
    still = {"learning_rate": 1e-9, "max_steps": 1, "seed": 2}
    sit(changed(alone, init_from=str(tmp_path / "first"), **still), tmp_path / "tuned")
    sit(changed(alone, **still), tmp_path / "fresh")
    first, tuned, fresh = (read_tensors(tmp_path / name / WEIGHTS) for name in ("first", "tuned", "fresh"))
    learned = [name for name in first if "running" not in name and "num_batches" not in name]
    assert all(torch.allclose(tuned[name], first[name], rtol=0, atol=1e-6) for name in learned)
    assert not all(torch.allclose(fresh[name], first[name], rtol=0, atol=1e-2) for name in learned)
    load(tmp_path / "tuned")


@pytest.mark.parametrize("family", every(3, TRANSFORMERS), indirect=True)
def test_every_transformer_is_tuned_by_low_rank_maps(family: Recipe, tmp_path: Path) -> None:
    sit(changed(family, average="none", max_steps=4), tmp_path / "first")
    sit(changed(family, average="none", max_steps=6, init_from=str(tmp_path / "first"), adapter={"rank": 2}), tmp_path / "tuned")
    first, base, whole = (read_tensors(tmp_path / at) for at in (f"first/{WEIGHTS}", f"tuned/{BASE}", f"tuned/{WEIGHTS}"))
    assert all(torch.equal(x, first[name]) for name, x in base.items())
    maps = {name.removesuffix(".lora_a") + ".weight" for name in read_tensors(tmp_path / "tuned" / ADAPTER) if name.endswith(".lora_a")}
    assert maps and all(not torch.equal(whole[name], first[name]) for name in maps)
    kept = base.keys() - maps
    assert kept and all(torch.equal(whole[name], first[name]) for name in kept)
    load(tmp_path / "tuned")


def test_what_does_not_fit_is_named(classes: ClassificationRecipe, pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a run folder"):
        sit(changed(classes, init_from=str(tmp_path / "none")), tmp_path / "refused")
    weights = read_tensors(pretrained / WEIGHTS)
    with RunFolder.create(pretrained, resume=True) as folder:
        folder.write_tensors(WEIGHTS, {name.replace("blocks.0", "blocks.7"): x for name, x in weights.items()}, step=1)
    with pytest.raises(
        CheckpointError,
        match=r"model\.safetensors: expected the weights of the model in config\.json, found tensor 'encoder\.bl.*restore the file",
    ):
        sit(changed(classes, init_from=str(pretrained)), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


KINDS = {"masked": "encoder", "classes": "text-classifier", "pairs": "text-embedder", "languages": "seq2seq", "decoder": "decoder"}
KINDS |= {"vision": "vision-transformer", "convolutional": "convolutional", "recurrent-decoder": "recurrent-decoder"}


@pytest.mark.parametrize("family", KINDS, indirect=True)
def test_a_run_of_the_wrong_kind_is_named_as_such(family: Recipe, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every kind but those that share their blocks is refused by every other one, before anything is read of its data."""
    raw = family.model_dump()
    raw["model"] |= dict.fromkeys(family.model.VOCABULARIES, 9) | ({"classes": ["a"]} if "classes" in raw["model"] else {})
    raw["model"] |= {name: [0.5] * 3 for name in ("pixel_mean", "pixel_std") if name in raw["model"]}
    theirs = type(family).model_validate(raw).model
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write_config(theirs, "0" * 32)
        folder.write_tensors(WEIGHTS, build_model(theirs).state_dict(), step=0)
    encoders = {"encoder", "text-classifier", "text-embedder"}
    for ours in (request.getfixturevalue(name) for name in ("masked", "languages", "vision")):
        if ours.model.kind == theirs.kind or {ours.model.kind, theirs.kind} <= encoders:
            continue
        with pytest.raises(ConfigError) as caught:
            sit(changed(ours, init_from=str(tmp_path / "run")), tmp_path / "refused")
        (line,) = str(caught.value).splitlines()
        assert line.startswith(f"training.init_from = '{tmp_path / 'run'}': expected a run of '{ours.model.kind}'")
        assert f"found a run of '{theirs.kind}'; give another run" in line
        assert not (tmp_path / "refused").exists()


POSITIONS: list[Any] = ["rotary", "sinusoidal", "alibi", "relative", "learned", "none"]


@pytest.mark.parametrize("position", every(3, POSITIONS))
@pytest.mark.parametrize("length", [8, 32])
@pytest.mark.parametrize("family", ["decoder", "masked", "languages"], indirect=True)
def test_another_length_is_taken_by_any_position(family: Recipe, position: str, length: int, tmp_path: Path) -> None:
    if position == "none" and family.model.kind != "decoder":
        return  # an encoder has an order by its positions alone
    raw = changed(family, average="none", max_steps=1, validate_every=1).model_dump()
    raw["model"] |= {"position": {"kind": position}, "dropout": 0.0}
    first = type(family).model_validate(raw)
    sit(first, tmp_path / "first")
    with RunFolder.create(tmp_path / "tuned") as folder:
        user_overrides = UserOverrides({"model": {"max_seq_len": length}})
        parts = build_training_setup(changed(first, init_from=str(tmp_path / "first")), Path(), folder, user_overrides=user_overrides)
    assert getattr(parts.recipe.model, "max_seq_len") == length  # noqa: B009
    assert parts.notes[1] == f"changed from the model of {tmp_path / 'first'}: max_seq_len {length} (was 16)"
    ours, theirs = parts.model.state_dict(), read_tensors(tmp_path / "first" / WEIGHTS)
    assert ours.keys() == theirs.keys()
    tables = {name for name in ours if name.endswith("position.table.weight") and position == "learned"}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours.keys() - tables)
    for name in tables:
        assert len(ours[name]) == length
        expected = theirs[name][:length]
        if length == 32:  # by hand: place i of 32 is place 15 i / 31 of 16
            places = torch.arange(32, dtype=torch.float64) * 15 / 31
            low = places.floor().long().clamp(max=14)
            share = (places - low)[:, None].float()
            expected = theirs[name][low] * (1 - share) + theirs[name][low + 1] * share
        assert torch.allclose(ours[name], expected, rtol=0, atol=1e-6)
    assert ("positions interpolated from 16 to" in parts.notes[0]) is bool(tables)
    folder.write_tensors(WEIGHTS, ours, step=0)
    assert RunFolder.open(tmp_path / "tuned").load_config() == parts.recipe.model


def test_yarn_counts_from_the_length_that_the_run_was_trained_for(tmp_path: Path, masked: MaskedRecipe, request: Any) -> None:
    base = with_position(masked, {"kind": "rotary", "rope_theta": 500.0})
    assert isinstance(base, LanguageRecipe)
    yarn = UserOverrides({"model": {"position": {"rope_scaling": "yarn", "factor": 4.0}}})
    found = merge_model_fields(base, base.model, yarn).model.position  # type: ignore[union-attr]
    assert (found.kind, found.rope_theta, found.rope_scaling.factor, found.rope_scaling.original_max_seq_len) == ("rotary", 500.0, 4.0, 16)
    longer = UserOverrides({"model": {"max_seq_len": 64, "position": {"kind": "rotary", "rope_scaling": "yarn", "factor": 4.0}}})
    squeezed = merge_model_fields(base, base.model, longer)
    assert squeezed.model.position.rope_scaling.original_max_seq_len == 16  # type: ignore[union-attr]
    again = merge_model_fields(squeezed, squeezed.model, UserOverrides({"model": {"max_seq_len": 128, "position": {"factor": 8.0}}}))
    assert again.model.position.rope_scaling.original_max_seq_len == 16  # type: ignore[union-attr]
    implicit = with_position(masked, {"kind": "rotary", "rope_scaling": "yarn", "factor": 2.0})  # 16 positions in all: trained on 8
    assert (
        merge_model_fields(
            implicit, implicit.model, UserOverrides({"model": {"max_seq_len": 32}})
        ).model.position.rope_scaling.original_max_seq_len
        == 8
    )  # type: ignore[union-attr]
    assert merge_model_fields(implicit, implicit.model, NO_OVERRIDES).model == implicit.model


def with_position(masked: MaskedRecipe, position: dict[str, Any], **model: Any) -> LanguageRecipe:
    """Make a language model's recipe of the same text."""
    training = {name: masked.training.model_dump()[name] for name in TRAINING}
    fields = {"kind": "decoder", "d_model": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 16, "position": position, **model}
    return LanguageRecipe.model_validate({"data": masked.data, "tokenizer": masked.tokenizer, "training": training, "model": fields})


@pytest.mark.long
@pytest.mark.parametrize(
    "user_overrides",
    [
        {"max_seq_len": 32, "position": {"rope_scaling": "yarn", "factor": 2.0}, "attention": {"pattern": {"kind": "window", "size": 4}}},
        {"max_seq_len": 24, "dropout": 0.3},
    ],
    ids=["rotary", "learned"],
)
def test_a_changed_run_that_is_killed_ends_as_the_run_left_alone(
    masked: MaskedRecipe, tmp_path: Path, user_overrides: dict[str, Any]
) -> None:
    position = "rotary" if "position" in user_overrides else "learned"
    base = changed(with_position(masked, {"kind": position}, **({"dropout": 0.3} if position == "learned" else {})), average="none")
    sit(changed(base, max_steps=2), tmp_path / "base")
    run, asks = changed(base, init_from=str(tmp_path / "base"), max_steps=6), UserOverrides({"model": user_overrides})
    sit(run, tmp_path / "alone", user_overrides=asks)
    for step, kind in ((1, StepFinished), (5, StepFinished)):  # before the first checkpoint and behind it
        with pytest.raises(Killed):
            sit(run, tmp_path / "killed", kill_at(step, kind), user_overrides=asks)
    sit(run, tmp_path / "killed")  # what was asked for once is in the run's recipe
    same(tmp_path / "alone", tmp_path / "killed")
    assert RunFolder.open(tmp_path / "killed").load_config().max_seq_len == user_overrides["max_seq_len"]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"the run was started with model\.max_seq_len = .*, found 48; a resumed run keeps its recipe"):
        sit(run, tmp_path / "killed", user_overrides=UserOverrides({"model": {"max_seq_len": 48}}))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("decoder", {"d_model": 32}, "d_model = 16, .* found 32"),
    ("decoder", {"n_layers": 2}, "n_layers = 1, .* found 2"),
    ("decoder", {"n_heads": 4}, "n_heads = 2, .* found 4"),
    ("decoder", {"n_kv_heads": 1}, "n_kv_heads = 2, .* found 1"),
    ("decoder", {"tie_embeddings": False}, "tie_embeddings = true, .* found false"),
    ("decoder", {"norm": "layernorm"}, "norm = 'rmsnorm', .* found 'layernorm'"),
    ("decoder", {"norm": {"eps": 0.1}}, "norm.eps = .* found 0.1"),
    ("decoder", {"norm_placement": "post"}, "norm_placement = 'pre', .* found 'post'"),
    ("decoder", {"feed_forward": {"kind": "geglu"}}, "feed_forward.kind = 'swiglu', .* found 'geglu'"),
    ("decoder", {"position": "alibi"}, "position = 'rotary', .* found 'alibi'"),
    ("decoder", {"position": {"rope_theta": 500.0}}, "position.rope_theta = 10000.0, .* found 500.0"),
    ("decoder", {"attention": {"softcap": 30.0}}, "attention.softcap = 'none', .* found 30.0"),
    ("decoder", {"attention": {"sinks": True}}, "attention.sinks = false, .* found true"),
    ("languages", {"n_decoder_layers": 2}, "n_decoder_layers = 1, .* found 2"),
    ("languages", {"tie_embeddings": "decoder"}, "tie_embeddings = 'all', .* found 'decoder'"),
    ("masked", {"embedding_norm": False}, "embedding_norm = true, .* found false"),
    ("vision", {"patch_size": 2}, "patch_size = 4, .* found 2"),
    ("vision", {"pooling": "mean"}, "pooling = 'cls', .* found 'mean'"),
    ("vision", {"channels": 1}, "channels = 3, .* found 1"),
    ("convolutional", {"stem": {"channels": [8, 16]}}, r"stem.channels = \(8, 8\), .* found \(8, 16\)"),
    ("recurrent-decoder", {"cell": "gru"}, "cell = 'lstm', .* found 'gru'"),
]


@pytest.mark.parametrize(("family", "user_overrides", "told"), REFUSED, indirect=["family"])
def test_what_weights_do_not_allow_is_refused_with_the_reason(
    family: Recipe, user_overrides: dict[str, Any], told: str, tmp_path: Path
) -> None:
    begin(family, tmp_path / "run")
    raw = changed(family, init_from=str(tmp_path / "run")).model_dump()
    merged = {
        name: raw["model"][name] | value if isinstance(value, dict) and "kind" not in value else value
        for name, value in user_overrides.items()
    }
    recipe = type(family).model_validate(raw | {"model": raw["model"] | merged})
    with pytest.raises(ConfigError) as caught:
        inherit_model_shape(recipe, tmp_path / "run", UserOverrides({"model": user_overrides}, lambda path: f"--set {'.'.join(path)}"))
    line = str(caught.value)
    (name,) = user_overrides
    assert re.fullmatch(rf"--set model\.{name}[a-z_.]*: expected model\.{told}; omit this field, or train without --init-from", line), line
    assert str(tmp_path / "run") in line


def test_the_field_that_was_asked_for_is_named_and_not_what_it_breaks(masked: MaskedRecipe, tmp_path: Path) -> None:
    """16 heads fit the recipe's own width and not the run's, which leaves each a single column."""
    begin(with_position(masked, {"kind": "rotary"}), tmp_path / "run")
    wide = with_position(masked, {"kind": "rotary"}, d_model=64, n_heads=16)
    with pytest.raises(ConfigError, match=r"expected model\.n_heads = 2, .* found 16; omit this field"):
        inherit_model_shape(wide, tmp_path / "run", UserOverrides({"model": {"n_heads": 16}}))


def begin(recipe: Recipe, out: Path) -> None:
    """Leave what a run of an untrained model has in its folder, as far as its shape goes."""
    with RunFolder.create(out) as folder:
        parts = build_training_setup(changed(recipe, average="none"), Path(), folder)
        folder.write_tensors(WEIGHTS, parts.model.state_dict(), step=0)


def test_as_many_heads_of_keys_as_there_are_is_no_change(masked: MaskedRecipe, tmp_path: Path) -> None:
    recipe = with_position(masked, {"kind": "rotary"})
    begin(recipe, tmp_path / "run")
    user_overrides = UserOverrides({"model": {"n_kv_heads": 2, "d_head": 8, "position": "rotary", "vocab_size": 77}})
    raw = recipe.model_dump()
    raw["model"] |= {"n_kv_heads": 2, "d_head": 8, "vocab_size": 77}
    assert inherit_model_shape(LanguageRecipe.model_validate(raw), tmp_path / "run", user_overrides).notes == []


def test_what_a_weight_for_each_place_does_not_allow_is_refused(masked: MaskedRecipe, vision: ImageRecipe, tmp_path: Path) -> None:
    for number, (recipe, field, value) in enumerate(((masked, "max_seq_len", 32), (vision, "image_size", 16))):
        raw = recipe.model_dump()
        raw["model"]["attention"]["approximation"] = {"kind": "linformer", "rank": 4}
        first = type(recipe).model_validate(raw)
        begin(first, tmp_path / str(number))
        raw["model"][field] = value
        with pytest.raises(ConfigError, match=rf"expected model\.{field} = \d+, .* found {value}; omit this field"):
            inherit_model_shape(type(recipe).model_validate(raw), tmp_path / str(number), UserOverrides({"model": {field: value}}))


def test_a_network_for_images_keeps_the_other_s_pooling(vision: ImageRecipe, tmp_path: Path) -> None:
    """A classification token is a weight and has a position: a recipe that pools otherwise does not choose anew."""
    sit(changed(vision, max_steps=2), tmp_path / "run")
    raw = changed(vision, init_from=str(tmp_path / "run")).model_dump()
    raw["model"] |= {"pooling": "mean", "image_size": 16}
    with RunFolder.create(tmp_path / "tuned") as folder:
        parts = build_training_setup(ImageRecipe.model_validate(raw), Path(), folder)
    assert parts.recipe.model.pooling == "cls"  # type: ignore[attr-defined]
    assert parts.notes[1] == f"the model's shape is that of {tmp_path / 'run'}; not used are the recipe's pooling 'mean'"
