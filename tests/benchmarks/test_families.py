"""The families are compared like with like: models of one size, which learn, and answer with as many tokens."""

import math

import pytest
from torch import nn

from benchmarks.families import CLASSES, Family, build_transformers_model, families, transformers_workloads, transom_workloads
from transom.models.build import build_model

TINY = {family.name: family for family in families(quick=True)}


@pytest.mark.parametrize("family", TINY.values(), ids=list(TINY))
def test_models_are_of_one_size(family: Family) -> None:
    def count(model: nn.Module) -> int:
        return sum(p.numel() for p in model.parameters())

    c = family.config
    bias = len(CLASSES)  # on theirs only; and BERT has two types of tokens where ours has a symbol more, the mask
    more = {"bert": 2 * c.d_model + bias - c.d_model, "vit": bias}.get(family.name, 0)
    assert count(build_transformers_model(family)) - count(build_model(c)) == more


@pytest.mark.parametrize("family", TINY.values(), ids=list(TINY))
@pytest.mark.parametrize("side", [transom_workloads, lambda family: transformers_workloads(family, compiled=False)], ids=["ours", "theirs"])
def test_all_learn_and_answer_as_much(family: Family, side) -> None:  # type: ignore[no-untyped-def]
    for (what, mode), work in side(family).items():
        if what == "training":
            losses = [work() for _ in range(12)]
            assert all(map(math.isfinite, losses)) and min(losses[1:]) < losses[0], mode
        elif what == "reading":
            assert -20 < work() < 0
        else:
            assert work() == [family.new] * int(what.split()[0])
