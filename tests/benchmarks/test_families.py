"""Both systems of the families benchmark have models of equal size, train, and generate equally many tokens."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from benchmarks.families import CLASSES, Family, build_transformers_model, families, transformers_workloads, transom_workloads
from benchmarks.measure import read_earlier
from benchmarks.tables import family_tables
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


def a_run(date: str, speed: int) -> dict[str, Any]:
    facts = {"date": date, "processor": "Some: avx2", "threads": 2, "load_before": 0.5, "versions": {"torch": "2"}, "command": "python"}
    return {"facts": facts, "tables": {"training": [{"system": "transom", "tokens_per_second": speed}]}}


def test_families_of_earlier_runs_stay_unless_the_processor_is_another(tmp_path: Path) -> None:
    path = tmp_path / "families.json"
    assert read_earlier(None, {"processor": "Some: avx2"}) == read_earlier(path, {"processor": "Some: avx2"}) == {}
    path.write_text(json.dumps(earlier := {"gpt2": a_run("today", 7)}))
    assert read_earlier(path, {"processor": "Some: avx2"}) == earlier
    assert read_earlier(path, {"processor": "Some: avx512f"}) == {}


def test_tables_follow_the_facts_of_their_run() -> None:
    text = family_tables({"gpt2": a_run("Monday", 1), "llama": a_run("Tuesday", 2), "vit": a_run("Monday", 3)})
    places = [text.index(part) for part in ("Monday", "gpt2, training", "vit, training", "Tuesday", "llama, training")]
    assert places == sorted(places) and text.count("Monday") == 1
