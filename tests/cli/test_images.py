"""The commands on images: train on a folder or a zip file, classify files and labelled folders, and what is said of mistakes."""

import json
import os
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.conftest import Call, Trained, sets
from transom.cli.main import main

TINY = (
    "model.image_size=8",
    "model.patch_size=1",
    "model.stem.channels=[4]",
    "model.d_model=16",
    "model.n_layers=1",
    "model.n_heads=2",
    "model.d_ff=16",
    "training.batch_size=16",
    "training.max_steps=6",
    "training.validate_every=3",
    "training.checkpoint_every=3",
    "training.log_every=1",
    "training.precision=fp32",
)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write images of two shades."""
    root = tmp_path_factory.mktemp("images") / "photos"
    for number in range(30):
        name = ("dark", "light")[number % 2]
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 12), (number % 2 * 150 + number, 40, 40)).save(root / name / f"{number}.jpg", quality=95)
    return root


@pytest.fixture(scope="session")
def seeing(photos: Path) -> Path:
    """Train a tiny classifier of images once."""
    out = photos.parent / "run"
    assert main(["train", "images", "--images", str(photos), *sets(*TINY), "--out", str(out), "--json"]) == 0
    return out


def test_pages_show_what_the_run_is(seeing: Path) -> None:
    card, page = (seeing / "README.md").read_text(), (seeing / "report.html").read_text()
    assert "img-src data:" in page and 'src="data:image/png;base64,' in page, "a browser shows the images"
    assert "An image-classification model" in page and "Loss per image" in page
    assert "An image-classification model: a Vision Transformer for classes of images" in card
    assert "RGB images of 8 x 8 pixels, 4 x 4 patches, after stages of 4 channels" in card and "images per second" in card
    assert "transom classify" in card and "10% of the training images, split off by hash" in card
    assert "Validation accuracy" in page and '<img src="data:image/png;base64,' in page and "perplexity" not in page


def test_classify_files_lists_and_labelled_folders(transom: Call, seeing: Path, photos: Path, tmp_path: Path) -> None:
    dark, light = photos / "dark" / "0.jpg", photos / "light" / "1.jpg"
    lines = [line.split("\t") for line in transom("classify", seeing, dark, light, "--precision", "fp32").out.splitlines()]
    assert [line[0] for line in lines] == [str(dark), str(light)] and all(line[1] in ("dark", "light") for line in lines)
    (tmp_path / "names").write_text(f"{dark}\n{light}\n")
    records = transom("classify", seeing, "--input", tmp_path / "names", "--precision", "fp32", "--json").json
    assert [record["label"] for record in records] == [line[1] for line in lines]
    assert set(records[0]) == {"image", "label", "p", "probabilities", "warnings"} and set(records[0]["probabilities"]) == {"dark", "light"}
    scored = transom("classify", seeing, "--labeled-data", photos, "--precision", "fp32")
    assert scored.code == 0 and "% of 30 images" in scored.out
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for file in sorted(photos.rglob("*.jpg")):
            archive.write(file, file.relative_to(photos.parent).as_posix())
    zipped = transom("classify", seeing, "--labeled-data", tmp_path / "photos.zip", "--precision", "fp32", "--json").json
    assert f"accuracy {zipped['accuracy']:.2f}%" in scored.out and zipped["n"] == 30
    ledger = [json.loads(line) for line in (seeing / "ledger.jsonl").read_text().splitlines()]
    assert [(entry["command"], Path(entry["file"]).name) for entry in ledger[-2:]] == [("classify", "photos"), ("classify", "photos.zip")]


def test_train_on_a_zip_with_validation_images_of_its_own(transom: Call, photos: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for file in photos.rglob("*.jpg"):
            archive.write(file, file.relative_to(photos).as_posix())
    command = ["train", "images", "--images", tmp_path / "photos.zip", "--valid-images", photos, *sets(*TINY), "--out", tmp_path / "run"]
    done = transom(*command)
    assert done.code == 0 and "valid: 30 of 30 images also in training, so its metrics are too optimistic" in done.err
    assert "images/s" in done.err and "accuracy" in done.err


def test_classifiers_of_different_image_sizes_are_compared(transom: Call, seeing: Path, photos: Path, tmp_path: Path) -> None:
    larger = ("model.image_size=12", "training.max_steps=3")
    assert transom("train", "images", "--images", photos, *sets(*TINY, *larger), "--out", tmp_path / "larger", "--json").code == 0
    runs = (seeing, tmp_path / "larger")
    value = transom("compare", *runs, "--labeled-data", photos, "--json").json
    accuracies = [transom("classify", run, "--labeled-data", photos, "--json").json["accuracy"] for run in runs]
    assert [value["a"], value["b"]] == pytest.approx(accuracies) and value["n"] == 30
    assert value["n_only_b_right"] - value["n_only_a_right"] == round(0.3 * value["difference"])
    for option in (("--too-long", "refuse"), ("--text-field", "a"), ("--header",)):
        assert f"expected {option[0]} only with a classifier of texts" in transom("compare", *runs, "--labeled-data", photos, *option).error


def test_mistakes_are_told_in_one_line(transom: Call, seeing: Path, photos: Path, trained: Trained, tmp_path: Path) -> None:
    assert "expected a folder of images or a .zip of one, found nothing there" in transom("train", "images", "--images", "nowhere").error
    assert "--valid-images requires --images" in transom("train", "images", "--valid-images", photos).error
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad.jpg").write_text("not an image")
    assert "bad.jpg: expected an image, found" in transom("classify", seeing, tmp_path / "bad.jpg").error
    assert "bad: expected a file, found a folder" in transom("classify", seeing, tmp_path / "bad").error
    assert "found a file that cannot be read: No such file" in transom("classify", seeing, tmp_path / "none.jpg").error
    assert "expected labeled images, found nothing" in transom("classify", seeing, "--labeled-data", tmp_path / "none").error
    os.mkfifo(tmp_path / "pipe")
    assert "expected labeled images, found a device or a pipe" in transom("classify", seeing, "--labeled-data", tmp_path / "pipe").error
    assert (
        "expected a run that transom classify can use, found one for transom translate"
        in transom("classify", trained.folder, "x.jpg").error
    )
    assert "found one for transom classify" in transom("translate", seeing, "x").error
    assert f"classify; use transom classify {seeing} --labeled-data PATH" in transom("evaluate", seeing, "--pairs", "x.csv").error
    refused = transom("classify", seeing, photos / "dark" / "0.jpg", "--too-long", "window").error
    assert (
        "expected --too-long only with a classifier of texts, found --too-long with a classifier of images; leave --too-long out" in refused
    )
    assert "expected a run of an encoder" in transom("embed", seeing, "x").error
    override = transom("train", "digits-vit", "--set", "model.patch_size=3").error
    assert "expected image_size to be a multiple of 6 pixels, the side of a patch, found 8" in override
    assert "did you mean model.image_size?" in transom("train", "digits-vit", "--set", "model.image_sise=8").error
