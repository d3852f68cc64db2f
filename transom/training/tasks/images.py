"""Classification of images as a task: the class of a whole image is to be named."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Self

import torch
from jaxtyping import UInt8
from torch import Tensor

from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import ImageRecipe
from transom.config.vision import VisionTransformer as VisionTransformerConfig
from transom.data.batch import ImageBatch
from transom.data.images.images import Images, pillow
from transom.data.images.loader import ImageLoader, image_batches, image_fingerprint, load_images, pixel_statistics
from transom.data.labeled.classes import classes_of, numbered
from transom.data.reports.images import ImageReport, report_images
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.models.network import Network
from transom.models.vision import ConvolutionalNetwork, VisionTransformer
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.training.objectives.mixed_images import MixedImages
from transom.training.objectives.objective import Objective
from transom.training.tasks.task import Answers, Reader
from transom.training.validation import validation_accuracy, validation_loss

SHOWN_SIDE = 64
"""Most pixels a side of an image that a report shows."""


@dataclass(frozen=True)
class ImageTask:
    """Images with their classes, ready to be learnt from.

    Attributes:
        recipe: as resolved, classes and pixel statistics filled in.
        loader: training batches.
        valid: validation images.
        labels: number of each one's class.
        report: what is known of the images.
        data: hash of all training and validation images and their classes, in their order.
    """

    recipe: ImageRecipe
    loader: ImageLoader
    valid: Images
    labels: Sequence[int]
    report: ImageReport
    data: str

    @classmethod
    def read(cls, recipe: ImageRecipe, reader: Reader) -> Self:
        """Read the images and examine them.

        Raises:
            TransomError: the images cannot be read, or do not fit the recipe.
        """
        reader.tell("reading the images")
        splits = load_images(recipe.data, reader.base, recipe.model)
        classes = classes_of(splits.train.labels, splits.train, recipe.model.classes)
        found: dict[str, Any] = {"classes": classes}
        if not recipe.model.pixel_mean:
            found |= dict(zip(("pixel_mean", "pixel_std"), pixel_statistics(splits.train), strict=True))
        recipe = recipe.with_fields("model", **found)
        training = recipe.training
        loader = ImageLoader(
            splits.train,
            classes,
            batch_images=training.batch_images,
            seed=training.seed,
            augmentation=training.augmentation,
            slicing=reader.slicing(training),
        )
        return cls(
            recipe=recipe,
            loader=loader,
            valid=splits.valid,
            labels=numbered(splits.valid.labels, classes, splits.valid),
            report=report_images(splits, classes),
            data=image_fingerprint(splits.train, splits.valid),
        )

    def write(self, folder: RunFolder) -> None:
        """Leave nothing in the run folder: the configuration says all that answering needs."""

    def place(self, sample: int) -> str:
        """Name a training image by its file."""
        return self.loader.images.names[sample]

    def objective(self, model: Network) -> Objective:
        """Return the loss that a model is learned from."""
        return MixedImages(self.recipe.training.label_smoothing)

    def flops(self, batch: ImageBatch) -> float:
        """Count the floating-point operations of learning from a batch, forward and backward."""
        config = self.recipe.model
        tokens = config.n_positions if isinstance(config, VisionTransformerConfig) else 0
        return count_flops(config, len(batch.samples), tokens, 1).training

    def measure(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Measure a model on the validation images."""
        assert isinstance(model, VisionTransformer | ConvolutionalNetwork)
        batches = list(image_batches(self.valid, self.labels, self.recipe.decoding.batch_images))
        figures = validation_loss(model, batches, autocast) | validation_accuracy(model, batches, autocast)
        del figures["perplexity"]  # of classes it says nothing
        return figures

    def answer(self, model: Network, autocast: torch.autocast, precision: Precision) -> Answers:
        """Give a few validation images with the class that a model finds."""
        assert isinstance(model, VisionTransformer | ConvolutionalNetwork)
        shown = range(min(self.recipe.training.validate_samples, len(self.valid)))
        if not shown:
            return {}, ()
        pixels = self.valid.load(shown)
        with autocast:
            answers = ImageClassifier(model, self.recipe.decoding).classify_pixels(pixels)
        rows = zip(shown, pixels, answers, strict=True)
        return {}, tuple(
            {"picture": _picture(image), "text": self.valid.names[i], "class": self.valid.labels[i], "found": answer.label}
            for i, image, answer in rows
        )


def _picture(pixels: UInt8[Tensor, "channels size size"]) -> str:
    """Write an image as an address that holds it, for a page."""
    library = pillow()
    image = library.Image.fromarray(pixels.permute(1, 2, 0).numpy() if len(pixels) > 1 else pixels[0].numpy())
    image.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    image.save(file := BytesIO(), "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
