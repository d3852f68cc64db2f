"""Rotary scalings in a recipe: own fields, the earlier spelling, lists over the blocks, and errors."""

from pathlib import Path
from typing import Any

import pytest

from tests.size import ROOT
from transom.config.components import RotaryConfig
from transom.config.error_messages import validate
from transom.config.migration import migrate_tables
from transom.config.model import DecoderConfig
from transom.config.presets import load_preset
from transom.config.recipe import dump_recipe, load_recipe
from transom.config.rope_scaling import (
    CycleScalingConfig,
    DynamicScalingConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    YarnScalingConfig,
    with_original_length,
)
from transom.errors import ConfigError
from transom.files.limits import MAX_LAYERS

LONGROPE: dict[str, Any] = {"kind": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_seq_len": 8}


def rotary(**fields: Any) -> RotaryConfig:
    return RotaryConfig.model_validate({"kind": "rotary", **fields})


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"rope_scaling": "none", "factor": 1.0, "original_max_seq_len": None}, {}),
        ({"rope_scaling": "none", "factor": 1, "original_max_seq_len": "none"}, {"rope_scaling": "none"}),
        ({"factor": 1.0}, {}),
        ({"rope_scaling": "linear", "factor": 4.0, "original_max_seq_len": None}, {"rope_scaling": {"kind": "linear", "factor": 4.0}}),
        ({"rope_scaling": "ntk", "factor": 4.0}, {"rope_scaling": {"kind": "ntk", "factor": 4.0}}),
        ({"rope_scaling": "yarn", "factor": 4.0}, {"rope_scaling": {"kind": "yarn", "factor": 4.0}}),
        (
            {"rope_scaling": "yarn", "factor": 4.0, "original_max_seq_len": 8},
            {"rope_scaling": {"kind": "yarn", "factor": 4.0, "original_max_seq_len": 8}},
        ),
        (
            {"rope_scaling": {"kind": "yarn", "factor": 2.0, "beta_fast": 16.0}, "factor": 8.0},
            {"rope_scaling": {"kind": "yarn", "factor": 8.0, "beta_fast": 16.0}},
        ),
    ],
)
def test_the_fields_of_earlier_versions_are_accepted(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert rotary(**before) == rotary(**now)
    assert rotary(rope_theta=500.0, partial_rotary_factor=0.5, **before) == rotary(rope_theta=500.0, partial_rotary_factor=0.5, **now)


def test_a_golden_run_has_the_scaling_of_its_recipe() -> None:
    """The recipe is of format 2, whose names ``migrate_tables`` replaces."""
    recipe = load_recipe(ROOT / "tests/checkpoints/golden/families/rotary/recipe.toml")[0]
    expected = YarnScalingConfig(factor=2.0, original_max_seq_len=6)
    assert recipe.model.position.rope_scaling == expected  # type: ignore[union-attr]
    raw = {"model": {"position": {"kind": "rotary", "scaling": "yarn", "factor": 2.0, "trained_seq_len": 6}}}
    assert RotaryConfig.model_validate(migrate_tables(raw)["model"]["position"]).rope_scaling == expected


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ({"factor": 4.0}, "position: factor: expected in a table rope_scaling with a kind, found in position; move them there"),
        ({"rope_scaling": "dynamic", "factor": 4.0}, "factor: expected in a table rope_scaling"),
        ({"rope_scaling": "yarn"}, "missing field position.rope_scaling.factor (ratio of the new to the trained length)"),
        ({"rope_scaling": {"kind": "linear", "factor": 0.5}}, "position.rope_scaling.factor: expected a number greater than or equal to 1"),
        ({"rope_scaling": {"kind": "linear", "factor": 2.0, "beta_fast": 3.0}}, "requires position.rope_scaling.kind = 'yarn'"),
        ({"rope_scaling": "dynmic"}, "position.rope_scaling: expected one of 'none', 'linear', 'ntk', 'dynamic', 'yarn', 'llama3',"),
        ({"rope_scaling": {"kind": "yarn", "factor": 2.0, "beta_slow": 40.0}}, "expected beta_fast >= beta_slow, found 32 and 40"),
        ({"rope_scaling": {"kind": "yarn", "factor": 2.0, "mscale": 1.0}}, "expected both of mscale and mscale_all_dim, found one"),
        (
            {"rope_scaling": {"kind": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 1.0}},
            "expected attention_factor or mscale and mscale_all_dim, found both",
        ),
        (
            {"rope_scaling": {"kind": "llama3", "factor": 2.0, "high_freq_factor": 1.0}},
            "expected high_freq_factor above low_freq_factor, found 1 and 1",
        ),
        ({"rope_scaling": LONGROPE | {"long_factor": [1.0]}}, "one number per rotated pair, found 4 and 1 numbers"),
        ({"rope_scaling": LONGROPE | {"short_factor": [], "long_factor": []}}, "one number per rotated pair, found 0 and 0 numbers"),
        ({"rope_scaling": LONGROPE, "partial_rotary_factor": 0.5}, "one number per rotated pair, 2, found 4; change the lists"),
        ({"rope_scaling": ["none", LONGROPE], "partial_rotary_factor": 0.5}, "one number per rotated pair, 2, found 4; change the lists"),
        ({"rope_scaling": []}, "position.rope_scaling: expected at least one item, found an empty list"),
        ({"rope_theta": []}, "position.rope_theta: expected at least one item, found an empty list"),
        ({"rope_theta": [1.0]}, "position.rope_theta: expected a number"),
        ({"rope_theta": "500"}, "position.rope_theta: expected a number or a list, found '500'"),
    ],
)
def test_a_mistake_is_explained(position: dict[str, Any], message: str) -> None:
    fields = {"d_model": 16, "n_heads": 2, "position": {"kind": "rotary"} | position}
    with pytest.raises(ConfigError) as error:
        validate(DecoderConfig, fields, ".".join)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_bases_and_scalings_repeat_over_the_blocks() -> None:
    none, linear = NoScalingConfig(), LinearScalingConfig(factor=8.0)
    assert rotary().rotations == ((10000.0, none),)
    assert rotary(rope_theta=[50.0, 60.0]).rotations == ((50.0, none), (60.0, none))
    both = rotary(rope_theta=[50.0, 60.0], rope_scaling=["none", "none", {"kind": "linear", "factor": 8.0}])
    assert both.rotations == ((50.0, none), (60.0, none), (50.0, linear), (60.0, none), (50.0, none), (60.0, linear))
    assert both.rope_scaling == CycleScalingConfig(kind="cycle", scalings=(none, none, linear))
    assert RotaryConfig.model_validate(both.model_dump(mode="json")) == both
    many = rotary(rope_theta=[50.0 + i for i in range(499)], rope_scaling=["none"] * 500)
    assert len(many.rotations) == MAX_LAYERS, "not 499 * 500"


