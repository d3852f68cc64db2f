"""The toy recipes learn their rule completely."""

from pathlib import Path
from typing import Any

import pytest

import transom as package
from transom.config.recipe import load_recipe
from transom.data.pairs.datasets import load_multilingual_data, load_translation_data
from transom.training.translation_metrics import exact_match


@pytest.mark.soak
@pytest.mark.parametrize("rule", ["copy", "reverse", "sort"])
def test_every_held_out_sequence_is_right(rule: str, tmp_path: Path) -> None:
    package.train(rule, tmp_path / "run")
    recipe, base = load_recipe(rule)
    test = load_translation_data(recipe.data, base).test
    assert test is not None
    assert exact_match(package.load(tmp_path / "run").translate(test.source), test.target) == 1.0


@pytest.mark.soak
def test_the_phrasebook_in_both_directions(tmp_path: Path) -> None:
    package.train("phrasebook-both", tmp_path / "run", steps=1000)  # half of the recipe's
    recipe, base = load_recipe("phrasebook-both")
    translator: Any = package.load(tmp_path / "run")
    for tag, splits in load_multilingual_data(recipe.data, base, recipe.data.languages).items():  # type: ignore[arg-type]
        assert splits.test is not None
        assert exact_match(translator.translate(splits.test.source, to=tag), splits.test.target) > 0.8
