"""Image classification: class probabilities of images."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from transom.config.decoding import ImageReading
from transom.data.batch import ImageBatch
from transom.data.images.images import decode, read_file
from transom.decoding.inference import Tell, evaluating, refuse_one, unheard
from transom.decoding.predictors.classifier import Classified, ranked
from transom.decoding.search.loop import log_probabilities
from transom.models.vision import ConvolutionalNetwork, VisionTransformer
from transom.planning.precision import Precision

Pixels = UInt8[Tensor, "images channels size size"]


@dataclass(frozen=True)
class ImageClassifier:
    """Predicts the classes of images. A subclass that overrides ``pixels`` classifies files of another kind.

    Attributes:
        model: an image classifier, prepared for inference.
        reading: inference settings of the recipe.
        precision: dtype of the matrix products with the reason for the choice; None if none was chosen.
        reader: a faster implementation of the same network; None runs the model itself.
    """

    NOUN: ClassVar[str] = "image"
    """Name of the content of a file, for messages."""

    model: VisionTransformer | ConvolutionalNetwork
    reading: ImageReading = field(default_factory=ImageReading)
    precision: Precision | None = None
    reader: VisionTransformer | ConvolutionalNetwork | None = None

    def classify(self, images: Sequence[str | Path], tell: Tell = unheard) -> list[Classified]:
        """Predict the class of each image.

        Args:
            images: image files.
            tell: progress callback, called with the number of images done.

        Raises:
            DataError: a file cannot be decoded.
        """
        refuse_one(images, f"{self.NOUN} file")
        found = list[Classified]()
        for start in range(0, len(images), self.reading.batch_images):
            part = [Path(image) for image in images[start : start + self.reading.batch_images]]
            found += self.classify_pixels(torch.stack([self.pixels(image) for image in part]))
            tell(len(found), len(images))
        return found

    def pixels(self, file: Path) -> UInt8[Tensor, "channels size size"]:
        """Decode a file to the input size of the model, as 8-bit pixels.

        Raises:
            DataError: the file cannot be decoded.
        """
        config = self.model.config
        return torch.from_numpy(decode(read_file(file), str(file), config.image_size, config.channels).copy())

    def file_batch(self, file: Path) -> ImageBatch:
        """Build a batch of one file.

        Raises:
            DataError: the file cannot be decoded.
        """
        return self._batch(self.pixels(file)[None])

    def classify_pixels(self, pixels: Pixels) -> list[Classified]:
        """Predict the class of each image, given as pixels from 0 to 255 at the input size of the model."""
        classes, rows = self.model.config.classes, pixels.split(self.reading.batch_images)
        return [ranked(classes, p) for part in rows for p in self._log_probabilities(part)]

    @torch.inference_mode()
    def _log_probabilities(self, pixels: Pixels) -> Float[Tensor, "images classes"]:
        with evaluating(self.model):
            return log_probabilities((self.reader or self.model)(self._batch(pixels))).double().cpu()

    def _batch(self, pixels: Pixels) -> ImageBatch:
        weight = self.model.unembedding.weight
        batch = ImageBatch((pixels / 255).to(weight), torch.zeros(len(pixels), dtype=torch.long), tuple(range(len(pixels))))
        return batch.to(weight.device)
