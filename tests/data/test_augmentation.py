"""Image operations agree with Pillow, affine maps are exact, mixing ratios are correct, and random numbers depend only on their key."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from transom.config.training import ImageAugmentationConfig
from transom.data.images.augmentation import Augmenter
from transom.data.images.randaugment import COLOR_OPERATIONS, MAX_TRANSLATION, N_AFFINE_OPERATIONS, N_OPERATIONS, apply_operations


def images(n: int = 4, channels: int = 3, size: int = 8) -> Tensor:
    torch.manual_seed(1)
    return torch.randint(0, 256, (n, channels, size, size)).float() / 255


def by_pillow(x: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Apply the operation to one image with Pillow."""
    pixels = (x * 255).round().byte()
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy() if len(x) == 3 else pixels[0].numpy())
    found = torch.from_numpy(np.asarray(change(image)).copy()).float() / 255
    return found.permute(2, 0, 1) if found.dim() == 3 else found[None]


def factor(change: float) -> float:
    return 1 + 0.9 * change


PILLOWS: dict[str, Callable[[float], Callable[[Image.Image], Image.Image]]] = {
    "adjust_saturation": lambda c: lambda im: ImageEnhance.Color(im).enhance(factor(c)),
    "adjust_contrast": lambda c: lambda im: ImageEnhance.Contrast(im).enhance(factor(c)),
    "adjust_brightness": lambda c: lambda im: ImageEnhance.Brightness(im).enhance(factor(c)),
    "adjust_sharpness": lambda c: lambda im: ImageEnhance.Sharpness(im).enhance(factor(c)),
    "posterize": lambda c: lambda im: ImageOps.posterize(im, 8 - round(4 * abs(c))),
    "solarize": lambda c: lambda im: ImageOps.solarize(im, math.ceil(255 * (1 - abs(c)))),
    "autocontrast": lambda c: ImageOps.autocontrast,
    "equalize": lambda c: ImageOps.equalize,
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("change", [-0.8, -0.25, 0.25, 0.75])
@pytest.mark.parametrize("number", range(len(COLOR_OPERATIONS)))
def test_operations_on_colours_are_pillows(number: int, change: float, channels: int) -> None:
    operation = COLOR_OPERATIONS[number]
    x = images(3, channels)
    found = operation(x, torch.full((3,), change))
    for ours, before in zip(found, x, strict=True):
        theirs = by_pillow(before, PILLOWS[operation.__name__](change))
        assert (ours - theirs).abs().max() <= 2 / 255, "Pillow rounds at every step"
    assert set(PILLOWS) == {each.__name__ for each in COLOR_OPERATIONS}


@pytest.mark.parametrize("operation", COLOR_OPERATIONS[-2:], ids=lambda each: each.__name__)
def test_an_image_of_one_colour_stays(operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    flat = torch.full((1, 3, 4, 4), 0.4)
    assert torch.allclose(operation(flat, torch.tensor([0.5])), flat, atol=1 / 255)


def test_each_image_has_its_own_operation() -> None:
    x = images(N_OPERATIONS) * 0.6 + 0.3  # dark and bright enough for every operation to do something
    found, moves = apply_operations(x, torch.arange(N_OPERATIONS), torch.full((N_OPERATIONS,), 0.5))
    same = [torch.equal(a, b) for a, b in zip(found, x, strict=True)]
    assert same == [False] * len(COLOR_OPERATIONS) + [True] * (N_AFFINE_OPERATIONS + 1)
    still = [torch.equal(move, torch.eye(3)) for move in moves]
    assert still == [True] * len(COLOR_OPERATIONS) + [False] * N_AFFINE_OPERATIONS + [True]
    turn, slant_x, slant_y, shift_x, shift_y = moves[len(COLOR_OPERATIONS) : -1]
    assert torch.allclose(turn[:2, :2] @ turn[:2, :2].T, torch.eye(2), atol=1e-6), "a turn keeps lengths"
    assert turn[1, 0] == pytest.approx(math.sin(math.radians(15)))
    assert (slant_x[0, 1].item(), slant_y[1, 0].item()) == pytest.approx((0.15, 0.15))
    assert (shift_x[0, 2].item(), shift_y[1, 2].item()) == pytest.approx((MAX_TRANSLATION, MAX_TRANSLATION))


def augmenter(**fields: Any) -> Augmenter:
    return Augmenter(ImageAugmentationConfig.model_validate(fields), seed=1)


def test_nothing_asked_is_nothing_done() -> None:
    x = images()
    assert torch.equal(augmenter().augment(x, 0, [0, 1, 2, 3]), x) and not augmenter().uses_mixup


def test_draws_hang_on_seed_epoch_and_sample_alone() -> None:
    x, many = images(), augmenter(shift=2, crop_scale=0.5, horizontal_flip=True, randaugment=2)
    whole = many.augment(x, 3, [5, 9, 2, 7])
    assert torch.allclose(many.augment(x[2:3], 3, [2]), whole[2:3], atol=1e-6), "whatever stands beside it"
    others = many.augment(x, 4, [5, 9, 2, 7]), many.augment(x, 3, [6, 8, 1, 0])
    assert not any(torch.allclose(a, b) for other in others for a, b in zip(other, whole, strict=True))


def test_flips_and_shifts_are_exact_and_take_every_value() -> None:
    x = images(1).expand(400, -1, -1, -1)
    flipped = augmenter(horizontal_flip=True).augment(x, 0, range(400))
    mirrored = torch.tensor([torch.allclose(image, x[0].flip(-1), atol=1e-5) for image in flipped])
    assert all(torch.allclose(image, x[0], atol=1e-5) for image in flipped[~mirrored])
    assert 160 < mirrored.sum() < 240
    padded = torch.from_numpy(np.pad(x[0].numpy(), ((0, 0), (2, 2), (2, 2)), mode="symmetric"))
    windows = {(dy, dx): padded[:, dy : dy + 8, dx : dx + 8] for dy in range(5) for dx in range(5)}
    seen = set()
    for image in augmenter(shift=2).augment(x, 0, range(400)):
        (place,) = [place for place, window in windows.items() if torch.allclose(image, window, atol=1e-4)]
        seen.add(place)
    assert len(seen) == 25


def test_a_zoom_takes_a_part_of_the_wanted_area() -> None:
    ramp = (torch.arange(64.0) / 63).expand(500, 1, 64, 64)
    sides = [(image[0, 0, -1] - image[0, 0, 0]).item() * 63 / 63 for image in augmenter(crop_scale=0.25).augment(ramp, 0, range(500))]
    areas = [side**2 for side in sides]
    assert 0.24 <= min(areas) < 0.3 and 0.9 < max(areas) <= 1.001 and abs(np.mean(areas) - 0.625) < 0.04


def test_mixup_blends_and_says_the_share() -> None:
    own, other = torch.ones(2000, 1, 4, 4), torch.zeros(2000, 1, 4, 4)
    labels = list(range(2000))
    for alpha in (0.2, 1.0):
        pixels, mixed = augmenter(mixup=alpha).mix(own, other, labels, 0, range(2000))
        assert torch.allclose(pixels.mean((1, 2, 3)), mixed.lam, atol=1e-6) and torch.equal(mixed.labels, torch.tensor(labels))
        assert pixels.flatten(1).std(1).max() < 1e-6
        expected = np.sqrt(1 / (4 * (2 * alpha + 1)))  # deviation of Beta(a, a)
        assert abs(mixed.lam.mean() - 0.5) < 0.03 and abs(mixed.lam.std() - expected) < 0.02


def test_cutmix_pastes_a_rectangle_and_says_what_is_left() -> None:
    own, other = torch.ones(300, 1, 16, 16), torch.zeros(300, 1, 16, 16)
    pixels, mixed = augmenter(cutmix=1.0).mix(own, other, [0] * 300, 0, range(300))
    assert torch.allclose(pixels.mean((1, 2, 3)), mixed.lam, atol=1e-6)
    for image in pixels[:, 0]:
        rows, columns = (image == 0).any(1), (image == 0).any(0)
        assert torch.equal(image == 0, rows[:, None] & columns[None]), "a rectangle"
        if rows.any():
            assert rows.nonzero().numel() == rows.nonzero().max() - rows.nonzero().min() + 1
    assert mixed.lam.std() > 0.15 and mixed.lam.max() > 0.95 and mixed.lam.min() < 0.3


def test_with_both_each_image_has_one_of_them() -> None:
    own, other = torch.ones(400, 1, 16, 16), torch.zeros(400, 1, 16, 16)
    pixels, mixed = augmenter(cutmix=1.0, mixup=1.0).mix(own, other, [0] * 400, 0, range(400))
    blended = torch.tensor([image.unique().numel() == 1 and 0 < image.mean() < 1 for image in pixels])
    assert 150 < blended.sum() < 250 and torch.allclose(pixels.mean((1, 2, 3)), mixed.lam, atol=1e-6)
