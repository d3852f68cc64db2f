"""The operations of RandAugment (Cubuk et al. 2020), vectorized over images."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

Images = Float[Tensor, "images channels height width"]
Numbers = Float[Tensor, "images"]

LUMA_WEIGHTS = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grayscale (ITU-R BT.601)."""

MAX_ROTATION, MAX_SHEAR, MAX_TRANSLATION, MAX_ENHANCEMENT = math.radians(30), 0.3, 10 / 32, 0.9
"""Maximum per operation at magnitude 1: rotation in radians, shear, shift as a fraction of the width, distance of the enhancement factor
from 1."""


def to_grayscale(x: Images) -> Float[Tensor, "images 1 height width"]:
    """Return the brightness of each pixel."""
    return x if x.shape[1] == 1 else (x * x.new_tensor(LUMA_WEIGHTS)[:, None, None]).sum(1, keepdim=True)


def _blend(base: Float[Tensor, "images #channels #height #width"], x: Images, factor: Numbers) -> Images:
    """Interpolate between ``base`` (factor 0) and ``x`` (factor 1), extrapolate for factors above 1, and clip to [0, 1]."""
    return torch.lerp(base.expand_as(x), x, factor[:, None, None, None]).clamp(0, 1)


def adjust_saturation(x: Images, magnitude: Numbers) -> Images:
    """Reduce or increase color saturation."""
    return _blend(to_grayscale(x), x, 1 + MAX_ENHANCEMENT * magnitude)


def adjust_contrast(x: Images, magnitude: Numbers) -> Images:
    """Reduce or increase the distance of all pixels from the mean brightness."""
    return _blend(to_grayscale(x).mean((1, 2, 3), keepdim=True), x, 1 + MAX_ENHANCEMENT * magnitude)


def adjust_brightness(x: Images, magnitude: Numbers) -> Images:
    """Darken or brighten images."""
    return _blend(torch.zeros_like(x), x, 1 + MAX_ENHANCEMENT * magnitude)


def adjust_sharpness(x: Images, magnitude: Numbers) -> Images:
    """Blur or sharpen images; border pixels are unchanged."""
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13
    soft = x.clone()
    channels = x.shape[1]
    soft[:, :, 1:-1, 1:-1] = F.conv2d(x, kernel.expand(channels, 1, 3, 3), groups=channels)
    return _blend(soft, x, 1 + MAX_ENHANCEMENT * magnitude)


def posterize(x: Images, magnitude: Numbers) -> Images:
    """Keep only the upper bits of the 8-bit pixel values, at least four."""
    step = 2.0 ** (4 * magnitude.abs()).round()[:, None, None, None]
    return ((x * 255).round() / step).floor() * step / 255


def solarize(x: Images, magnitude: Numbers) -> Images:
    """Invert all pixels above a threshold."""
    return torch.where(x >= (1 - magnitude.abs())[:, None, None, None], 1 - x, x)


def autocontrast(x: Images, magnitude: Numbers) -> Images:
    """Stretch each channel linearly to the range from 0 to 1; a constant channel is unchanged."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-12), x)


def equalize(x: Images, magnitude: Numbers) -> Images:
    """Equalize the histogram of each channel with 256 levels, as Pillow does."""
    levels = (x * 255).round().long().flatten(2)  # (images, channels, pixels)
    counts = torch.zeros(*levels.shape[:2], 256, dtype=torch.long).scatter_add_(2, levels, torch.ones_like(levels))
    last = counts.gather(2, levels.amax(2, keepdim=True))
    step = (counts.sum(2, keepdim=True) - last) // 255
    table = ((counts.cumsum(2) - counts + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(2, levels), levels).reshape(x.shape) / 255


COLOR_OPERATIONS: tuple[Callable[[Images, Numbers], Images], ...] = (
    adjust_saturation,
    adjust_contrast,
    adjust_brightness,
    adjust_sharpness,
    posterize,
    solarize,
    autocontrast,
    equalize,
)
"""Operations on pixel values."""

N_AFFINE_OPERATIONS = 5
"""Number of affine operations: rotation, shear and translation in x and y."""

N_OPERATIONS = len(COLOR_OPERATIONS) + N_AFFINE_OPERATIONS + 1
"""Number of all operations; the last is the identity."""


def apply_operations(images: Images, which: Int[Tensor, "images"], magnitude: Numbers) -> tuple[Images, Float[Tensor, "images 3 3"]]:
    """Apply one operation to each image.

    Args:
        images: values from 0 to 1.
        which: index of each image's operation: those of ``COLOR_OPERATIONS``, then the affine ones, then the identity.
        magnitude: signed magnitude, from -1 to 1.

    Returns:
        The images after color operations, and the affine maps still to apply, from output to input coordinates, both from -1 to 1.
    """
    images = images.clone()
    for number, operation in enumerate(COLOR_OPERATIONS):
        if (rows := (which == number).nonzero()[:, 0]).numel():
            images[rows] = operation(images[rows], magnitude[rows])
    rotation, shear_x, shear_y, translate_x, translate_y = (
        magnitude * (which == len(COLOR_OPERATIONS) + k) for k in range(N_AFFINE_OPERATIONS)
    )
    angle = MAX_ROTATION * rotation
    transforms = torch.eye(3).repeat(len(images), 1, 1)
    transforms[:, 0, 0] = transforms[:, 1, 1] = angle.cos()
    transforms[:, 0, 1], transforms[:, 1, 0] = MAX_SHEAR * shear_x - angle.sin(), MAX_SHEAR * shear_y + angle.sin()
    transforms[:, 0, 2], transforms[:, 1, 2] = 2 * MAX_TRANSLATION * translate_x, 2 * MAX_TRANSLATION * translate_y
    return images, transforms
