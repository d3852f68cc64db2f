"""The operations of RandAugment (Cubuk et al. 2020), vectorized over images."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

Images = Float[Tensor, "images channels height width"]
Numbers = Float[Tensor, "images"]

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grayscale (ITU-R BT.601)."""

MOST_TURN, MOST_SHEAR, MOST_MOVE, MOST_CHANGE = math.radians(30), 0.3, 10 / 32, 0.9
"""Maximum per operation at magnitude 1: rotation in radians, shear, shift as a fraction of the width, distance of the enhancement factor
from 1."""


def grey(x: Images) -> Float[Tensor, "images 1 height width"]:
    """Return the brightness of each pixel."""
    return x if x.shape[1] == 1 else (x * x.new_tensor(LUMA)[:, None, None]).sum(1, keepdim=True)


def _toward(base: Float[Tensor, "images #channels #height #width"], x: Images, factor: Numbers) -> Images:
    """Interpolate between ``base`` (factor 0) and ``x`` (factor 1), extrapolate for factors above 1, and clip to [0, 1]."""
    return torch.lerp(base.expand_as(x), x, factor[:, None, None, None]).clamp(0, 1)


def saturated(x: Images, change: Numbers) -> Images:
    """Reduce or increase color saturation."""
    return _toward(grey(x), x, 1 + MOST_CHANGE * change)


def contrasted(x: Images, change: Numbers) -> Images:
    """Reduce or increase the distance of all pixels from the mean brightness."""
    return _toward(grey(x).mean((1, 2, 3), keepdim=True), x, 1 + MOST_CHANGE * change)


def brightened(x: Images, change: Numbers) -> Images:
    """Darken or brighten images."""
    return _toward(torch.zeros_like(x), x, 1 + MOST_CHANGE * change)


def sharpened(x: Images, change: Numbers) -> Images:
    """Blur or sharpen images; border pixels are unchanged."""
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13
    soft = x.clone()
    channels = x.shape[1]
    soft[:, :, 1:-1, 1:-1] = F.conv2d(x, kernel.expand(channels, 1, 3, 3), groups=channels)
    return _toward(soft, x, 1 + MOST_CHANGE * change)


def posterized(x: Images, change: Numbers) -> Images:
    """Keep only the upper bits of the 8-bit pixel values, at least four."""
    step = 2.0 ** (4 * change.abs()).round()[:, None, None, None]
    return ((x * 255).round() / step).floor() * step / 255


def solarized(x: Images, change: Numbers) -> Images:
    """Invert all pixels above a threshold."""
    return torch.where(x >= (1 - change.abs())[:, None, None, None], 1 - x, x)


def stretched(x: Images, change: Numbers) -> Images:
    """Stretch each channel linearly to the range from 0 to 1; a constant channel is unchanged."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-12), x)


def equalized(x: Images, change: Numbers) -> Images:
    """Equalize the histogram of each channel with 256 levels, as Pillow does."""
    levels = (x * 255).round().long().flatten(2)  # (images, channels, pixels)
    counts = torch.zeros(*levels.shape[:2], 256, dtype=torch.long).scatter_add_(2, levels, torch.ones_like(levels))
    last = counts.gather(2, levels.amax(2, keepdim=True))
    step = (counts.sum(2, keepdim=True) - last) // 255
    table = ((counts.cumsum(2) - counts + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(2, levels), levels).reshape(x.shape) / 255


COLOURS: tuple[Callable[[Images, Numbers], Images], ...] = (
    saturated,
    contrasted,
    brightened,
    sharpened,
    posterized,
    solarized,
    stretched,
    equalized,
)
"""Operations on pixel values."""

N_MOVES = 5
"""Number of affine operations: rotation, shear and translation in x and y."""

N_OPERATIONS = len(COLOURS) + N_MOVES + 1
"""Number of all operations; the last is the identity."""


def operated(images: Images, which: Int[Tensor, "images"], change: Numbers) -> tuple[Images, Float[Tensor, "images 3 3"]]:
    """Apply one operation to each image.

    Args:
        images: values from 0 to 1.
        which: index of each image's operation: those of ``COLOURS``, then the affine ones, then the identity.
        magnitude: signed magnitude, from -1 to 1.

    Returns:
        The images after color operations, and the affine maps still to apply, from output to input coordinates, both from -1 to 1.
    """
    images = images.clone()
    for number, operation in enumerate(COLOURS):
        if (rows := (which == number).nonzero()[:, 0]).numel():
            images[rows] = operation(images[rows], change[rows])
    turn, slant_x, slant_y, shift_x, shift_y = (change * (which == len(COLOURS) + k) for k in range(N_MOVES))
    angle = MOST_TURN * turn
    moves = torch.eye(3).repeat(len(images), 1, 1)
    moves[:, 0, 0] = moves[:, 1, 1] = angle.cos()
    moves[:, 0, 1], moves[:, 1, 0] = MOST_SHEAR * slant_x - angle.sin(), MOST_SHEAR * slant_y + angle.sin()
    moves[:, 0, 2], moves[:, 1, 2] = 2 * MOST_MOVE * shift_x, 2 * MOST_MOVE * shift_y
    return images, moves
