"""The image classification task, which predicts the class of an image."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from transom.checkpoints.run_folder import RunFolder
from transom.config.decoding import ImageInferenceConfig
from transom.config.vision import VisionTransformerConfig
from transom.data.batch import ImageBatch
from transom.data.images.image_files import Images, import_pillow, read_images
from transom.data.images.loader import ImageLoader, image_batches, image_fingerprint, load_images, pixel_statistics
from transom.data.labeled.class_labels import collect_classes, encode_labels, spread_over_classes
from transom.data.reports.baseline import class_baseline
from transom.data.reports.images import report_images
from transom.data.reports.report import DataReport
from transom.data.sampler import MicroBatching
from transom.data.split import Splits
from transom.decoding.inference import ProgressCallback
from transom.decoding.predictors.class_metrics import ClassificationMetrics, evaluate_predictions, evaluate_probabilities
from transom.decoding.predictors.classifier import ClassPrediction
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.decoding.predictors.long_texts import LongTextPolicy
from transom.errors import DataError
from transom.inspection.sample_attention import SamplePicture
from transom.models.base import Network
from transom.models.vision import ConvolutionalNetwork, VisionTransformer
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.image_classification.schema import ImageRecipe
from transom.tasks.task import LoadedRun
from transom.training.objectives.mixup import MixupCrossEntropy
from transom.training.objectives.objective import Objective
from transom.training.task_protocol import ScoredPredictions, TaskContext
from transom.training.validation import validation_accuracy, validation_loss

THUMBNAIL_SIZE = 64
"""Maximum width and height of an image in the report, in pixels."""


@dataclass(frozen=True)
class ImageClassifyCommand:
    """The object that ``transom classify`` uses for images. Each image is resized to the input size of the model."""

    NOUN: ClassVar[str] = "images"
    KEY: ClassVar[str] = "image"

    classifier: ImageClassifier
    max_tokens: None = None

    def classify(self, items: list[str], too_long: LongTextPolicy, notify: ProgressCallback) -> list[ClassPrediction | DataError]:
        """Predict the class of each item, which is the path of a file; a file that cannot be read gets the error in its place."""
        return self.classifier.classify_readable(items, notify)

    def score(
        self, known: Images, too_long: LongTextPolicy, notify: ProgressCallback, thresholds: Sequence[float] = ()
    ) -> ClassificationMetrics:
        """Return classification metrics on labeled images.

        Raises:
            TransomError: a class is unknown to the model.
        """
        classes, batch, found = self.classifier.model.config.classes, self.classifier.inference_config.batch_size, list[ClassPrediction]()
        encode_labels(known.labels, classes, known)  # an unknown class is reported before all images are classified
        for start in range(0, len(known), batch):
            found += self.classifier.classify_pixels(known.load(range(start, min(start + batch, len(known)))))
            notify(len(found), len(known))
        return evaluate_predictions(found, known.labels, known, classes, known.names, thresholds)

    def labeled_data(self, path: Path, columns: Mapping[str, Any]) -> Images:
        """Read labeled images, resized to the input size of the model.

        Raises:
            TransomError: an image cannot be read.
        """
        config = self.classifier.model.config
        return read_images(path, config.image_size, config.channels)


@dataclass(frozen=True)
class ImageTask:
    """The image classification task.

    A subclass for other data that are represented as images, such as spectrograms, overrides ``load``, ``make_loader``, ``to_data_url``,
    ``FROM_BOTTOM``, ``PREDICTOR`` and ``COMMANDS``.

    Attributes:
        recipe: the resolved recipe, with classes and pixel statistics filled in.
        loader: loader of the training batches.
        valid: validation images.
        labels: class index of each validation image.
        report: the data report.
        data_hash: hash of all training and validation images and their classes, in order.
    """

    recipe: Any
    loader: ImageLoader
    valid: Images
    labels: Sequence[int]
    report: DataReport
    data_hash: str

    PREDICTOR: ClassVar[type[ImageClassifier]] = ImageClassifier
    COMMANDS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"classify": ImageClassifyCommand}
    FROM_BOTTOM: ClassVar[bool] = False
    """Whether the first row of pixels is the lowest of ``to_data_url``."""

    @classmethod
    def read(cls, recipe: Any, context: TaskContext) -> Self:
        """Read the images, compute the classes and pixel statistics, and build the data report.

        Raises:
            TransomError: the images cannot be read or do not fit the recipe.
        """
        context.notify(f"reading the {recipe.UNIT}")
        splits = cls.load(recipe, context.base)
        recipe = context.fit(recipe, len(splits.train))
        classes = collect_classes(splits.train.labels, splits.train, recipe.model.classes)
        found: dict[str, Any] = {"classes": classes}
        if not recipe.model.pixel_mean:
            found |= dict(zip(("pixel_mean", "pixel_std"), pixel_statistics(splits.train), strict=True))
        recipe = recipe.with_fields("model", **found)
        labels = encode_labels(splits.valid.labels, classes, splits.valid)
        baseline = class_baseline(encode_labels(splits.train.labels, classes, splits.train), labels, classes)
        return cls(
            recipe=recipe,
            loader=cls.make_loader(recipe, splits.train, classes, context.micro_batching(recipe.training)),
            valid=splits.valid,
            labels=labels,
            report=report_images(splits, classes, recipe.model, cls.PREDICTOR.NOUN).with_baseline(baseline),
            data_hash=image_fingerprint(splits.train, splits.valid),
        )

    @classmethod
    def load(cls, recipe: ImageRecipe, base: Path) -> Splits[Images]:
        """Read or generate the images of a recipe.

        Raises:
            TransomError: an image cannot be read, or there are too few images to split.
        """
        return load_images(recipe.data, base, recipe.model, recipe.data.valid_fraction, recipe.data.skip_damaged)

    @classmethod
    def make_loader(cls, recipe: ImageRecipe, images: Images, classes: Sequence[str], micro_batching: MicroBatching) -> ImageLoader:
        """Return the loader of training batches of augmented images."""
        training = recipe.training
        return ImageLoader(
            images,
            classes,
            batch_size=training.batch_size,
            seed=training.seed,
            augmentation=training.augmentation,
            micro_batching=micro_batching,
        )

    @staticmethod
    def to_data_url(pixels: UInt8[Tensor, "channels size size"]) -> str:
        """Return a thumbnail of an image as a data URL, for the report."""
        library = import_pillow()
        image = library.Image.fromarray(pixels.permute(1, 2, 0).numpy() if len(pixels) > 1 else pixels[0].numpy())
        image.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
        image.save(file := BytesIO(), "PNG")
        return data_url(file.getvalue())

    def write(self, folder: RunFolder) -> None:
        """Write nothing, because the model configuration contains everything that inference needs."""

    def describe_sample(self, sample: int) -> str:
        """Describe a training image by its file name."""
        return self.loader.images.names[sample]

    def objective(self, model: Network) -> Objective:
        """Return the training loss of the task, which is cross-entropy. For images mixed by mixup, the losses of both classes are mixed."""
        return MixupCrossEntropy(self.recipe.training.label_smoothing)

    def flops(self, batch: ImageBatch) -> float:
        """Return the FLOPs of the forward and backward pass of a training step on a batch."""
        config = self.recipe.model
        tokens = config.n_positions if isinstance(config, VisionTransformerConfig) else 0
        return count_flops(config, len(batch.sample_ids), tokens, 1).training

    @property
    def valid_batches(self) -> list[ImageBatch]:
        """The validation images in batches, with their classes."""
        return list(image_batches(self.valid, self.labels, self.recipe.decoding.batch_size))

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return validation loss and accuracy."""
        assert isinstance(model, VisionTransformer | ConvolutionalNetwork)
        batches = self.valid_batches
        figures = validation_loss(model, batches, autocast) | validation_accuracy(model, batches, autocast)
        del figures["perplexity"]  # perplexity is not meaningful for classes
        return figures

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Predict the classes of a few validation images, which are different and spread over the classes."""
        assert isinstance(model, VisionTransformer | ConvolutionalNetwork)
        shown = spread_over_classes(self.valid.labels, self.valid.digests, self.recipe.training.validate_samples)
        if not shown:
            return {}, ()
        pixels = self.valid.load(shown)
        with autocast:
            answers = self.PREDICTOR(model, self.recipe.decoding).classify_pixels(pixels)
        rows = zip(shown, pixels, answers, strict=True)
        return {}, tuple(
            {
                "picture": self.to_data_url(image),
                "text": self.valid.names[i],
                "class": self.valid.labels[i],
                "found": answer.label,
                "p": answer.p,
            }
            for i, image, answer in rows
        )

    def sample(self, number: int) -> ImageBatch:
        """Return a batch of one validation image."""
        return ImageBatch(self.valid.load([number]) / 255, torch.tensor([self.labels[number]]), (number,))

    def sample_picture(self) -> tuple[ImageBatch, SamplePicture]:
        """Return a batch of the first validation image, and the image for display."""
        (batch,) = islice(image_batches(self.valid, self.labels, 1), 1)
        return batch, SamplePicture(self.to_data_url(self.valid.load([0])[0]), self.PREDICTOR.NOUN, self.FROM_BOTTOM)

    def classification_metrics(self, model: Network, autocast: torch.autocast) -> ClassificationMetrics:
        """Return the metrics of a model's predictions for all validation images, for the report."""
        assert isinstance(model, VisionTransformer | ConvolutionalNetwork)
        classifier, batch = self.PREDICTOR(model, self.recipe.decoding), self.recipe.decoding.batch_size
        starts = range(0, len(self.valid), batch)
        with autocast:
            parts = [classifier.pixel_probabilities(self.valid.load(range(i, min(i + batch, len(self.valid))))) for i in starts]
        return evaluate_probabilities(np.concatenate(parts), self.labels, self.valid, self.recipe.model.classes, self.valid.names)

    @classmethod
    def predictor(cls, run: LoadedRun) -> ImageClassifier:
        assert isinstance(run.model, VisionTransformer | ConvolutionalNetwork)
        return cls.PREDICTOR(run.model, run.decoding or ImageInferenceConfig(), run.precision, run.encoder_backend, run.origin)


def data_url(png: bytes) -> str:
    """Return a PNG image as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
