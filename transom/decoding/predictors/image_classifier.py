"""Image classification: class probabilities of images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from transom.config.decoding import ImageInferenceConfig
from transom.data.batch import ImageBatch
from transom.data.images.image_files import decode_image, read_file
from transom.decoding.inference import ProgressCallback, eval_mode, ignore_progress, reject_single_item, unless_edited
from transom.decoding.predictors.classifier import ClassPrediction, rank_classes
from transom.decoding.predictors.encoder_predictor import classes_in_short
from transom.decoding.predictors.results import Results, described
from transom.decoding.search.loop import log_probabilities
from transom.errors import DataError
from transom.models.vision import ConvolutionalNetwork, VisionTransformer
from transom.planning.precision import Precision

Pixels = UInt8[Tensor, "images channels size size"]


@dataclass(frozen=True, repr=False)
class ImageClassifier:
    """Predicts the classes of images; a subclass that overrides ``pixels`` can classify files of another kind.

    Attributes:
        model: an image classifier, prepared for inference.
        inference_config: inference settings of the recipe.
        precision: dtype of the matrix products with the reason for the choice; None if none was chosen.
        encoder_backend: a faster implementation of the same network; None runs the model itself.
        origin: run folder from which the classifier was loaded, for ``repr``; None if it was not loaded.
    """

    NOUN: ClassVar[Literal["image", "sound"]] = "image"
    """Noun for the content of a file, for messages."""

    model: VisionTransformer | ConvolutionalNetwork
    inference_config: ImageInferenceConfig = field(default_factory=ImageInferenceConfig)
    precision: Precision | None = None
    encoder_backend: VisionTransformer | ConvolutionalNetwork | None = None
    origin: str | None = None

    def __repr__(self) -> str:
        """Return classes, number of parameters, precision and origin on one line."""
        n_parameters = sum(each.numel() for each in self.model.parameters())
        precision = None if self.precision is None else self.precision.name
        return described(type(self).__name__, classes_in_short(self.model.config.classes), n_parameters, precision, self.origin)

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of the columns of ``predict_proba``."""
        return np.array(self.model.config.classes)

    def predict_proba(self, images: Sequence[str | Path], notify: ProgressCallback = ignore_progress) -> NDArray[np.float64]:
        """Return class probabilities, (images, classes), in the order of ``classes_``; arguments and errors as for ``classify``."""
        parts = [self._log_probabilities(part).exp() for part in self._read(images, notify)]
        probabilities: NDArray[np.float64] = torch.cat(parts).numpy() if parts else np.empty((0, len(self.classes_)))
        return probabilities

    @torch.inference_mode()
    def embed(
        self, images: Sequence[str | Path], normalize: bool = True, notify: ProgressCallback = ignore_progress
    ) -> NDArray[np.float32]:
        """Return the last hidden states, (images, d_model), which the output layer maps to logits.

        Args:
            images: image files.
            normalize: scale every vector to unit L2 norm, so that dot products are cosine similarities.
            notify: progress callback, called with the number of images done and of all images.

        Raises:
            DataError: a file cannot be decoded.
        """
        with eval_mode(self.model):
            parts = [
                unless_edited(self.encoder_backend, self.model).last_hidden_state(self._batch(part)).float().cpu()
                for part in self._read(images, notify)
            ]
        vectors = torch.cat(parts) if parts else torch.empty(0, self.model.config.d_model)
        found: NDArray[np.float32] = (F.normalize(vectors, dim=-1) if normalize else vectors).numpy()
        return found

    def classify(self, images: Sequence[str | Path], notify: ProgressCallback = ignore_progress) -> Results[ClassPrediction]:
        """Predict the class of each image.

        Args:
            images: image files.
            notify: progress callback, called with the number of images done and of all images.

        Raises:
            DataError: a file cannot be decoded.
        """
        return Results(found for part in self._read(images, notify) for found in self.classify_pixels(part))

    def classify_readable(
        self, images: Sequence[str | Path], notify: ProgressCallback = ignore_progress
    ) -> list[ClassPrediction | DataError]:
        """Predict the class of each file as ``classify`` does; a file that cannot be read gets the error in place of a prediction.

        Args:
            images: paths of the files.
            notify: progress callback.
        """
        reject_single_item(images, f"{self.NOUN} file")
        results, batch_size = list[ClassPrediction | DataError](), self.inference_config.batch_size
        for start in range(0, len(images), batch_size):
            part = [self._pixels_or_error(Path(image)) for image in images[start : start + batch_size]]
            readable = [each for each in part if isinstance(each, Tensor)]
            predictions = iter(self.classify_pixels(torch.stack(readable)) if readable else ())
            results += [each if isinstance(each, DataError) else next(predictions) for each in part]
            notify(len(results), len(images))
        return results

    def _pixels_or_error(self, file: Path) -> UInt8[Tensor, "channels size size"] | DataError:
        try:
            return self.pixels(file)
        except DataError as error:
            return type(error)(str(error))  # the traceback of the error itself would keep the content of the file in memory

    def _read(self, images: Sequence[str | Path], notify: ProgressCallback) -> Iterator[Pixels]:
        """Yield the pixels of the files in batches; ``notify`` is called for a batch when the next batch is requested."""
        reject_single_item(images, f"{self.NOUN} file")
        for start in range(0, len(images), self.inference_config.batch_size):
            part = [Path(image) for image in images[start : start + self.inference_config.batch_size]]
            yield torch.stack([self.pixels(image) for image in part])
            notify(start + len(part), len(images))

    def pixels(self, file: Path) -> UInt8[Tensor, "channels size size"]:
        """Decode a file to 8-bit pixels at the input size of the model.

        Raises:
            UnreadableFileError: the file cannot be read or decoded.
        """
        config = self.model.config
        return torch.from_numpy(decode_image(read_file(file), str(file), config.image_size, config.channels).copy())

    def file_batch(self, file: Path) -> ImageBatch:
        """Build a batch of one file.

        Raises:
            UnreadableFileError: the file cannot be read or decoded.
        """
        return self._batch(self.pixels(file)[None])

    def classify_pixels(self, pixels: Pixels) -> Results[ClassPrediction]:
        """Predict the class of each image; images are given as pixels from 0 to 255 at the input size of the model."""
        classes, rows = self.model.config.classes, pixels.split(self.inference_config.batch_size)
        return Results(rank_classes(classes, p) for part in rows for p in self._log_probabilities(part))

    def pixel_probabilities(self, pixels: Pixels) -> NDArray[np.float64]:
        """Return class probabilities, (images, classes), of images given as pixels from 0 to 255 at the input size of the model."""
        probabilities: NDArray[np.float64] = self._log_probabilities(pixels).exp().numpy()
        return probabilities

    @torch.inference_mode()
    def _log_probabilities(self, pixels: Pixels) -> Float[Tensor, "images classes"]:
        with eval_mode(self.model):
            return log_probabilities(unless_edited(self.encoder_backend, self.model)(self._batch(pixels))).double().cpu()

    def _batch(self, pixels: Pixels) -> ImageBatch:
        weight = self.model.unembedding.weight
        batch = ImageBatch((pixels / 255).to(weight), torch.zeros(len(pixels), dtype=torch.long), tuple(range(len(pixels))))
        return batch.to(weight.device)
