"""The CIFAR-10 benchmark holds out test images and scores each seed on them."""

import json
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.cifar10 import main, split_held_out

N = 60


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(N):
            for name, color in (("dark", (20 + number, 0, 0)), ("light", (255, 255 - number, 255))):
                picture = BytesIO()
                Image.new("RGB", (8, 8), color).save(picture, "png")
                archive.writestr(f"{name}/{number}.png", picture.getvalue())
    return path


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_training_and_test_images_are_disjoint(images: Path, tmp_path: Path) -> None:
    train, test = map(names, split_held_out(images, tmp_path / "out"))
    assert train | test == names(images) and not train & test
    assert 2 * N / 30 < len(test) < 2 * N / 4


@pytest.mark.long
def test_one_record_per_seed_is_appended(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["model.image_size=8", "model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.d_ff=16", "training.max_steps=30"]
    small += ["training.batch_size=32", "training.schedule.warmup_steps=5", "training.validate_every=15", "training.checkpoint_every=15"]
    small += ["training.average=none", "training.augmentation={}"]
    fields = [word for field in small for word in ("--set", field)]
    results = tmp_path / "results.json"
    for seed in ("1", "2"):
        main(["--images", str(images), "--seeds", seed, "--out", str(tmp_path / "out"), "--results", str(results), *fields])
    records = json.loads(results.read_text())
    assert [record["seed"] for record in records] == [1, 2]
    assert records[0]["n"] == len(names(tmp_path / "out" / "test.zip")) and records[0]["accuracy"] > 90
    assert records[0]["parameters"] > 1000 and "std 0.00" in capsys.readouterr().out
