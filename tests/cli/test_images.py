"""The commands on images: train on a folder or a zip file, classify files and labelled folders, and what is said of mistakes."""

import io
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pexpect
import pytest
from PIL import Image

from tests.cli.conftest import Call, Trained, sets
from tests.inspection.evaluate_explanation import holds, text_lines
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
    assert "transom classify" in card and "10% of the training images, held out" in card
    assert "Validation accuracy" in page and '<img src="data:image/png;base64,' in page and "perplexity" not in page


def test_the_calculation_of_an_image_is_printed(transom: Call, seeing: Path, photos: Path) -> None:
    outcome = transom("explain", seeing, "--input", photos / "dark" / "0.jpg", "--query", "0")
    lines = text_lines(outcome.out)
    assert outcome.code == 0 and len(lines) > 50 and all(map(holds, lines))
    assert "1. Patches and embeddings" in outcome.out and "p(dark) = " in outcome.out
    assert "expected an image for this model, found no file; give one with --input" in transom("explain", seeing, "dark").error


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


@pytest.fixture
def broken(photos: Path, tmp_path: Path) -> Path:
    """Copy the images, and damage two of them."""
    root = Path(shutil.copytree(photos, tmp_path / "broken"))
    for name in ("dark/0.jpg", "light/1.jpg"):
        (root / name).write_text("not an image")
    return root


def test_damaged_images_are_named_or_skipped_in_training(transom: Call, broken: Path, tmp_path: Path) -> None:
    command = ["train", "images", "--images", broken, *sets(*TINY), "--out", tmp_path / "run"]
    error = transom(*command).error
    assert "found 2 of 30 that cannot: dark/0.jpg, light/1.jpg (cannot identify image file); repair or remove them, or skip them" in error
    done = transom(*command, "--skip-damaged")
    assert done.code == 0 and "train: 2 of 30 images skipped, because they cannot be read: dark/0.jpg, light/1.jpg (cannot" in done.err
    assert f" of 28 images of {broken}, held out)" in done.err
    assert "skip_damaged = true" in (tmp_path / "run" / "recipe.toml").read_text()
    assert "2 of 30 images skipped" in (tmp_path / "run" / "report.html").read_text()
    refused = transom("classify", tmp_path / "run", "--labeled-data", broken).error
    assert "found 2 of 30 that cannot" in refused and "--skip-damaged" not in refused


def test_the_flag_for_damaged_files_is_that_of_images_and_of_sounds(transom: Call, broken: Path, tmp_path: Path) -> None:
    folder = f'data.train={{ images = "{broken}" }}'
    own = ("train", "images", *sets(*TINY, folder, "training.max_steps=1"), "--out", tmp_path / "run")
    assert "2 of 30 images skipped" in transom(*own, "--skip-damaged").err
    assert (
        "expected --skip-damaged with data files that it applies to, found --source"
        in transom(*("train", "translation", "--source", "a", "--target", "b", "--skip-damaged")).error
    )
    assert "found --images and --audio" in transom("train", "images", "--images", broken, "--audio", broken, "--skip-damaged").error


def test_a_damaged_file_leaves_the_others_answered(transom: Call, seeing: Path, broken: Path, tmp_path: Path) -> None:
    bad, good, other = broken / "dark" / "0.jpg", broken / "dark" / "2.jpg", broken / "light" / "3.jpg"
    files = (good, bad, other, tmp_path / "odd\x1b.jpg")
    alone = transom("classify", seeing, good, other, "--precision", "fp32")
    found = transom("classify", seeing, *files, "--precision", "fp32")
    assert (found.code, found.out) == (2, alone.out)
    assert found.err.splitlines() == [
        f"error: {bad}: expected an image, found a file that cannot be decoded (cannot identify image file); repair or remove it",
        f"error: {tmp_path}/odd\\x1b.jpg: expected an image, found no such file; check the path",
        "error: expected images that can be read, found 2 of 4 that cannot: the others are answered; repair or remove those named above",
    ]
    records = transom("classify", seeing, *files, "--json").json
    assert [record["image"] for record in records] == [str(file) for file in files]
    assert ["label" in record for record in records] == [True, False, True, False]
    assert set(records[1]) == {"image", "error", "warnings"} and records[1]["error"].startswith(f"{bad}: expected an image")
    (alone_bad,) = transom("classify", seeing, bad, "--json").json
    assert alone_bad == records[1] and transom("classify", seeing, bad).error == f"error: {alone_bad['error']}"
    both = transom("classify", seeing, bad, bad)
    assert (both.code, both.out) == (2, "") and "found 2 of 2 that cannot: none is answered" in both.err


def test_a_damaged_file_leaves_later_lines_answered(transom: Call, seeing: Path, broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [broken / "dark" / "0.jpg", broken / "dark" / "2.jpg"]
    for more, kind in (((), "\t"), (("--json",), '"label": ')):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("".join(f"{file}\n" for file in files).encode())))
        found = transom("classify", seeing, "--line-buffered", *more)
        assert found.code == 2 and kind in found.out.splitlines()[-1] and str(files[1]) in found.out.splitlines()[-1]
        assert len(found.out.splitlines()) == 1 + bool(more)
        assert not more or set(json.loads(found.out.splitlines()[0])) == {"image", "error", "warnings"}
        first, last = found.err.splitlines()
        assert first.startswith(f"error: {files[0]}: ") and "found 1 of 2 that cannot: the others are answered" in last


@pytest.mark.long
def test_a_damaged_file_at_the_prompt_ends_nothing(seeing: Path, broken: Path) -> None:
    with pexpect.spawn(sys.executable, ["-m", "transom", "classify", str(seeing)], encoding="utf-8", timeout=120) as terminal:
        terminal.setwinsize(24, 300)
        for name, answer in (("dark/0.jpg", "error: .*dark/0.jpg: expected an image"), ("dark/2.jpg", r"dark/2[.]jpg\s+(dark|light)\s")):
            terminal.expect("> ")
            terminal.sendline(str(broken / name))
            terminal.expect(answer)
        terminal.expect("> ")
        terminal.sendeof()
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0


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
    assert "expected an image, found no such file; check the path" in transom("classify", seeing, tmp_path / "none.jpg").error
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
