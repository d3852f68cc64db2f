"""Classification of images as a task: the class of a whole image is to be named."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from jaxtyping import UInt8
from torch import Tensor

from transom.checkpoints.run_folder import RunFolder
from transom.config.decoding import ImageReading
from transom.config.vision import VisionTransformer as VisionTransformerConfig
from transom.data.batch import ImageBatch
from transom.data.images.images import Images, pillow, read_images
from transom.data.images.loader import ImageLoader, image_batches, image_fingerprint, load_images, pixel_statistics
from transom.data.labeled.classes import classes_of, numbered
from transom.data.reports.images import report_images
from transom.data.reports.report import Report
from transom.decoding.backends.searcher import reader_of
from transom.decoding.inference import Tell
from transom.decoding.predictors.classifier import Classified, Scores, scored
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.decoding.predictors.long_texts import TooLong
from transom.models.network import Network
from transom.models.vision import ConvolutionalNetwork, VisionTransformer
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.image_classification.schema import ImageRecipe
from transom.tasks.task import LoadedRun
from transom.training.objectives.mixed_images import MixedImages
from transom.training.objectives.objective import Objective
from transom.training.task import Answers, Reader
from transom.training.validation import validation_accuracy, validation_loss

SHOWN_SIDE = 64
"""Most pixels a side of an image that a report shows."""


@dataclass(frozen=True)
class ImagesClassified:
    """What ``transom classify`` works with: a classifier of images, all of which are brought to its size."""

    NOUN: ClassVar[str] = "images"
    KEY: ClassVar[str] = "image"

    classifier: ImageClassifier
    max_tokens: None = None

    def classify(self, items: list[str], too_long: TooLong, tell: Tell) -> list[Classified]:
        """Name the class of each file's image."""
        return self.classifier.classify(items, tell)

    def score(self, labelled: Path, too_long: TooLong, tell: Tell) -> Scores:
        """Compare the classes that the model names with those of labelled images.

        Raises:
            TransomError: an image cannot be read, or is of a class that the model does not have.
        """
        config, batch = self.classifier.model.config, self.classifier.reading.batch_images
        known, found = read_images(labelled, config.image_size, config.channels), list[Classified]()
        for start in range(0, len(known), batch):
            found += self.classifier.classify_pixels(known.load(range(start, min(start + batch, len(known)))))
            tell(len(found), len(known))
        return scored(found, known.labels, known, config.classes)


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
    report: Report
    data: str

    PREDICTOR: ClassVar[type] = ImageClassifier
    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"classify": ImagesClassified}

    @classmethod
    def read(cls, recipe: ImageRecipe, reader: Reader) -> Self:
        """Read the images and examine them.

        Raises:
            TransomError: the images cannot be read, or do not fit the recipe.
        """
        reader.tell("reading the images")
        splits = load_images(recipe.data, reader.base, recipe.model, recipe.data.valid_share)
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

    @classmethod
    def predictor(cls, run: LoadedRun) -> ImageClassifier:
        """Return what answers with a run's model."""
        assert isinstance(run.model, VisionTransformer | ConvolutionalNetwork)
        return ImageClassifier(run.model, run.decoding or ImageReading(), run.precision, reader_of(run.model))


def _picture(pixels: UInt8[Tensor, "channels size size"]) -> str:
    """Write an image as an address that holds it, for a page."""
    library = pillow()
    image = library.Image.fromarray(pixels.permute(1, 2, 0).numpy() if len(pixels) > 1 else pixels[0].numpy())
    image.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    image.save(file := BytesIO(), "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
