"""The digits benchmark scores each fold once, and reads no test fold with ``--validation``."""

import json
from pathlib import Path

import pytest

from benchmarks import digits

SHORT = {"max_steps": 4, "validate_every": 2, "checkpoint_every": 2, "batch_size": 32}


@pytest.mark.long
def test_folds_are_scored_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    read: list[int] = []
    monkeypatch.setattr(digits, "load_digits", lambda config, *sizes: read.append(config.fold) or load(config, *sizes))
    fields = [part for name, value in SHORT.items() for part in ("--set", f"training.{name}={value}")]
    arguments = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "digits.json"), "--folds", "2", "5", *fields]
    digits.main(arguments)
    records = json.loads((tmp_path / "digits.json").read_text())
    assert [record["fold"] for record in records] == read == [2, 5] and all(record["n"] in (359, 360) for record in records)
    assert all(0 <= record["accuracy"] <= 100 and record["steps"] == 4 and record["facts"]["cores"] for record in records)
    assert f"accuracy {records[0]['accuracy']:.2f}, {records[1]['accuracy']:.2f}; mean" in capsys.readouterr().out
    digits.main([*arguments, "--validation"])
    assert read == [2, 5] and "validation accuracy" in capsys.readouterr().out


load = digits.load_digits
