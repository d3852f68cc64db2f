"""Image augmentation, in which the random numbers of an image are a pure function of (seed, epoch, sample)."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from transom.config.training import ImageAugmentationConfig
from transom.data.batch import MixupLabels
from transom.data.images.randaugment import N_OPERATIONS, apply_operations

Images = Float[Tensor, "images channels height width"]
Numbers = Float[Tensor, "images"]

N_TRIES = 16
"""Maximum number of rejection-sampling attempts for a mixing ratio.

Each attempt is accepted with a probability of at least 1/2.
"""


class Augmenter:
    """Augmentation and mixing of training images as a recipe specifies."""

    def __init__(self, config: ImageAugmentationConfig, seed: int) -> None:
        """Store the augmentation settings of a recipe and the random seed."""
        self.config, self._seed = config, seed
        self._n_draws = 6 + 2 * config.randaugment
        self._n_mixing = 3 + 2 * N_TRIES

    def augment(self, images: Images, epoch: int, samples: Sequence[int]) -> Images:
        """Apply random color operations and a random affine map to each image.

        The color operations are those of RandAugment. The affine map combines RandAugment's geometric operations with the shift, crop and
        flip, so that each image is interpolated only once.

        Args:
            images: pixel values from 0 to 1.
            epoch: index of the epoch.
            samples: index of each image in the data set.
        """
        c = self.config
        u = self._uniform(epoch, samples, 0, self._n_draws)
        affine = torch.eye(3).repeat(len(images), 1, 1)
        for number in range(c.randaugment):
            which, sign = u[:, 6 + 2 * number], u[:, 7 + 2 * number]
            images, transform = apply_operations(
                images, (which * N_OPERATIONS).long(), torch.where(sign < 0.5, -c.randaugment_magnitude, c.randaugment_magnitude)
            )
            affine = affine @ transform
        height, width = images.shape[2:]
        side = (1 - u[:, 0] * (1 - c.crop_scale)).sqrt()  # side of the crop as a fraction of the side of the image
        room = 1 - side
        whole = 2 * c.shift + 1
        right, down = (((u[:, k] * whole).floor() - c.shift) * (2 / n) for k, n in ((1, width), (2, height)))
        mirror = torch.where(u[:, 3] < 0.5, -1.0, 1.0) if c.horizontal_flip else torch.ones(len(images))
        part = _affine(side * mirror, 0, right + room * (2 * u[:, 4] - 1), 0, side, down + room * (2 * u[:, 5] - 1))
        return warp_images(images, affine @ part) if c.randaugment or c.shift or c.horizontal_flip or c.crop_scale < 1 else images

    def mix(
        self, images: Images, partners: Images, labels: Sequence[int], epoch: int, samples: Sequence[int]
    ) -> tuple[Images, MixupLabels]:
        """Mix each image with a partner image by mixup or CutMix.

        Mixup computes lam * image + (1 - lam) * partner (Zhang et al. 2018). CutMix pastes a rectangle of the partner into the image
        (Yun et al. 2019). If both are enabled, each image is mixed by one of them, chosen at random.

        Args:
            images: augmented images.
            partners: augmented partner of each image.
            labels: class index of each partner.
            epoch: index of the epoch.
            samples: index of each image in the data set.

        Returns:
            The mixed images, and the partners' labels with the fraction of each image that is left.
        """
        c = self.config
        u = self._uniform(epoch, samples, 1, self._n_mixing)
        cut = (u[:, 0] < 0.5) if c.mixup and c.cutmix else torch.full((len(images),), bool(c.cutmix))
        lam = torch.where(cut, _beta(u[:, 3:], c.cutmix or 1.0), _beta(u[:, 3:], c.mixup or 1.0))
        height, width = images.shape[2:]
        side = (1 - lam).sqrt()  # side of the rectangle as a fraction of the side of the image
        inside = _interval_mask(u[:, 1], side, width)[:, None, None, :] & _interval_mask(u[:, 2], side, height)[:, None, :, None]
        left = 1 - inside.float().mean((1, 2, 3))  # fraction of the image that is left after rounding and clipping
        lam = torch.where(cut, left, lam)
        blended = torch.lerp(partners, images, lam[:, None, None, None])
        pasted = torch.where(inside, partners, images)
        return torch.where(cut[:, None, None, None], pasted, blended), MixupLabels(torch.tensor(labels), lam)

    @property
    def uses_mixup(self) -> bool:
        """True if the recipe enables mixup or CutMix."""
        return bool(self.config.mixup or self.config.cutmix)

    def _uniform(self, epoch: int, samples: Sequence[int], stream: int, n: int) -> Float[Tensor, "images draws"]:
        """Return n uniform random numbers in [0, 1) for each image.

        The numbers are computed from the raw bits of numpy's Philox generator, which are the same in every version of numpy.
        """
        key = np.random.SeedSequence([self._seed, epoch, stream]).generate_state(2, np.uint64)
        bits = [np.random.Philox(key=key, counter=[0, 0, 0, sample]).random_raw(n) for sample in samples]
        return torch.from_numpy((np.stack(bits) >> np.uint64(11)) * 2.0**-53).float().clamp(max=1 - 2**-24)


def _interval_mask(place: Numbers, side: Numbers, n: int) -> Bool[Tensor, "images pixels"]:
    """Return a mask of the pixels that lie inside an interval along one side of an image.

    Args:
        place: center of the interval for each image, as a fraction of the side of the image.
        side: length of the interval for each image, as a fraction of the side of the image.
        n: number of pixels along the side of the image.
    """
    middle, half = (place * n)[:, None], (side * n)[:, None] / 2
    low, high = (middle - half).round(), (middle + half).round()
    pixels = torch.arange(n)[None]
    return (pixels >= low) & (pixels < high)


def _beta(u: Float[Tensor, "images draws"], alpha: float) -> Numbers:
    """Sample from Beta(alpha, alpha) with alpha <= 1 by Jöhnk's rejection method.

    For uniform numbers v and w, let x = v^(1/alpha) and y = w^(1/alpha). The sample is x / (x + y) for the first pair with x + y <= 1.

    Args:
        u: uniform random numbers, the first ``N_TRIES`` of which serve as v and the others as w.
        alpha: parameter of the distribution.
    """
    x, y = (u[:, :N_TRIES].double() ** (1 / alpha)), (u[:, N_TRIES:].double() ** (1 / alpha))
    taken = (x + y <= 1) & (x + y > 0)
    first = taken.float().argmax(1, keepdim=True)
    ratio = (x / (x + y).clamp(min=1e-300)).gather(1, first)[:, 0]
    return torch.where(taken.any(1), ratio, 0.5).float()


def _affine(a: Tensor | float, b: Tensor | float, x: Tensor | float, c: Tensor | float, d: Tensor | float, y: Tensor | float) -> Tensor:
    """Return the 3 x 3 matrices of the affine maps (u, v) -> (a u + b v + x, c u + d v + y).

    The maps lead from output to input coordinates, both of which range from -1 to 1.
    """
    numbers = torch.broadcast_tensors(*(torch.as_tensor(n, dtype=torch.float32) for n in (a, b, x, c, d, y, 0, 0, 1)))
    return torch.stack(numbers, -1).reshape(*numbers[0].shape, 3, 3)


def warp_images(images: Images, maps: Float[Tensor, "images 3 3"]) -> Images:
    """Transform images by affine maps, with bilinear interpolation and reflection padding.

    Args:
        images: pixel values from 0 to 1.
        maps: matrix of the affine map of each image from output to input coordinates, both of which range from -1 to 1.
    """
    grid = F.affine_grid(maps[:, :2], list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
