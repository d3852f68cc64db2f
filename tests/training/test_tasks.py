"""What holds for every task: a killed run ends as the run left alone, and processes make the steps of one."""

from pathlib import Path

import pytest

from tests.training.conftest import changed, sit
from tests.training.test_run import Killed, kill_at, same
from transom.config.recipe import EmbeddingRecipe, Recipe
from transom.training.events import Saved, Started, Stepped, Validated


@pytest.fixture(params=["masked", "classes", "pairs", "languages", "vision", "convolutional"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    found: Recipe = request.getfixturevalue(request.param)
    return found


def test_a_killed_run_ends_as_the_run_left_alone(recipe: Recipe, tmp_path: Path) -> None:
    sit(recipe, tmp_path / "alone")
    for observer in (kill_at(0, Started), kill_at(2, Stepped), kill_at(4, Validated), kill_at(6, Saved), kill_at(8, Stepped)):
        with pytest.raises(Killed):
            sit(recipe, tmp_path / "killed", observer)
    sit(recipe, tmp_path / "killed")
    same(tmp_path / "alone", tmp_path / "killed")


def test_two_processes_make_the_steps_of_one(recipe: Recipe, tmp_path: Path) -> None:
    if isinstance(recipe, EmbeddingRecipe):
        return  # each process has the pairs of its own part to tell apart
    raw = changed(recipe, precision="fp32", max_steps=4).model_dump()
    raw["model"] |= {name: 0.0 for name in raw["model"] if name.endswith("dropout")}
    seen: dict[int, list[Stepped]] = {1: [], 2: []}
    for n, steps in seen.items():
        raw["training"]["processes"] = n
        sit(type(recipe).model_validate(raw), tmp_path / str(n), lambda e, steps=steps: steps.append(e) if isinstance(e, Stepped) else None)
    for one, two in zip(seen[1], seen[2], strict=True):
        assert (one.loss, one.grad_norm) == pytest.approx((two.loss, two.grad_norm), rel=2e-4)
        assert one.n_target_tokens == two.n_target_tokens > 0
