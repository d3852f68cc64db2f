"""Order, sharding and mixing of images do not depend on the position or the number of processes; no file is in two splits."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from transom.config.data import DigitsConfig
from transom.config.training import ImageAugmentationConfig
from transom.config.vision import ConvolutionalNetworkConfig, ConvStemConfig, VisionTransformerConfig
from transom.data.batch import ImageBatch
from transom.data.images.digits import load_digits
from transom.data.images.image_files import Images
from transom.data.images.loader import ImageLoader, image_batches, image_fingerprint, load_images, pixel_statistics
from transom.data.reports.images import report_images
from transom.data.sampler import MicroBatching
from transom.data.split import Splits, holdout
from transom.errors import DataError
from transom.tasks.image_classification.schema import ImageDataConfig

AUGMENTED = {"shift": 1, "horizontal_flip": True, "randaugment": 1, "mixup": 0.4, "cutmix": 1.0}


def some(n: int = 11, duplicates: int = 0) -> Images:
    """Return images whose last ``duplicates`` have the files of the first ones, with another class if the number of the rest is odd."""
    torch.manual_seed(1)
    pixels = torch.randint(0, 256, (n, 3, 4, 4), dtype=torch.uint8)

    def load(samples: Sequence[int]) -> Tensor:
        return pixels[list(samples)]

    digests = [f"{i % (n - duplicates):032x}" for i in range(n)]
    labels = ["ab"[i % 2] for i in range(n)]
    return Images([f"{label}/{i}.png" for i, label in enumerate(labels)], labels, digests, "some", 0, load)


def loader(images: Images, **options: Any) -> ImageLoader:
    augmentation = ImageAugmentationConfig.model_validate(options.pop("augmentation", {}))
    return ImageLoader(images, ["a", "b"], **{"batch_size": 4, "seed": 1, "augmentation": augmentation} | options)


def joined(micro_batches: Sequence[ImageBatch]) -> dict[int, tuple[int, Tensor, int, float]]:
    """Return each sample's label, pixels and mixing partner."""
    found = {}
    for batch in micro_batches:
        for i, sample in enumerate(batch.sample_ids):
            other = (-1, 1.0) if batch.mixup is None else (int(batch.mixup.labels[i]), float(batch.mixup.lam[i]))
            found[sample] = (int(batch.labels[i]), batch.pixels[i], *other)
    return found


def alike(one: dict[int, Any], two: dict[int, Any]) -> bool:
    return one.keys() == two.keys() and all(
        (a[0], a[2]) == (b[0], b[2]) and a[3] == pytest.approx(b[3]) and torch.allclose(a[1], b[1], atol=1e-6)
        for a, b in ((one[key], two[key]) for key in one)
    )


def test_an_epoch_has_each_image_once_and_the_next_another_order() -> None:
    batches = list(islice(loader(some()).batches_from(0), 6))
    samples = [
        [sample for _, micro_batches in part for batch in micro_batches for sample in batch.sample_ids]
        for part in (batches[:3], batches[3:])
    ]
    assert sorted(samples[0]) == sorted(samples[1]) == list(range(11)) and samples[0] != samples[1]
    assert [end for end, _ in batches] == [4, 8, 11, 15, 19, 22]
    (batch,) = batches[0][1]
    assert torch.equal(batch.pixels, some().load(batch.sample_ids) / 255) and batch.mixup is None and batch.n_target_tokens == 4


def test_batches_are_the_same_from_any_position() -> None:
    whole = list(islice(loader(some(), augmentation=AUGMENTED).batches_from(0), 7))
    for k in range(1, 6):
        again = list(islice(loader(some(), augmentation=AUGMENTED).batches_from(whole[k - 1][0]), 7 - k))
        for (end, micro_batches), (end_again, slices_again) in zip(whole[k:], again, strict=True):
            assert end == end_again and alike(joined(micro_batches), joined(slices_again))