def test_the_position_table_counts_each_base_and_scaling_once() -> None:
    def table(**position: Any) -> int:
        fields = {"d_model": 16, "n_heads": 2, "max_seq_len": 32, "position": {"kind": "rotary", **position}}
        return DecoderConfig.model_validate(fields).position_table

    assert table() == 32 * 8 and table(partial_rotary_factor=0.5) == 32 * 4
    assert table(rope_theta=[50.0, 50.0, 60.0]) == 2 * 32 * 8
    assert table(rope_theta=[50.0, 60.0], rope_scaling=["none", {"kind": "linear", "factor": 2.0}, "none"]) == 4 * 32 * 8


def test_a_recipe_keeps_its_scalings(tmp_path: Path) -> None:
    position = "model.position={kind='rotary', rope_theta=[1e4, 1e6], rope_scaling=['none', {kind='yarn', factor=4.0, truncate=false}]}"
    recipe = load_recipe("text-bpe", ["data.train.files=x", position])[0]
    assert recipe.model.position.rope_theta == (1e4, 1e6)  # type: ignore[union-attr]
    (file := tmp_path / "scaled.toml").write_text(dump_recipe(recipe))
    assert load_recipe(file)[0] == recipe
    step_by_step = [
        "model.position.rope_scaling=yarn",
        "model.position.rope_scaling.factor=4.0",
        "model.position.rope_scaling.beta_slow=2.0",
    ]
    found = load_recipe("text-bpe", ["data.train.files=x", *step_by_step])[0].model.position.rope_scaling  # type: ignore[union-attr]
    assert found == YarnScalingConfig(factor=4.0, beta_slow=2.0)


def test_the_length_before_the_extension() -> None:
    assert Llama3ScalingConfig(factor=8.0).trained_length(4096) == 512
    assert DynamicScalingConfig(factor=3.0, original_max_seq_len=100).trained_length(4096) == 100
    assert LinearScalingConfig(factor=8.0).trained_length(4096) == 4096, "trained at the new length"
    cycle = rotary(rope_scaling=["none", {"kind": "dynamic", "factor": 4.0}, LONGROPE]).rope_scaling
    expected = ["none", {"kind": "dynamic", "factor": 4.0, "original_max_seq_len": 64}, LONGROPE]
    assert with_original_length(cycle, 64) == rotary(rope_scaling=expected).rope_scaling
    assert with_original_length(with_original_length(cycle, 64), 32) == with_original_length(cycle, 64)


def test_llama_3_1_has_its_published_scaling() -> None:
    config = load_preset("llama-3.1-8b").config()
    assert isinstance(config, DecoderConfig) and isinstance(config.position, RotaryConfig)
    expected = Llama3ScalingConfig(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=8192)
    assert config.position.rotations == ((500_000.0, expected),)
