"""The verbs on sounds: train on a folder, classify files and labelled folders, and what is said of mistakes."""

import math
import wave
from pathlib import Path

import pytest

from tests.cli.conftest import Call, sets
from transom.cli.main import main

TINY = (
    "model.image_size=8",
    "model.sample_rate=4000",
    "model.seconds=0.1",
    "model.window=128",
    "model.patch_size=2",
    "model.d_model=16",
    "model.n_layers=1",
    "model.n_heads=2",
    "model.d_ff=16",
    "training.batch_sounds=16",
    "training.max_steps=60",
    "training.learning_rate=5e-3",
    "training.schedule.warmup_steps=5",
    "training.augmentation.width=1",
    "training.validate_every=20",
    "training.checkpoint_every=20",
    "training.log_every=1",
    "training.precision=fp32",
)


@pytest.fixture(scope="session")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write tones of two pitches, each of several rates and channels."""
    root = tmp_path_factory.mktemp("audio") / "sounds"
    for number in range(40):
        label, pitch = (("high", 1500), ("low", 200))[number % 2]
        (root / label).mkdir(parents=True, exist_ok=True)
        rate, channels = (8000, 11025, 16000)[number % 3], 1 + number % 4 // 2
        with wave.open(str(root / label / f"{number}.wav"), "wb") as file:
            file.setparams((channels, 2, rate, 0, "NONE", ""))
            for i in range(rate // 8):
                value = round(20000 * math.sin(2 * math.pi * (pitch + 5 * number) * i / rate))
                file.writeframesraw(value.to_bytes(2, "little", signed=True) * channels)
    return root


@pytest.fixture(scope="session")
def hearing(sounds: Path) -> Path:
    """Train a tiny classifier of sounds once."""
    out = sounds.parent / "run"
    assert main(["train", "audio-classes", "--audio", str(sounds), *sets(*TINY), "--out", str(out), "--json"]) == 0
    return out


def test_classify_files_and_labelled_folders(transom: Call, hearing: Path, sounds: Path) -> None:
    high, low = sounds / "high" / "0.wav", sounds / "low" / "1.wav"
    lines = [line.split("\t") for line in transom("classify", hearing, high, low, "--precision", "fp32").out.splitlines()]
    assert [line[:2] for line in lines] == [[str(high), "high"], [str(low), "low"]]
    (record,) = transom("classify", hearing, high, "--json").json
    assert set(record) == {"sound", "label", "p", "probabilities"} and record["label"] == "high"
    scored = transom("classify", hearing, "--labelled", sounds, "--json").json
    assert scored["accuracy"] == 100.0 and scored["n"] == 40


def test_pages_show_what_the_run_is(hearing: Path) -> None:
    card, page = (hearing / "README.md").read_text(), (hearing / "report.html").read_text()
    assert "a Transformer on spectrograms for classes of sounds" in card and "sounds a second" in card
    assert "10 % of the training sounds, split off by hash" in card and "transom classify" in card
    assert "Validation accuracy" in page and "perplexity" not in page


def test_mistakes_are_one_line(transom: Call, hearing: Path, sounds: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes((sounds / "high" / "0.wav").read_bytes()[:500])
    assert "a truncated file" in transom("classify", hearing, tmp_path / "bad.wav").error
    (tmp_path / "note.wav").write_text("do re mi")
    assert "expected a WAV file, found another format" in transom("classify", hearing, tmp_path / "note.wav").error
    assert "CLASS/NAME.wav" in transom("train", "audio-classes", "--audio", tmp_path / "none", "--out", tmp_path / "run").error
    assert "--too-long" in transom("classify", hearing, sounds / "low" / "1.wav", "--too-long", "windows").error
