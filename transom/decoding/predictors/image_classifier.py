"""Image classification: class probabilities of images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from transom.config.decoding import ImageReading
from transom.data.batch import ImageBatch
from transom.data.images.images import decode, read_file
from transom.decoding.inference import Tell, evaluating, refuse_one, unheard
from transom.decoding.predictors.classifier import Classified, ranked
from transom.decoding.predictors.encoder_predictor import classes_in_short
from transom.decoding.predictors.results import Results, described
from transom.decoding.search.loop import log_probabilities
from transom.models.vision import ConvolutionalNetwork, VisionTransformer
from transom.planning.precision import Precision

Pixels = UInt8[Tensor, "images channels size size"]


@dataclass(frozen=True, repr=False)
class ImageClassifier:
    """Predicts the classes of images. A subclass that overrides ``pixels`` classifies files of another kind.

    Attributes:
        model: an image classifier, prepared for inference.
        reading: inference settings of the recipe.
        precision: dtype of the matrix products with the reason for the choice; None if none was chosen.
        reader: a faster implementation of the same network; None runs the model itself.
        origin: folder it was loaded from; None if it was not loaded.
    """

    NOUN: ClassVar[str] = "image"
    """Name of the content of a file, for messages."""

    model: VisionTransformer | ConvolutionalNetwork
    reading: ImageReading = field(default_factory=ImageReading)
    precision: Precision | None = None
    reader: VisionTransformer | ConvolutionalNetwork | None = None
    origin: str | None = None

    def __repr__(self) -> str:
        """Return classes, size, precision and origin on one line."""
        n_parameters = sum(each.numel() for each in self.model.parameters())
        precision = None if self.precision is None else self.precision.name
        return described(type(self).__name__, classes_in_short(self.model.config.classes), n_parameters, precision, self.origin)

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of the columns of ``predict_proba``."""
        return np.array(self.model.config.classes)

    def predict_proba(self, images: Sequence[str | Path], tell: Tell = unheard) -> NDArray[np.float64]:
        """Return the probability of each class, (images, classes); columns as in ``classes_``; arguments and errors as of ``classify``."""
        parts = [self._log_probabilities(part).exp() for part in self._read(images, tell)]
        probabilities: NDArray[np.float64] = torch.cat(parts).numpy() if parts else np.empty((0, len(self.classes_)))
        return probabilities

    @torch.inference_mode()
    def embed(self, images: Sequence[str | Path], normalise: bool = True, tell: Tell = unheard) -> NDArray[np.float32]:
        """Return the vectors of which the logits are a linear map, (images, d_model).

        Args:
            images: files.
            normalise: scale each vector to length 1, so that products of two are cosines.
            tell: is called with the number of images done and of all.

        Raises:
            DataError: one cannot be read.
        """
        with evaluating(self.model):
            parts = [(self.reader or self.model).hidden(self._batch(part)).float().cpu() for part in self._read(images, tell)]
        vectors = torch.cat(parts) if parts else torch.empty(0, self.model.config.d_model)
        found: NDArray[np.float32] = (F.normalize(vectors, dim=-1) if normalise else vectors).numpy()
        return found

    def classify(self, images: Sequence[str | Path], tell: Tell = unheard) -> Results[Classified]:
        """Predict the class of each image.

        Args:
            images: image files.
            tell: progress callback, called with the number of images done.

        Raises:
            DataError: a file cannot be decoded.
        """
        return Results(found for part in self._read(images, tell) for found in self.classify_pixels(part))

    def _read(self, images: Sequence[str | Path], tell: Tell) -> Iterator[Pixels]:
        """Yield the files' pixels, one batch after another; a batch counts as done when the next one is asked for."""
        refuse_one(images, f"{self.NOUN} file")
        for start in range(0, len(images), self.reading.batch_images):
            part = [Path(image) for image in images[start : start + self.reading.batch_images]]
            yield torch.stack([self.pixels(image) for image in part])
            tell(start + len(part), len(images))

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

    def classify_pixels(self, pixels: Pixels) -> Results[Classified]:
        """Predict the class of each image, given as pixels from 0 to 255 at the input size of the model."""
        classes, rows = self.model.config.classes, pixels.split(self.reading.batch_images)
        return Results(ranked(classes, p) for part in rows for p in self._log_probabilities(part))

    @torch.inference_mode()
    def _log_probabilities(self, pixels: Pixels) -> Float[Tensor, "images classes"]:
        with evaluating(self.model):
            return log_probabilities((self.reader or self.model)(self._batch(pixels))).double().cpu()

    def _batch(self, pixels: Pixels) -> ImageBatch:
        weight = self.model.unembedding.weight
        batch = ImageBatch((pixels / 255).to(weight), torch.zeros(len(pixels), dtype=torch.long), tuple(range(len(pixels))))
        return batch.to(weight.device)
