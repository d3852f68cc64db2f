"""The commands on sounds: train on a folder, classify files and labelled folders, and what is said of mistakes."""

import math
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Call, sets
from tests.waves import wav
from transom.cli.main import main

TINY = (
    "model.image_size=16",
    "model.seconds=0.128",
    "model.n_fft=128",
    "model.sample_rate=8000",
    "model.patch_size=4",
    "model.d_model=16",
    "model.n_layers=1",
    "model.n_heads=2",
    "model.d_ff=16",
    "training.batch_size=8",
    "training.max_steps=6",
    "training.validate_every=3",
    "training.checkpoint_every=3",
    "training.log_every=1",
    "training.precision=fp32",
)


@pytest.fixture(scope="session")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write low and high tones, at two rates."""
    root = tmp_path_factory.mktemp("sounds") / "tones"
    for number in range(24):
        rate, name = (8000, 11025)[number % 3 % 2], ("low", "high")[number % 2]
        (root / name).mkdir(parents=True, exist_ok=True)
        hertz = (300 if name == "low" else 2000) + 5 * number
        (root / name / f"{number}.wav").write_bytes(wav((math.sin(2 * math.pi * hertz * n / rate) for n in range(2000)), rate=rate))
    return root


@pytest.fixture(scope="session")
def hearing(tones: Path) -> Path:
    """Train a tiny classifier of sounds once."""
    out = tones.parent / "run"
    assert main(["train", "audio-classes", "--audio", str(tones), *sets(*TINY), "--out", str(out), "--json"]) == 0
    return out


def test_pages_show_what_the_run_is(hearing: Path) -> None:
    card, page = (hearing / "README.md").read_text(), (hearing / "report.html").read_text()
    assert "an Audio Spectrogram Transformer for audio classification" in card and "10% of the training sounds, held out" in card
    assert "transom classify" in card and "sounds per second" in card and "spectrograms of 16 mel bands" in card
    assert "Validation accuracy" in page and "perplexity" not in page


def test_classify_files_lists_and_labelled_folders(transom: Call, hearing: Path, tones: Path, tmp_path: Path) -> None:
    low, high = tones / "low" / "0.wav", tones / "high" / "1.wav"
    lines = [line.split("\t") for line in transom("classify", hearing, low, high, "--precision", "fp32").out.splitlines()]
    assert [line[0] for line in lines] == [str(low), str(high)] and all(line[1] in ("low", "high") for line in lines)
    (tmp_path / "names").write_text(f"{low}\n{high}\n")
    records = transom("classify", hearing, "--input", tmp_path / "names", "--precision", "fp32", "--json").json
    assert [record["label"] for record in records] == [line[1] for line in lines]
    assert set(records[0]) == {"sound", "label", "p", "probabilities", "warnings"}
    scored = transom("classify", hearing, "--labeled-data", tones, "--precision", "fp32")
    assert scored.code == 0 and "% of 24 sounds" in scored.out


def test_damaged_sounds_are_skipped_and_leave_the_others_answered(transom: Call, hearing: Path, tones: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(tones, tmp_path / "tones"))
    bad, good = root / "low" / "0.wav", root / "low" / "2.wav"
    bad.write_text("not a sound")
    command = ["train", "audio-classes", "--audio", root, *sets(*TINY, "training.max_steps=3"), "--out", tmp_path / "run"]
    assert "found 1 of 24 that cannot: low/0.wav (no RIFF/WAVE header); repair or remove it, or skip it with" in transom(*command).error
    done = transom(*command, "--skip-damaged")
    assert done.code == 0 and "train: 1 of 24 sounds skipped, because they cannot be read: low/0.wav" in done.err
    found = transom("classify", hearing, bad, good)
    assert found.code == 2 and found.out.startswith(f"{good}\t") and found.out.count("\n") == 1
    assert found.err.splitlines()[0].startswith(f"error: {bad}: expected a WAV file, found no RIFF/WAVE header")
    assert [set(record) & {"error", "label"} for record in transom("classify", hearing, bad, good, "--json").json] == [{"error"}, {"label"}]


def test_training_goes_on_where_it_stopped(transom: Call, hearing: Path, tones: Path, tmp_path: Path) -> None:
    command = ["train", "audio-classes", "--audio", tones, *sets(*TINY), "--out", tmp_path / "run"]
    assert transom(*command, "--set", "training.max_steps=3").code == 0
    assert transom(*command, "--resume").code == 0
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (hearing / "model.safetensors").read_bytes()


def test_mistakes_are_told_in_one_line(transom: Call, hearing: Path, tones: Path, tmp_path: Path) -> None:
    assert "expected a folder of sounds as CLASS/NAME.wav, found nothing there" in transom("train", "audio-classes", "--audio", "no").error
    assert "--valid-audio requires --audio" in transom("train", "audio-classes", "--valid-audio", tones).error
    (tmp_path / "bad.wav").write_text("not a sound")
    assert "bad.wav: expected a WAV file, found no RIFF" in transom("classify", hearing, tmp_path / "bad.wav").error
    assert "expected a file, found a folder" in transom("classify", hearing, tones / "low").error
    assert "found a file that cannot be read: No such file" in transom("classify", hearing, tmp_path / "none.wav").error
    assert "found one for transom classify" in transom("translate", hearing, "x").error
    assert f"classify; use transom classify {hearing} --labeled-data PATH" in transom("evaluate", hearing).error
