"""Components are compared by runs that share seeds, data and order."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call, sets
from transom.config.components import RmsNormConfig
from transom.config.model_overrides import load_training_recipe
from transom.config.moe import MoeConfig
from transom.config.recipe import load_recipe
from transom.config.training import CosineScheduleConfig
from transom.tasks.compare_components import Variant, build_variants, find_field
from transom.tasks.short_runs import short_run_overrides

TINY = sets(
    *("model.d_model=16", "model.n_heads=2", "model.d_ff=16", "model.n_encoder_layers=1", "model.n_decoder_layers=1"),
    *("data.generate.n_train=100", "data.generate.n_valid=10", "data.generate.n_test=10"),
)


@pytest.mark.long
def test_runs_differ_in_the_component_alone(transom: Call, tmp_path: Path) -> None:
    command = ["compare-components", "copy", "--with", "model.norm=rmsnorm", "--with", "model.norm=layernorm", *TINY]
    command += ["--steps", "10", "--seeds", "2", "--out", str(tmp_path / "out")]
    found = transom(*command, "--json").json
    base, other, same = found["components"]
    assert [each["name"] for each in found["components"]] == ["copy", "model.norm=rmsnorm", "model.norm=layernorm"]
    assert same["loss"] == base["loss"] and same["curve"] == base["curve"], "equal seeds, data and order give equal runs"
    assert base["difference"] == {"mean": 0.0, "std": 0.0, "seeds": [0.0, 0.0]}
    assert other["loss"]["seeds"] != base["loss"]["seeds"] and base["loss"]["seeds"][0] != base["loss"]["seeds"][1]
    assert other["difference"]["mean"] == pytest.approx(other["loss"]["mean"] - base["loss"]["mean"])
    assert base["parameters"] > other["parameters"] and base["speed"]["mean"] > 0 and len(base["curve"]) == 10
    picture = (tmp_path / "out" / "loss.svg").read_text()
    assert "norm=rmsnorm" in picture and picture.startswith("<svg") and "<style>" in picture
    assert "holds a run already" in transom(*command, "--json").error
    told = transom(*command, "--resume")
    assert told.code == 0 and told.out.splitlines()[0].split() == [
        *("component", "parameters", "loss", "std", "difference", "std", "target", "tokens/s", "std")
    ]
    assert f"{other['loss']['mean']:.4f}" in told.out, "what is done is not trained again"
    recipes = [load_recipe(tmp_path / "out" / name / "seed-1" / "recipe.toml")[0] for name in ("copy", "model.norm-rmsnorm")]
    assert recipes[0].data == recipes[1].data and recipes[0].training == recipes[1].training
    assert json.loads((tmp_path / "out" / "copy" / "seed-1" / "config.json").read_text()).keys() == {"format_version", "run", "model"}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("rmsnorm", "--with rmsnorm: expected FIELD=VALUE or FILE.py:CLASS, found neither"),
        ("data.root=x", "--with data.root=x: expected a field of model or training"),
        ("training.seed=2", "--with training.seed=2: expected a field of model or training, found one that all runs share"),
        ("model.nrom=rmsnorm", "unknown field model.nrom; did you mean model.norm?"),
        ("model.norm=rmsnrom", "model.norm: expected one of 'layernorm', "),
        ("nowhere.py:Mine", "plugin nowhere.py: expected a .py file, found no such file"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(wanted: str, message: str, transom: Call, tmp_path: Path) -> None:
    assert message in transom("compare-components", "copy", "--with", wanted, "--out", tmp_path / "out").error
    assert not (tmp_path / "out").exists()


def test_the_same_component_twice_is_refused(transom: Call) -> None:
    twice = ["--with", "model.norm=rmsnorm"] * 2
    assert "expected each component once, found it twice" in transom("compare-components", "copy", *twice).error


def test_variants_have_names_for_people_folders_and_legends() -> None:
    base, norm = build_variants("copy", [], ["model.norm=rmsnorm"])
    assert (base.name, base.overrides, norm.folder, norm.label) == ("copy", (), "model.norm-rmsnorm", "norm=rmsnorm")
    assert Variant("here/my_ff.py:Mine").label == "Mine" and Variant("here/my_ff.py:Mine").folder == "here-my_ff.py-Mine"


def test_a_component_goes_into_the_outermost_field_that_takes_it() -> None:
    recipe = load_recipe("copy")[0]
    fields = {schema: find_field(recipe, schema) for schema in (RmsNormConfig, MoeConfig, CosineScheduleConfig)}
    assert fields == {RmsNormConfig: "model.norm", MoeConfig: "model.feed_forward", CosineScheduleConfig: "training.schedule"}


def test_a_short_run_keeps_the_schedules_share_of_warmup() -> None:
    recipe = load_training_recipe("copy")[0]
    short = load_training_recipe("copy", short_run_overrides(recipe, recipe.training.max_steps // 10))[0].training
    whole = recipe.training
    assert short.schedule.warmup_steps == max(whole.schedule.warmup_steps // 10, 1)
    longer = load_training_recipe("copy", short_run_overrides(recipe, whole.max_steps * 10))[0].training
    assert longer.schedule.warmup_steps == whole.schedule.warmup_steps and longer.max_steps == 10 * whole.max_steps
