"""Parts of models that ranks build: as many parameters as predicted, in generated layouts of all families."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.planning.test_shrink import FAMILIES, config_of
from transom.config.architecture import ModelConfig
from transom.config.packaged import packaged_presets, packaged_recipes
from transom.config.parallel import ParallelConfig
from transom.errors import ConfigError
from transom.planning.layout import layout_problems
from transom.planning.shrink import shrink
from transom.training import built_parts
from transom.training.built_parts import build_parts

NAMES = [*FAMILIES, "t5-base", "llama-2-70b", "translation", "digits-vit"]
SLOW = ["mixture", "mask token", "cycles"]


def fitting(name: str, config: ModelConfig, n: int, most: int) -> Iterator[ParallelConfig]:
    """Draw layouts that fit a model."""
    draw, sizes = random.Random(name), [1, 1, 2, 2, 3, 4, 6]
    for _ in range(2000):
        layout = ParallelConfig(**{axis: draw.choice(sizes) for axis in ParallelConfig.AXES if axis != "data"})
        if n and layout.n_processes <= most and not layout_problems(config, layout):
            n -= 1
            yield layout


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in NAMES])
def test_parts_are_as_large_as_predicted(name: str) -> None:
    config = config_of(name)
    for layout in fitting(name, config, 4, 12):
        small = shrink(config, layout)
        assert build_parts(small, layout).built == layout.n_processes // layout.context, layout


@pytest.mark.soak
@pytest.mark.parametrize("name", [*packaged_presets(), *packaged_recipes()])
def test_parts_of_every_preset_are_as_large_as_predicted(name: str) -> None:
    config = config_of(name)
    for layout in fitting(name, config, 4, 64):
        build_parts(shrink(config, layout), layout)


def test_of_many_ranks_those_at_the_ends_of_the_axes_are_built() -> None:
    found = build_parts(shrink(config_of("mixture"), layout := ParallelConfig(shard=12, tensor=6, pipeline=2)), layout)
    assert (found.built, found.distinct) == (8, 144)
    assert built_parts._choose_ranks(ParallelConfig(shard=100, tensor=4))[:2] == [0, 399]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda config, layout, rank: 7,
            r"rank 0 \(pipeline 0, data 0, tensor 0\): expected [\d,]+ parameters, which are predicted, found 7",
        ),
        (lambda config, layout, rank: 1 // (rank - rank), r"rank 0 .*: expected its part of the model, found ZeroDivisionError: "),
    ],
)
def test_a_rank_whose_part_is_wrong_is_named(change: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built_parts, "count_built_parameters", change)
    layout = ParallelConfig(data=2, pipeline=2, tensor=2)
    with pytest.raises(ConfigError, match=message):
        build_parts(shrink(config_of("mixture"), layout), layout)