@pytest.mark.parametrize(("world_size", "grad_accum_steps"), [(1, 3), (2, 1), (3, 2)])
def test_shards_and_slices_together_are_the_whole_batch(world_size: int, grad_accum_steps: int) -> None:
    whole = list(islice(loader(some(), augmentation=AUGMENTED).batches_from(0), 4))
    parts = [
        list(
            islice(loader(some(), augmentation=AUGMENTED, micro_batching=MicroBatching(grad_accum_steps, k, world_size)).batches_from(0), 4)
        )
        for k in range(world_size)
    ]
    for number, (end, micro_batches) in enumerate(whole):
        assert all(part[number][0] == end for part in parts)
        together: dict[int, Any] = {}
        for part in parts:
            together |= joined(part[number][1])
        assert alike(together, joined(micro_batches))


def test_an_image_is_mixed_with_another_of_its_batch() -> None:
    images = some()
    for _, (batch,) in islice(loader(images, augmentation={"mixup": 1.0}).batches_from(0), 3):
        assert batch.mixup is not None
        plain = dict(zip(batch.sample_ids, images.load(batch.sample_ids) / 255, strict=True))
        for i, sample in enumerate(batch.sample_ids):
            partner = batch.sample_ids[i - 1]
            assert torch.allclose(batch.pixels[i], torch.lerp(plain[partner], plain[sample], batch.mixup.lam[i]), atol=1e-6)
            assert int(batch.mixup.labels[i]) == "ab".index(images.labels[partner])


def test_the_same_file_is_on_one_side_of_the_split() -> None:
    images = some(40, duplicates=10)
    train, valid = holdout(images, images.digests, 0.3, "images")
    assert len(train) + len(valid) == 40 and not set(train.digests) & set(valid.digests) and 0 < len(valid) < 30
    assert "held out" in valid.name
    one = Images(["a/1.png"] * 2, ["a", "a"], ["0"] * 2, "one", 0, images.load)
    with pytest.raises(DataError, match="expected at least two different images"):
        holdout(one, one.digests, 0.1, "images")


def test_statistics_are_those_of_all_pixels() -> None:
    images = some(30)
    pixels = images.load(range(30)).double() / 255
    mean, std = pixel_statistics(images)
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist()) and std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist())
    flat = Images(["a/1"] * 3, ["a"] * 3, ["0"] * 3, "flat", 0, lambda samples: torch.full((len(samples), 1, 2, 2), 51, dtype=torch.uint8))
    assert pixel_statistics(flat) == ((pytest.approx(0.2),), (1.0,))


def test_reading_once_is_in_order() -> None:
    batches = list(image_batches(some(), [0] * 11, 4))
    assert [batch.sample_ids for batch in batches] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10)]


def test_the_report_names_what_to_look_at() -> None:
    images = some(40, duplicates=3)
    report = report_images(Splits(images, images.select([0, 1], "two"), None), ("a", "b", "c"), VisionTransformerConfig())
    text = "\n".join(report.lines())
    assert "train: 40 images (some)" in text and "  classes: a " in text
    assert "train: 3 images with another class than an earlier equal file: a/0.png and b/37.png" in text
    assert "valid: 2 of 2 images also in training" in text and "fewer than 10 images of 'c'" in text
    assert report.to_json()["images"]["train"]["duplicates"] == 3
    assert image_fingerprint(images) != image_fingerprint(images.select(list(range(39, -1, -1)), "turned"))


def sized(*sizes: tuple[int, int]) -> Splits[Images]:
    """Return training images of the given sizes, and validation images of another size."""
    train = replace(some(len(sizes)), sizes=np.array(sizes, np.int32))
    return Splits(train, replace(some(2), sizes=np.full((2, 2), 999, np.int32)))


