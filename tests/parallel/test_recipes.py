"""One packaged recipe per family, unchanged but for its layout: the same losses on one process and on four."""

from pathlib import Path
from typing import Any

import pytest

import transom
from tests.parallel.test_layouts import by_name
from tests.tiers import tiers
from transom.training.events import Event, StepFinished

RECIPES = ["phrasebook", "python-stdlib", "languages"]
LAYOUTS: list[dict[str, int]] = [{"data": 4}, {"shard": 2, "tensor": 2}, {"pipeline": 2, "context": 2}]
IMAGES: list[dict[str, int]] = [{"data": 4}, {"data": 2, "context": 2}, {"pipeline": 2, "context": 2}]
CASES = [(recipe, layout) for recipe in RECIPES for layout in LAYOUTS] + [("digits-vit", layout) for layout in IMAGES]
"""Muon, the optimizer of ``digits-vit``, needs whole matrices."""


def losses(recipe: str, out: Path, layout: dict[str, int]) -> list[float]:
    """Train for two steps in float32; return the losses."""
    steps: list[StepFinished] = []

    def keep(event: Event) -> None:
        if isinstance(event, StepFinished):
            steps.append(event)

    fields: dict[str, Any] = {"training.precision": "fp32", "training.validate_every": 1000, "parallel": layout}
    transom.train(recipe, out, set=fields, steps=2, progress=False, callbacks=[keep])
    return [event.loss for event in steps]


@pytest.mark.parametrize("case", tiers(CASES, long=[CASES[2]]), ids=lambda case: f"{case[0]}-{by_name(case[1])}")
def test_a_packaged_recipe_takes_the_same_steps_in_any_layout(case: tuple[str, dict[str, int]], tmp_path: Path) -> None:
    recipe, layout = case
    alone, together = (losses(recipe, tmp_path / name, each) for name, each in (("alone", {}), ("together", layout)))
    assert len(alone) == 2 and together == pytest.approx(alone, rel=1e-4)
