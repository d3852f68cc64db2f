"""The test set is read once per run, after training, and not at all with ``--validation``."""

import json
import math
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import transom
from benchmarks import shakespeare, sst2
from transom.checkpoints.run_files import METRICS, WEIGHTS
from transom.config.data import LabeledFilesConfig
from transom.data.labeled.labeled_texts import read_labeled_texts

SHORT = ["max_steps=4", "validate_every=2", "checkpoint_every=2", "schedule.warmup_steps=1"]
SMALL = ["model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.d_ff=16", *(f"training.{field}" for field in SHORT)]


def fields(*more: str) -> list[str]:
    return [word for field in (*SMALL, *more) for word in ("--set", field)]


@pytest.mark.long
def test_shakespeare_is_scored_on_its_last_tenth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(1)
    text = "".join(draw.choices("to be or not\n", k=6000))
    (tmp_path / "input.txt").write_text(text)
    read: list[str] = []
    monkeypatch.setattr(shakespeare, "read_documents", lambda files, root: read.append(files.files) or load(files, root))
    arguments = ["--root", str(tmp_path), "--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results.json"), "--seeds", "1", "3"]
    arguments += fields("model.max_seq_len=32", "training.batch_tokens=256")
    shakespeare.main([*arguments, "--validation"])
    assert not read and not (tmp_path / "results.json").exists() and "validation loss" in capsys.readouterr().out
    shakespeare.main(arguments)
    records = json.loads((tmp_path / "results.json").read_text())
    assert read == ["input.txt"] * 2 and [record["seed"] for record in records] == [1, 3]
    assert all(record["n"] == 600 + 1 and 0 < record["loss"] < math.log(20) for record in records), (
        "the end-of-sequence token is scored too"
    )
    assert f"loss {records[0]['loss']:.4f}, {records[1]['loss']:.4f}; mean" in capsys.readouterr().out
    assert (tmp_path / "runs" / "shakespeare-char-seed-3" / METRICS).exists()
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob(f"*/{WEIGHTS}")}
    shakespeare.main([*arguments, "--resume"])
    assert read == ["input.txt"] * 2 and json.loads((tmp_path / "results.json").read_text()) == records, "neither read nor recorded again"
    assert written == {path: path.stat().st_mtime_ns for path in written} and len(written) == 2, "nor trained again"
    assert f"loss {records[0]['loss']:.4f}, {records[1]['loss']:.4f}; mean" in capsys.readouterr().out


@pytest.mark.long
def test_a_stopped_run_is_not_scored_and_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, n in (("train", 200), ("dev", 50)):
        write(tmp_path / f"{name}.tsv", n, 1)
    arguments = ["--root", str(tmp_path), "--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results.json"), "--seeds", "2"]
    arguments += fields("tokenizer.vocab_size=300", "training.batch_tokens=512")
    train, asked = transom.train, list[bool]()

    def stopped(*given: Any, **more: Any) -> Any:
        asked.append(more["resume"])
        return replace(train(*given, **more), reason="stopped", stopped_by=signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(transom, "train", stopped)
        sst2.main(arguments)
    assert end.value.code == 130 and asked == [False] and not (tmp_path / "results.json").exists()
    sst2.main([*arguments, "--resume"])
    assert [record["seed"] for record in json.loads((tmp_path / "results.json").read_text()) if "seed" in record] == [2]


load = shakespeare.read_documents


def write(path: Path, n: int, seed: int) -> None:
    draw = random.Random(seed)
    rows = []
    for _ in range(n):
        good = draw.random() < 0.5
        words = [draw.choice(["the", "a", "film", "plot"]) for _ in range(5)] + [
            draw.choice(["fine", "lovely"] if good else ["dull", "bad"])
        ]
        draw.shuffle(words)
        rows.append(f"{' '.join(words)}\t{int(good)}")
    path.write_text("\n".join(rows) + "\n")


def test_sst2_records_its_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "train.tsv", 200, 1)
    write(tmp_path / "dev.tsv", 50, 2)
    arguments = ["--root", str(tmp_path), "--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results.json"), "--seeds", "2"]
    sst2.main([*arguments, *fields("tokenizer.vocab_size=300", "training.batch_tokens=512")])
    ours, baseline = json.loads((tmp_path / "results.json").read_text())
    assert ours["seed"] == 2 and 0 <= ours["accuracy"] <= 100 and ours["facts"] == baseline["facts"]
    assert baseline["accuracy"] == 100.0 and "naive-Bayes SVM: accuracy 100.0" in capsys.readouterr().out


def test_the_baseline_decides_by_informative_words(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", 100, 3)
    train = read_labeled_texts(LabeledFilesConfig(file="train.tsv"), tmp_path)
    (tmp_path / "other.tsv").write_text("the plot was lovely\t1\nthe plot was lovely\t0\nbad\t0\nfine\t1\n")
    assert sst2.naive_bayes_svm(train, read_labeled_texts(LabeledFilesConfig(file="other.tsv"), tmp_path)) == 75.0
