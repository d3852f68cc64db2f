"""The operations of RandAugment (Cubuk et al. 2020), many images at a time."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

Images = Float[Tensor, "images channels height width"]
Numbers = Float[Tensor, "images"]

LUMA = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in grey (ITU-R BT.601)."""

MOST_TURN, MOST_SHEAR, MOST_MOVE, MOST_CHANGE = math.radians(30), 0.3, 10 / 32, 0.9
"""At magnitude 1: an angle, a slope, a share of the width, and how far a factor is from 1."""


def grey(x: Images) -> Float[Tensor, "images 1 height width"]:
    """Give the brightness of each place."""
    return x if x.shape[1] == 1 else (x * x.new_tensor(LUMA)[:, None, None]).sum(1, keepdim=True)


def _toward(base: Float[Tensor, "images #channels #height #width"], x: Images, factor: Numbers) -> Images:
    """Go from ``base`` through ``x`` (factor 1), and beyond."""
    return torch.lerp(base.expand_as(x), x, factor[:, None, None, None]).clamp(0, 1)


def saturated(x: Images, change: Numbers) -> Images:
    """Make colours weaker or stronger."""
    return _toward(grey(x), x, 1 + MOST_CHANGE * change)


def contrasted(x: Images, change: Numbers) -> Images:
    """Bring all pixels nearer to the mean brightness, or away from it."""
    return _toward(grey(x).mean((1, 2, 3), keepdim=True), x, 1 + MOST_CHANGE * change)


def brightened(x: Images, change: Numbers) -> Images:
    """Make an image darker or brighter."""
    return _toward(torch.zeros_like(x), x, 1 + MOST_CHANGE * change)


def sharpened(x: Images, change: Numbers) -> Images:
    """Blur an image or sharpen it; the outermost pixels stay."""
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13
    soft = x.clone()
    channels = x.shape[1]
    soft[:, :, 1:-1, 1:-1] = F.conv2d(x, kernel.expand(channels, 1, 3, 3), groups=channels)
    return _toward(soft, x, 1 + MOST_CHANGE * change)


def posterized(x: Images, change: Numbers) -> Images:
    """Leave the upper bits of the eight of each number: as few as four."""
    step = 2.0 ** (4 * change.abs()).round()[:, None, None, None]
    return ((x * 255).round() / step).floor() * step / 255


def solarized(x: Images, change: Numbers) -> Images:
    """Turn what is bright into its opposite."""
    return torch.where(x >= (1 - change.abs())[:, None, None, None], 1 - x, x)


def stretched(x: Images, change: Numbers) -> Images:
    """Bring the darkest number of each channel to 0 and the brightest to 1; a channel of one number stays."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-12), x)


def equalized(x: Images, change: Numbers) -> Images:
    """Spread the numbers of each channel evenly: by the histogram of 256 levels, as Pillow does."""
    levels = (x * 255).round().long().flatten(2)  # (images, channels, places)
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
"""Operations on an image's numbers."""

N_MOVES = 5
"""Operations on places: a turn, two slants, two shifts."""

N_OPERATIONS = len(COLOURS) + N_MOVES + 1
"""All of them; the last leaves an image as it is."""


def operated(images: Images, which: Int[Tensor, "images"], change: Numbers) -> tuple[Images, Float[Tensor, "images 3 3"]]:
    """Do an operation on each image.

    Args:
        images: from 0 to 1.
        which: number of each one's operation, those of ``COLOURS`` first, then the moves, then none.
        change: how much, from -1 to 1.

    Returns:
        The images with other colours, and the move that is to be made: from new places to old, both from -1 to 1.
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
