"""The benchmark of the ways to compute a training step."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables, training_paths
from benchmarks.families import families
from benchmarks.training_paths import COMPILED, NATIVE, PATHS, REFERENCE, measure_family

BERT = next(family for family in families(quick=True) if family.name == "bert")


@pytest.mark.compile
@pytest.mark.long
def test_paths_are_timed_and_become_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "paths.json"
    training_paths.main(["--quick", "--only", "bert", "--rounds", "1", "--out", str(out)])
    result = json.loads(out.read_text())
    row = result["bert"]["row"]
    assert row["family"] == "bert" and row["fastest"] in PATHS and all(row[path] > 0 for path in PATHS)
    assert row["first step, compiled"] > row[COMPILED] and "milliseconds per training step" in capsys.readouterr().out
    page = tables.path_tables(result | {"gpt2": {"facts": result["bert"]["facts"], "row": row | {"family": "gpt2"}}})
    assert "Ways to compute a training step" in page and "| bert |" in page and "| gpt2 |" in page and page.count("Milliseconds") == 1


def test_paths_with_other_losses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {NATIVE: 2.0, COMPILED: 2.0, REFERENCE: 2.1}

    class Workers:
        def __enter__(self) -> Any:
            return {(path, "fp32"): lambda loss=loss: (0.5, loss) for path, loss in losses.items()}

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(training_paths, "start_workers", lambda systems, threads: Workers())
    with pytest.raises(RuntimeError, match="bert: expected equal first losses"):
        measure_family(BERT, 1, 1)
    losses[REFERENCE] = 2.001
    found = measure_family(BERT, 1, 1)
    assert found[NATIVE] == found[COMPILED] == 500.0 and found["precision"] == "fp32"
