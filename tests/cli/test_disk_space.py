"""The disk space that is asked for before training is an upper bound of what a run writes."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from tests.cli.conftest import Call, sets

TINY = ("model.d_model=32", "model.d_ff=32", "model.n_heads=2", "model.n_encoder_layers=1", "model.n_decoder_layers=1")
SHORT = ("data.generate.n_train=300", "data.generate.n_valid=20", "training.max_steps=12", "training.validate_every=6")
Usage = namedtuple("Usage", "total used free")


@pytest.mark.long
@pytest.mark.parametrize("average", ["none", "ema", "checkpoints"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_keeps_within_what_was_asked_for(
    transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: str, optimizer: str
) -> None:
    asked: list[int] = []

    def measured(path: Path) -> Usage:
        asked.append(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
        return Usage(0, 0, 10**15)

    monkeypatch.setattr(shutil, "disk_usage", measured)
    overrides = sets(*TINY, *SHORT, "training.checkpoint_every=3", f"training.average={average}", f"training.optimizer={optimizer}")
    out = tmp_path / "run"
    assert transom("train", "phrasebook", "--out", out, *overrides, "--json").code == 0
    (present,) = asked
    assert present < 100, "asked once, when the folder has the lock file only"
    written = sum(file.stat().st_size for file in out.rglob("*") if file.is_file() and file.suffix == ".safetensors")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, written // 2))
    error = transom("train", "phrasebook", "--out", tmp_path / "other", *overrides).error
    assert "GB of free disk space for the checkpoints of the run, found 0.00 GB; free some space" in error
    assert not (tmp_path / "other").exists(), "nothing was written"
