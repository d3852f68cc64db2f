"""The handwritten digits data set of scikit-learn, split into cross-validation folds."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from transom.config.data import DigitsConfig
from transom.data.images.image_files import Images, import_pillow
from transom.errors import ConfigError

MAX_INTENSITY = 16
"""Maximum pixel value of scikit-learn's digits, whose minimum is 0."""


def load_digits(config: DigitsConfig, size: int, channels: int) -> tuple[Images, Images]:
    """Load the digits outside a cross-validation fold, and the digits in the fold.

    Args:
        config: index and number of folds, and the seed that assigns the digits to folds.
        size: width and height in pixels to which images are resized.
        channels: 3 for RGB, 1 for grayscale.

    Raises:
        ConfigError: scikit-learn or Pillow is not installed.
    """
    try:
        from sklearn.datasets import load_digits as read
    except ImportError:
        raise ConfigError("the digits require scikit-learn: pip install 'transom[images]'") from None
    library, found = import_pillow(), read()
    numbers = np.round(found.images * (255 / MAX_INTENSITY)).astype(np.uint8)
    sized = [library.Image.fromarray(each).resize((size, size), library.Image.Resampling.BICUBIC) for each in numbers]
    pixels = torch.from_numpy(np.stack([np.asarray(each) for each in sized]))[:, None].expand(-1, channels, -1, -1)
    bits = np.random.Philox(np.random.SeedSequence(config.seed)).random_raw(len(numbers))
    folds = np.array_split(np.argsort(bits, kind="stable"), config.n_folds)

    def load(samples: Sequence[int]) -> UInt8[Tensor, "images channels size size"]:
        return pixels[list(samples)]

    labels = [str(label) for label in found.target]
    names = [f"{label}/{number}" for number, label in enumerate(labels)]
    digests = [blake2b(each.tobytes(), digest_size=16).hexdigest() for each in numbers]
    digits = Images(names, labels, digests, "digits", 0, load, sizes=np.full((len(names), 2), numbers.shape[1], np.int32))
    test = sorted(folds[config.fold - 1].tolist())
    rest = sorted(set(range(len(names))).difference(test))
    return digits.select(rest, f"digits without fold {config.fold}"), digits.select(test, f"digits, fold {config.fold}")
