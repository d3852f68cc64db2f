"""Recipes fitted to few data: what changes, what the user keeps, and what stays when there are enough data."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.config.data import DATA_OPTIONAL
from transom.config.model_overrides import UserOverrides, load_training_recipe
from transom.config.model_size import SIZE_FIELDS, resize_model
from transom.config.recipe import Recipe, load_recipe
from transom.models.build import build_model
from transom.planning import data_fit
from transom.planning.data_fit import FITTED_FIELDS, DataAmount, describe_fit, fit_to_data, keep_fitted_fields
from transom.planning.parameters import count_parameters
from transom.planning.precision import Precision, ThreadPlan

OWN_DATA = ("text-classes", "images", "text-bpe", "text-masked", "text-pairs", "translation", "instructions")
NOTHING = UserOverrides()


def packaged(name: str, *overrides: str) -> Recipe:
    return load_recipe(name, overrides, DATA_OPTIONAL)[0]


def amount(name: str, n_samples: int) -> DataAmount:
    return DataAmount(n_samples, None if name == "images" else 60 * n_samples)


@pytest.mark.parametrize("name", OWN_DATA)
def test_few_data_make_everything_smaller_and_many_nothing(name: str) -> None:
    recipe = packaged(name)
    small, whole = (fit_to_data(recipe, amount(name, n), NOTHING) for n in (300, 10_000_000))
    assert whole == recipe and describe_fit(recipe, whole) == []
    size = "batch_size" if name == "images" else "batch_tokens"
    before: Any = recipe.training
    after: Any = small.training
    assert getattr(after, size) < getattr(before, size) and after.max_steps < before.max_steps
    assert after.schedule.warmup_steps <= after.max_steps // 10 and after.validate_every <= after.max_steps // 20
    shape = [field for field in SIZE_FIELDS if field in ("d_model", "d_ff") or field.endswith("_layers")]
    layers = [field for field in shape if hasattr(recipe.model, field)]
    assert all(getattr(small.model, field) < getattr(recipe.model, field) for field in layers)
    (note,) = describe_fit(recipe, small)
    assert f"training.{size} = {getattr(after, size):,} ({getattr(before, size):,} in the recipe)" in note and "--set changes any" in note


def test_the_numbers_of_a_thousand_sentences() -> None:
    recipe: Any = fit_to_data(packaged("translation"), DataAmount(1000, 96_000), NOTHING)
    assert recipe.tokenizer.vocab_size == 1500  # 96,000 / 64
    assert recipe.training.batch_tokens == 1024  # the power of two below 32,000 tokens / 20
    assert recipe.training.max_steps == 1900  # 60 epochs of 31.25 batches, to two figures
    assert recipe.training.schedule.warmup_steps == 190 and recipe.training.validate_every == 76
    assert (recipe.model.d_model, recipe.model.n_heads, recipe.model.d_ff, recipe.model.d_head) == (128, 2, 512, 64)


@pytest.mark.parametrize("name", OWN_DATA)
def test_fields_that_the_user_sets_stay(name: str) -> None:
    recipe = packaged(name)
    tables = {"training": {"max_steps": 1, "validate_every": 1}, "model": {"d_model": 1}}
    fitted = fit_to_data(recipe, amount(name, 300), UserOverrides(tables))
    assert fitted.training.max_steps == recipe.training.max_steps and fitted.training.validate_every == recipe.training.validate_every
    assert fitted.model == recipe.model, "a shape of which the user sets a part stays whole"
    assert fitted.training.checkpoint_every < recipe.training.checkpoint_every


def test_fine_tuning_keeps_vocabulary_and_shape_and_other_recipes_everything() -> None:
    tuned: Any = packaged("text-classes", 'training.init_from="runs/base"')
    fitted: Any = fit_to_data(tuned, DataAmount(300, 20_000), NOTHING)
    assert fitted.model == tuned.model and fitted.tokenizer == tuned.tokenizer and fitted.training.batch_tokens == 512
    assert (other := packaged("sst2")) is fit_to_data(other, DataAmount(300, 20_000), NOTHING)


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for one thread with bf16 instructions, whatever this machine has."""
    monkeypatch.setattr(data_fit, "choose_threads", lambda: ThreadPlan(1, ""))
    monkeypatch.setattr(data_fit, "choose_precision", lambda requested, device: Precision("bf16", ""))
    monkeypatch.setattr(data_fit.torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize(
    ("name", "minutes", "d_model", "batch"),
    [
        ("translation", 1, 128, 512),
        ("translation", 20, 128, 2048),
        ("translation", 60, 128, 4096),
        ("translation", 120, 256, 4096),
        ("images", 5, 96, 64),
        ("images", 20, 96, 64),
        ("text-classes", 1, 96, 2048),
        ("text-classes", 5, 96, 4096),
    ],
)
def test_a_time_limit_leaves_enough_updates(name: str, minutes: float, d_model: int, batch: int) -> None:
    many = DataAmount(1_000_000, None if name == "images" else 10**8)
    fitted: Any = fit_to_data(packaged(name, f"training.max_minutes={minutes}"), many, NOTHING)
    assert fitted.model.d_model == d_model
    assert (fitted.training.batch_size if name == "images" else fitted.training.batch_tokens) == batch


@pytest.mark.usefixtures("one_core")
def test_the_estimated_updates_are_those_of_six_flops_per_weight_and_token() -> None:
    """Kaplan et al. (2020): training takes about 6 FLOPs per weight and token, embeddings excluded; attention scores add a few percent."""
    recipe: Any = packaged("text-bpe", "training.max_minutes=10")
    weights = count_parameters(recipe.model.model_copy(update={"vocab_size": 8000})).total
    expected = 600 * data_fit.FLOPS_PER_THREAD["bf16"] / (6 * weights * 8192)
    found = data_fit._updates_in_time(recipe, DataAmount(1, 10**7), recipe.model, 8192)
    assert 0.9 * expected < found < expected
    assert data_fit._updates_in_time(packaged("text-bpe"), DataAmount(1, 10**7), recipe.model, 8192) == math.inf


@pytest.mark.usefixtures("one_core")
def test_a_shape_of_the_user_s_gets_smaller_batches_but_stays() -> None:
    recipe = packaged("translation", "training.max_minutes=5")
    fitted: Any = fit_to_data(recipe, DataAmount(10**6, 10**8), UserOverrides({"model": {"d_model": 256}}))
    assert fitted.model == recipe.model and fitted.training.batch_tokens == 512


def test_an_explicit_base_size_is_a_choice_of_the_user() -> None:
    files = ['data.train={files=["x"]}']
    recipe, _, own = load_training_recipe("text-bpe", [*resize_model("text-bpe", files, "base").overrides, *files])
    assert fit_to_data(recipe, DataAmount(10, 600), own).model == recipe.model


@given(name=st.sampled_from(OWN_DATA), n_samples=st.integers(1, 10**7), minutes=st.none() | st.floats(0.1, 100))
def test_any_amount_gives_a_model_that_can_be_built_and_nothing_larger(name: str, n_samples: int, minutes: float | None) -> None:
    import torch

    recipe = packaged(name, *([] if minutes is None else [f"training.max_minutes={minutes}"]))
    fitted = fit_to_data(recipe, amount(name, n_samples), NOTHING)
    for table, fields in FITTED_FIELDS.items():
        for field in {*fields} - {"word_dropout", "label_smoothing", "schedule", "stem"}:
            old, new = (getattr(getattr(each, table, None), field, None) for each in (recipe, fitted))
            assert old == new or 1 <= new < old
    with torch.device("meta"):
        build_model(fitted.model.model_copy(update=dict.fromkeys(fitted.model.VOCABULARIES, 100) | _classes(fitted)))


def _classes(recipe: Recipe) -> dict[str, Any]:
    found = {"classes": ("a", "b")} if "classes" in type(recipe.model).model_fields else {}
    return found | ({"pixel_mean": (0.5,) * 3, "pixel_std": (0.5,) * 3} if hasattr(recipe.model, "pixel_mean") else {})


def test_a_resumed_run_keeps_what_was_fitted() -> None:
    recipe = packaged("text-classes")
    fitted = fit_to_data(recipe, DataAmount(300, 20_000), NOTHING)
    assert keep_fitted_fields(recipe, fitted, NOTHING) == fitted
    again = keep_fitted_fields(packaged("text-classes", "training.max_steps=77"), fitted, UserOverrides({"training": {"max_steps": 77}}))
    assert again.training.max_steps == 77 and again.training.batch_tokens == fitted.training.batch_tokens
