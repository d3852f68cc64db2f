"""Every task: an interrupted run ends identically, and data-parallel training equals training in one process."""

from functools import partial
from pathlib import Path

import pytest

from tests.tiers import every, tiers
from tests.training.conftest import changed, sit
from tests.training.test_train_loop import die_and_end_the_same
from transom.config.recipe import Recipe
from transom.training.events import StepFinished

RECIPES = ("masked", "classes", "pairs", "tags", "languages", "vision", "convolutional")


@pytest.fixture(params=every(7, RECIPES))
def recipe(request: pytest.FixtureRequest) -> Recipe:
    found: Recipe = request.getfixturevalue(request.param)
    return found


def test_a_killed_run_ends_as_the_run_left_alone(recipe: Recipe, tmp_path: Path) -> None:
    die_and_end_the_same(partial(sit, recipe), tmp_path)


@pytest.mark.parametrize("name", tiers(RECIPES, long=["masked", "pairs", "languages", "vision"]))
def test_two_processes_make_the_steps_of_one(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    recipe: Recipe = request.getfixturevalue(name)
    raw = changed(recipe, precision="fp32", max_steps=4).model_dump()
    raw["model"] |= {name: 0.0 for name in raw["model"] if name.endswith("dropout")}
    seen: dict[int, list[StepFinished]] = {1: [], 2: []}
    for n, steps in seen.items():
        raw["parallel"] = {"data": n}
        sit(
            type(recipe).model_validate(raw),
            tmp_path / str(n),
            lambda e, steps=steps: steps.append(e) if isinstance(e, StepFinished) else None,
        )
    for one, two in zip(seen[1], seen[2], strict=True):
        assert (one.loss, one.grad_norm) == pytest.approx((two.loss, two.grad_norm), rel=2e-4)
        assert one.n_target_tokens == two.n_target_tokens > 0
