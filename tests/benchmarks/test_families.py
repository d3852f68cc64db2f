"""Both systems of the families benchmark have models of equal size, train, and generate equally many tokens."""

import math

import pytest
from torch import nn

from benchmarks.families import CLASSES, Family, build_transformers_model, families, transformers_workloads, transom_workloads
from transom.models.build import build_model

TINY = {family.name: family for family in families(quick=True)}


@pytest.mark.parametrize("family", TINY.values(), ids=list(TINY))
def test_models_have_equal_size(family: Family) -> None:
    def count(model: nn.Module) -> int:
        return sum(p.numel() for p in model.parameters())

    c = family.config
    bias = len(CLASSES)  # transformers only; transom's BERT has one more token, the mask
    difference = {"bert": bias - c.d_model, "vit": bias}.get(family.name, 0)
    assert count(build_transformers_model(family)) - count(build_model(c)) == difference


@pytest.mark.parametrize("family", TINY.values(), ids=list(TINY))
@pytest.mark.parametrize("side", [transom_workloads, lambda family: transformers_workloads(family, compiled=False)], ids=["ours", "theirs"])
def test_both_train_and_generate_as_many_tokens(family: Family, side) -> None:  # type: ignore[no-untyped-def]
    for (name, mode), workload in side(family).items():
        if name == "training":
            losses = [workload() for _ in range(12)]
            assert all(map(math.isfinite, losses)) and min(losses[1:]) < losses[0], mode
        elif name == "encoding":
            assert -20 < workload() < 0
        else:
            assert workload() == [family.new] * int(name.removeprefix("generation, batch "))
