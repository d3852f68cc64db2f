"""Every kind of network of every task can be described before anything of it is trained."""

from typing import Any, ClassVar, Literal

import pytest

from transom.config.architecture import Architecture
from transom.config.brick import members
from transom.config.data import DATA_LATER
from transom.config.model import Model
from transom.config.recipe import Recipe, load_recipe
from transom.config.registry import tasks
from transom.inspection import describe

RECIPES = {
    "translation": "translation",
    "language": "text-bpe",
    "instruction": "instructions",
    "masked": "text-masked",
    "classification": "text-classes",
    "embedding": "text-pairs",
    "tagging": "tags",
    "image-classification": "images",
    "audio-classification": "audio-classes",
}
COMBINATIONS = [(task, kind) for task, recipe in tasks().items() for kind in members(recipe.model_fields["model"])]


def of(task: str, kind: type[Architecture]) -> Recipe:
    recipe = load_recipe(RECIPES[task], context=DATA_LATER)[0]
    assert recipe.task == task
    fields: dict[str, Any] = {"stem": "convolutional"} if kind.__name__ == "ConvolutionalNetwork" else {}
    return recipe.model_copy(update={"model": kind.model_validate(fields)})


def test_all_kinds_are_listed() -> None:
    assert RECIPES.keys() == tasks().keys()
    assert {kind for _, kind in COMBINATIONS} == set(members(Model))


@pytest.mark.parametrize(("task", "kind"), COMBINATIONS, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_it_is_described(task: str, kind: type[Architecture]) -> None:
    recipe = of(task, kind)
    assert describe.family(recipe).split()[0] in ("a", "an")
    assert recipe.model.described_layers and describe.layers_in_short(recipe) and all(describe.sizes(recipe))
    assert describe.use(recipe, "runs/a")[0].startswith(f"transom {recipe.VERB} runs/a ")
    assert describe.origin(recipe) == "from scratch"


def test_kinds_are_told_apart() -> None:
    assert len({describe.family(of(task, kind)) for task, kind in COMBINATIONS}) == len(members(Model))


def test_a_kind_without_a_family_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match=r"New: expected FAMILY"):

        class New(Architecture):
            kind: Literal["new"] = "new"

    class Shared(Architecture):
        """What no recipe can name needs none."""

    class Named(Shared):
        FAMILY: ClassVar[str] = "a new network"
        kind: Literal["new"] = "new"

    assert Named().FAMILY == "a new network"