def test_the_report_tells_how_images_are_resized() -> None:
    model = VisionTransformerConfig(image_size=64)
    report = report_images(sized((640, 480), (100, 90), (5000, 200)), ("a", "b"), model)
    assert "  pixels: median 640 x 200, cropped to the central square and resized to 64 x 64" in report.lines()
    assert report.to_json()["pixels"] == {"train": {"median width": 640, "median height": 200, "resized to": 64}}
    assert not [problem for problem in report.problems if "detail" in problem]
    enlarged = report_images(sized((48, 48)), ("a", "b"), model).lines()
    assert "  pixels: median 48 x 48, enlarged to 64 x 64, which adds no detail; a smaller model.image_size takes less time" in enlarged
    for splits in (sized((64, 64), (64, 64), (9, 9)), Splits(some(), some(2))):  # of the model's size, and of unknown size
        report = report_images(splits, ("a", "b"), model)
        assert not [line for line in report.lines() if "pixels" in line] and "pixels" not in report.to_json()


@pytest.mark.parametrize(
    ("config", "shorter", "message"),
    [
        (VisionTransformerConfig(image_size=64), 256, None),
        (
            VisionTransformerConfig(image_size=64, patch_size=1, stem=ConvStemConfig(channels=(4, 4, 4))),
            257,
            "  pixels: median 4,000 x 257, cropped to the central square and resized to 64 x 64;"
            " model.image_size=128 keeps more detail and takes about 4 times as long",
        ),
        (ConvolutionalNetworkConfig(image_size=64), 300, "model.image_size=128 keeps more detail and takes about 4 times"),
        (VisionTransformerConfig(image_size=96, patch_size=16), 400, "model.image_size=192 keeps more detail"),
        (VisionTransformerConfig(image_size=192, patch_size=1), 800, "model.image_size=256 .* takes about 2 times as long"),
        (VisionTransformerConfig(image_size=256, patch_size=1), 1100, "keeps more detail, but requires a larger model.patch_size"),
    ],
)
def test_much_smaller_images_come_with_the_size_that_keeps_more_detail(config: Any, shorter: int, message: str | None) -> None:
    lines = [line for line in report_images(sized((4000, shorter)), ("a", "b"), config).lines() if "detail" in line]
    assert len(lines) == (message is not None)
    assert all(line == message or re.search(message or "", line) for line in lines)
    if larger := re.search(r"image_size=(\d+)", lines[0] if lines else ""):
        type(config).model_validate(config.model_dump() | {"image_size": int(larger[1])})


def test_folds_of_digits_are_whole_and_apart() -> None:
    parts = [load_digits(DigitsConfig(fold=fold), 8, 1) for fold in range(1, 6)]
    tests = [test.names for _, test in parts]
    assert sorted(name for names in tests for name in names) == sorted({name for names in tests for name in names})
    assert sum(map(len, tests)) == 1797 and all(len(train) + len(test) == 1797 for train, test in parts)
    assert not set(parts[0][0].names) & set(tests[0])
    train = parts[0][0]
    assert train.load([0]).shape == (1, 1, 8, 8) and train.load(range(len(train))).max() == 255
    assert load_digits(DigitsConfig(fold=1, seed=2), 8, 1)[1].names != tests[0]
    enlarged = load_digits(DigitsConfig(), 16, 3)[0]
    assert enlarged.load([0]).shape == (1, 3, 16, 16) and enlarged.sizes is not None and (enlarged.sizes == 8).all()


def test_split_folders_are_the_splits(tmp_path: Path) -> None:
    for number, name in enumerate(["train/a/1.png", "train/b/2.png", "validation/a/3.png", "test/b/4.png"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 50 * number).save(tmp_path / name)
    data = ImageDataConfig(train={"images": str(tmp_path)})  # type: ignore[arg-type]
    splits = load_images(data, tmp_path, VisionTransformerConfig(image_size=4, patch_size=2, channels=1), 0.5)
    assert {name: part.names for name, part in splits.parts.items()} == {
        "train": ["a/1.png", "b/2.png"],
        "valid": ["a/3.png"],
        "test": ["b/4.png"],
    }
