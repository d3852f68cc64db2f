"""The benchmark of layouts runs, and records measured and predicted times."""

import json
from pathlib import Path
from typing import get_args

import pytest

from benchmarks import layouts, tables
from transom.config.parallel import ParallelConfig
from transom.planning.cluster import CollectiveKind


@pytest.mark.soak
def test_a_quick_run_measures_and_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "LAYOUTS", [ParallelConfig(data=2), ParallelConfig(pipeline=2)])
    layouts.main(["--quick", "--rounds", "1", "--out", str(tmp_path / "r.json")])
    result = json.loads((tmp_path / "r.json").read_text())
    kinds = [row["collective"] for row in result["collectives"]]
    assert sorted(kinds) == sorted(get_args(CollectiveKind)) and all(row["ms"] > 0 for row in result["collectives"])
    (checkpoint,) = result["checkpoints"]
    assert 0 < checkpoint["pause"] < checkpoint["until_durable"]
    assert 0 < result["overhead"]["tiny"]["low"] <= result["overhead"]["tiny"]["high"]
    one, alone, *divided = result["train"]["tiny"]
    assert one["ratio_to_one_process"] == 1 and alone["predicted_over_measured"] == ""
    assert [row["mode"] for row in divided] == ["data=2", "pipeline=2"] and all(row["predicted_over_measured"] > 0 for row in divided)
    page = tables.layout_tables(result)
    assert "#### Training, tiny" in page and "| pipeline=2 |" in page and "plain PyTorch loop with the same model and loss: tiny" in page
