"""Operations of RandAugment (Cubuk et al. 2020), vectorized over images."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

Images = Float[Tensor, "images channels height width"]
Numbers = Float[Tensor, "images"]

LUMA_WEIGHTS = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the conversion to grayscale (ITU-R BT.601)."""

MAX_ROTATION, MAX_SHEAR, MAX_TRANSLATION, MAX_ENHANCEMENT = math.radians(30), 0.3, 10 / 32, 0.9
"""Effect of each kind of operation at magnitude 1.

The values are the rotation in radians, the shear, the translation as a fraction of the side of the image, and the distance of the
enhancement factor from 1.
"""


def to_grayscale(x: Images) -> Float[Tensor, "images 1 height width"]:
    """Return the grayscale value of each pixel."""
    return x if x.shape[1] == 1 else (x * x.new_tensor(LUMA_WEIGHTS)[:, None, None]).sum(1, keepdim=True)


def _blend(base: Float[Tensor, "images #channels #height #width"], x: Images, factor: Numbers) -> Images:
    """Interpolate between ``base`` (factor 0) and ``x`` (factor 1), and clip the result to [0, 1]. Factors above 1 extrapolate."""
    return torch.lerp(base.expand_as(x), x, factor[:, None, None, None]).clamp(0, 1)


def adjust_saturation(x: Images, magnitude: Numbers) -> Images:
    """Reduce the color saturation of images for negative magnitudes, or increase it for positive magnitudes."""
    return _blend(to_grayscale(x), x, 1 + MAX_ENHANCEMENT * magnitude)


def adjust_contrast(x: Images, magnitude: Numbers) -> Images:
    """Reduce the contrast of images for negative magnitudes, or increase it for positive magnitudes."""
    return _blend(to_grayscale(x).mean((1, 2, 3), keepdim=True), x, 1 + MAX_ENHANCEMENT * magnitude)


def adjust_brightness(x: Images, magnitude: Numbers) -> Images:
    """Darken images for negative magnitudes, or brighten them for positive magnitudes."""
    return _blend(torch.zeros_like(x), x, 1 + MAX_ENHANCEMENT * magnitude)


def adjust_sharpness(x: Images, magnitude: Numbers) -> Images:
    """Blur images for negative magnitudes, or sharpen them for positive magnitudes. Border pixels are unchanged."""
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13
    soft = x.clone()
    channels = x.shape[1]
    soft[:, :, 1:-1, 1:-1] = F.conv2d(x, kernel.expand(channels, 1, 3, 3), groups=channels)
    return _blend(soft, x, 1 + MAX_ENHANCEMENT * magnitude)


def posterize(x: Images, magnitude: Numbers) -> Images:
    """Clear the lowest bits of the 8-bit pixel values, up to four bits at magnitude 1 or -1."""
    step = 2.0 ** (4 * magnitude.abs()).round()[:, None, None, None]
    return ((x * 255).round() / step).floor() * step / 255


def solarize(x: Images, magnitude: Numbers) -> Images:
    """Invert all pixel values that are at least 1 - |magnitude|."""
    return torch.where(x >= (1 - magnitude.abs())[:, None, None, None], 1 - x, x)


def autocontrast(x: Images, magnitude: Numbers) -> Images:
    """Stretch the values of each channel linearly to the range from 0 to 1. The magnitude is ignored.

    A constant channel is unchanged.
    """
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-12), x)


def equalize(x: Images, magnitude: Numbers) -> Images:
    """Equalize the histogram of each channel with 256 levels, as Pillow does. The magnitude is ignored."""
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
"""Operations of RandAugment that change pixel values but move no pixels."""

N_AFFINE_OPERATIONS = 5
"""Number of affine operations, which are rotation, shear in x and y, and translation in x and y."""

N_OPERATIONS = len(COLOR_OPERATIONS) + N_AFFINE_OPERATIONS + 1
"""Number of all operations, including the identity, which comes last."""


def apply_operations(images: Images, which: Int[Tensor, "images"], magnitude: Numbers) -> tuple[Images, Float[Tensor, "images 3 3"]]:
    """Apply one operation of RandAugment to each image.

    Color operations are applied at once. Affine operations are returned as maps, so that several of them can be applied together.

    Args:
        images: pixel values from 0 to 1.
        which: index of the operation of each image. ``COLOR_OPERATIONS`` come first, then the affine operations, then the identity.
        magnitude: signed magnitude of the operation of each image, from -1 to 1.

    Returns:
        The images after the color operations, and the matrix of the affine map of each image, which is still to be applied. The maps lead
        from output to input coordinates, both of which range from -1 to 1.
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
