"""``--size``: sizes that fit every choice of components, in every packaged recipe, built on the meta device."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.models.combinations import ATTENTION, BRICKS, FEED_FORWARD, each
from transom.config.architecture import EncoderDecoderConfig, ModelConfig
from transom.config.arguments import as_overrides
from transom.config.model_size import resize_model
from transom.config.packaged import packaged_presets, packaged_recipes
from transom.config.recipe import Recipe, load_recipe
from transom.errors import ConfigError
from transom.models.build import build_model
from transom.planning.parameters import count_parameters

OWN_DATA = {
    "translation": "data.train={source='a', target='b'}",
    "text-bpe": "data.train={files=['a']}",
    "text-masked": "data.train={files=['a']}",
    "text-classes": "data.train={file='a'}",
    "text-pairs": "data.train={source='a', target='b'}",
    "instructions": "data.train={file='a'}",
    "images": "data.train={images='a'}",
    "audio-classes": "data.train={audio='a'}",
    "tags": "data.train={file='a'}",
}
RECIPES = sorted(packaged_recipes())
COMPONENTS = {name: values for name, values in BRICKS.items() if name not in ("d_ff", "d_head", "d_value", "n_kv_heads", "dropout")}


def given_data(recipe: str) -> list[str]:
    """Name data files for the recipes that have none of their own."""
    for data in ([], ["data.train={source='a', target='b'}"], *([own] for own in OWN_DATA.values())):
        try:
            load_recipe(recipe, data)
        except ConfigError:
            continue
        return data
    raise AssertionError(recipe)


def on_meta(recipe: Recipe) -> int:
    """Build the model without memory for its weights; return its number of parameters."""
    model: ModelConfig = recipe.model
    sizes: dict[str, Any] = dict.fromkeys(model.VOCABULARIES, 50)
    if "classes" in model.FROM_DATA:
        sizes["classes"] = ("a", "b", "c")
    config = model.model_copy(update=sizes)
    with torch.device("meta"):
        built = build_model(config)
    n = sum(p.numel() for p in built.parameters())
    assert n == count_parameters(config).total
    return n


def fits(model: Any) -> None:
    """Check the constraints of the dimensions."""
    if hasattr(model, "n_heads"):
        assert model.n_heads % model.n_kv_heads == 0
        if "d_head" not in model.model_fields_set:
            assert model.d_model % model.n_heads == 0
        if model.position.kind == "rotary":
            assert model.d_head % 2 == 0 and model.rotary_dim >= 2


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_has_three_sizes(recipe: str) -> None:
    data = given_data(recipe)
    counts = []
    for size in ("small", "base", "large"):
        sized = resize_model(recipe, data, size)
        assert (size == "base") == (not sized.note), "the base size is that of the recipe, so its run id does not change"
        loaded = load_recipe(recipe, [*sized.overrides, *data])[0]
        fits(loaded.model)
        counts.append(on_meta(loaded))
        assert not sized.note or f"size {size}: d_model {loaded.model.d_model} (base " in sized.note
    assert 1.5 * counts[0] < counts[1] < counts[2] / 1.5


components = st.fixed_dictionaries(
    {}, optional=each(COMPONENTS) | {"attention": st.fixed_dictionaries({}, optional=each(ATTENTION)), "feed_forward": FEED_FORWARD}
)
SHAPES: list[dict[str, Any]] = [
    {},
    {},
    {"n_kv_heads": 1},
    {"n_kv_heads": 2},
    {"d_head": 6},
    {"n_heads": 1},
    {"d_model": 120},
    {"d_model": 12, "n_heads": 6, "n_kv_heads": 3},
    {"d_value": 5},
]


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.sampled_from(RECIPES), st.sampled_from(["small", "large"]), components, st.sampled_from(SHAPES))
def test_a_size_fits_every_choice_of_components(recipe: str, size: str, chosen: dict[str, Any], shape: dict[str, Any]) -> None:
    overrides = [*given_data(recipe), *as_overrides({"model": chosen | shape})]
    try:
        base = load_recipe(recipe, overrides)[0]
    except ConfigError:  # components that the recipe's model does not have, or that exclude each other
        assume(False)
        return
    sized = load_recipe(recipe, [*resize_model(recipe, overrides, size).overrides, *overrides])[0]
    assert all(getattr(sized.model, name) == value for name, value in shape.items()), "what is set explicitly stays"
    if "d_head" not in shape and base.model.d_model % 2 == 0 and (not hasattr(base.model, "d_head") or base.model.d_head % 2 == 0):
        fits(sized.model)
    if size == "small":
        assert on_meta(sized) <= on_meta(base)
    else:
        assert on_meta(sized) >= on_meta(base)


@pytest.mark.parametrize("preset", sorted(packaged_presets()))
def test_presets_have_sizes_too(preset: str) -> None:
    recipe = {"seq2seq": "translation", "decoder": "text-bpe", "encoder": "text-masked", "vision-transformer": "images"}
    for name in recipe.values():
        overrides = [*given_data(name), f"model.preset={preset}"]
        try:
            base = load_recipe(name, overrides)[0].model
        except ConfigError:
            continue
        small = load_recipe(name, [*resize_model(name, overrides, "small").overrides, *overrides])[0].model
        assert small.d_model == pytest.approx(base.d_model / 2, rel=0.01), "25 heads have no half"
        return


def test_fields_that_are_set_win_and_an_error_names_them() -> None:
    sized = resize_model("copy", ["model.d_model=48", "model.n_layers_typo=3"][:1], "large")
    model = load_recipe("copy", [*sized.overrides, "model.d_model=48"])[0].model
    assert isinstance(model, EncoderDecoderConfig) and (model.d_model, model.d_ff, model.n_encoder_layers) == (48, 256, 3)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"--set model\.d_model=50.*50 is not a multiple of n_heads 4"):
        resize_model("copy", ["model.d_model=50"], "small")


def test_what_has_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="--size: expected small, base or large, found 'smal'; did you mean small"):
        resize_model("copy", [], "smal")
    with pytest.raises(ConfigError, match="expected --size with a new model, found it with --init-from"):
        resize_model("copy", ["training.init_from='runs/a'"], "small")
