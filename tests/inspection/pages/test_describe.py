"""Every kind of network of every task can be described before anything of it is trained."""

from typing import Any, ClassVar, Literal

import pytest

from transom.config.architecture import ModelConfig
from transom.config.data import DATA_OPTIONAL
from transom.config.model import AnyModel
from transom.config.recipe import Recipe, load_recipe
from transom.config.schema import allowed_types
from transom.config.task_registry import recipes_by_task
from transom.inspection.pages import describe

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
COMBINATIONS = [(task, kind) for task, recipe in recipes_by_task().items() for kind in allowed_types(recipe.model_fields["model"])]


def of(task: str, kind: type[ModelConfig]) -> Recipe:
    recipe = load_recipe(RECIPES[task], context=DATA_OPTIONAL)[0]
    assert recipe.task == task
    fields: dict[str, Any] = {"stem": "convolutional"} if kind.__name__ == "ConvolutionalNetwork" else {}
    return recipe.model_copy(update={"model": kind.model_validate(fields)})


def test_all_kinds_are_listed() -> None:
    assert RECIPES.keys() == recipes_by_task().keys()
    assert {kind for _, kind in COMBINATIONS} == set(allowed_types(AnyModel))


@pytest.mark.parametrize(("task", "kind"), COMBINATIONS, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_it_is_described(task: str, kind: type[ModelConfig]) -> None:
    recipe = of(task, kind)
    assert describe.describe_family(recipe).split()[0] in ("a", "an")
    assert recipe.model.described_layers and describe.describe_layers(recipe) and all(describe.describe_architecture(recipe))
    assert recipe.model.stacks or describe.describe_layers(recipe) == recipe.model.described_layers
    assert describe.usage_example(recipe, "runs/a")[0].startswith(f"transom {recipe.COMMAND} runs/a ")
    assert describe.describe_initialization(recipe) == "from scratch"


def test_kinds_are_told_apart() -> None:
    assert len({describe.describe_family(of(task, kind)) for task, kind in COMBINATIONS}) == len(allowed_types(AnyModel))


def test_a_kind_without_a_family_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match=r"New: expected the class attribute FAMILY"):

        class New(ModelConfig):
            kind: Literal["new"] = "new"

    class Shared(ModelConfig):
        """What no recipe can name needs none."""

    class Named(Shared):
        FAMILY: ClassVar[str] = "a new network"
        kind: Literal["new"] = "new"

    assert Named().FAMILY == "a new network"
