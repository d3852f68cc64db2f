"""The Multi30k benchmark saves the weights at each mark, scores them, and appends one record per seed."""

import json
from pathlib import Path

import pytest

from benchmarks import multi30k
from tests.cli.conftest import write_pairs
from transom.training.events import CheckpointSaved

SHORT = {
    "model": {"d_model": 8, "n_heads": 2, "d_ff": 8, "n_encoder_layers": 1, "n_decoder_layers": 1},
    "training": {"max_steps": 6, "validate_every": 3, "validate_bleu": 0, "checkpoint_every": 3},
    "tokenizer": {"vocab_size": 300},
}


def test_weights_are_saved_when_a_mark_is_passed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    marks = multi30k.SaveWeightsAtMarks(folder, start=0.0)
    for minute, text in ((19.9, "early"), (20.1, "twenty"), (41.0, "forty"), (59.0, "late")):
        (folder / "model.safetensors").write_text(text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(multi30k.time, "monotonic", lambda minute=minute: 60 * minute)
            marks(CheckpointSaved(1, folder))
    assert {mark: (saved / "model.safetensors").read_text() for mark, saved in marks.saved.items()} == {20: "twenty", 40: "forty"}


@pytest.mark.long
def test_one_record_per_seed_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, name in enumerate(("train", "val", "test_2016_flickr")):
        for written, language in zip(write_pairs(tmp_path, 60, seed), ("en", "de"), strict=True):
            written.rename(tmp_path / f"{name}.{language}")
    results = tmp_path / "results.json"
    arguments = ["--root", str(tmp_path), "--out", str(tmp_path / "runs"), "--results", str(results)]
    fields = [
        part for section, values in SHORT.items() for name, value in values.items() for part in ("--set", f"{section}.{name}={value}")
    ]
    multi30k.main([*arguments, "--seeds", "1", "2", *fields])
    records = json.loads(results.read_text())
    assert [record["seed"] for record in records] == [1, 2]
    assert all(record["steps"] == 6 and "case:lc" in record["signature"] and record["facts"]["cores"] for record in records)
    assert all({"val at 60 minutes", "test at 60 minutes"} <= record.keys() and "test at 20 minutes" not in record for record in records)
    assert "2 seeds" in capsys.readouterr().out
    ledger = (tmp_path / "runs" / "en-de-seed-2" / "ledger.jsonl").read_text().splitlines()
    read = [(entry["command"], Path(entry["file"]).name) for entry in map(json.loads, ledger)]
    files = ["test_2016_flickr.en", "test_2016_flickr.de"]
    assert read == [(command, file) for command in ("train", "multi30k") for file in files], "the data report, and the score at the end"
