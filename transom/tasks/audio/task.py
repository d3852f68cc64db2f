"""Classification of sounds as a task: spectrograms go the way of images, from their batches to their classes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from jaxtyping import UInt8
from torch import Tensor

from transom.config.decoding import ImageReading
from transom.data.audio.loader import AudioLoader, read_sounds, spectrogram_of, synthesized
from transom.data.audio.wav import read_file
from transom.data.images.images import Images
from transom.data.images.loader import image_fingerprint, pixel_statistics
from transom.data.labeled.classes import classes_of, numbered
from transom.data.reports.images import report_images
from transom.data.split import Splits, read_splits, split_off
from transom.data.text.text import expanded
from transom.decoding.backends.searcher import reader_of
from transom.decoding.inference import Tell
from transom.decoding.predictors.classifier import Scores, scored
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.decoding.predictors.long_texts import TooLong
from transom.models.network import Network
from transom.models.vision import VisionTransformer
from transom.planning.precision import Precision
from transom.tasks.audio.schema import AudioFiles, AudioRecipe, SpectrogramTransformer
from transom.tasks.image_classification.task import ImagesClassified, ImageTask
from transom.tasks.task import LoadedRun
from transom.training.task import Answers, Reader


class SoundClassifier(ImageClassifier):
    """Names the classes of sounds."""

    NOUN: ClassVar[str] = "sound"

    def read(self, file: Path) -> UInt8[Tensor, "1 size size"]:
        """Return the spectrogram of a WAV file.

        Raises:
            DataError: it cannot be read.
        """
        config = self.model.config
        assert isinstance(config, SpectrogramTransformer)
        return spectrogram_of(read_file(file), str(file), config)


class SoundsClassified(ImagesClassified):
    """What ``transom classify`` works with: a classifier of sounds, all of which are brought to its length."""

    NOUN: ClassVar[str] = "sounds"
    KEY: ClassVar[str] = "sound"

    def score(self, labelled: Path, too_long: TooLong, tell: Tell) -> Scores:
        """Compare the classes that the model names with those of labelled sounds.

        Raises:
            TransomError: a sound cannot be read, or is of a class that the model does not have.
        """
        config = self.classifier.model.config
        assert isinstance(config, SpectrogramTransformer)
        known = read_sounds(labelled, config)
        found = self.classifier.classify_pixels(known.load(range(len(known))))
        tell(len(found), len(known))
        return scored(found, known.labels, known, config.classes)


@dataclass(frozen=True)
class AudioTask(ImageTask):
    """Sounds with their classes, ready to be learnt from; attributes as of images."""

    recipe: AudioRecipe  # type: ignore[assignment]
    loader: AudioLoader

    PREDICTOR: ClassVar[type] = SoundClassifier
    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"classify": SoundsClassified}

    @classmethod
    def read(cls, recipe: AudioRecipe, reader: Reader) -> Self:  # type: ignore[override]
        """Read the sounds and examine them.

        Raises:
            TransomError: the sounds cannot be read, or do not fit the recipe.
        """
        reader.tell("reading the sounds")
        splits = load_sounds(recipe, reader.base)
        classes = classes_of(splits.train.labels, splits.train, recipe.model.classes)
        found: dict[str, Any] = {"classes": classes}
        if not recipe.model.pixel_mean:
            found |= dict(zip(("pixel_mean", "pixel_std"), pixel_statistics(splits.train), strict=True))
        recipe = recipe.with_fields("model", **found)
        training = recipe.training
        options: dict[str, Any] = {"batch_images": training.batch_sounds, "seed": training.seed, "slicing": reader.slicing(training)}
        return cls(
            recipe=recipe,
            loader=AudioLoader(splits.train, classes, masking=training.augmentation, **options),
            valid=splits.valid,
            labels=numbered(splits.valid.labels, classes, splits.valid),
            report=report_images(splits, classes, "sound"),
            data=image_fingerprint(splits.train, splits.valid),
        )

    def answer(self, model: Network, autocast: torch.autocast, precision: Precision) -> Answers:
        """Give a few validation sounds with the class that a model finds."""
        assert isinstance(model, VisionTransformer)
        shown = range(min(self.recipe.training.validate_samples, len(self.valid)))
        if not shown:
            return {}, ()
        with autocast:
            answers = SoundClassifier(model, self.recipe.decoding).classify_pixels(self.valid.load(shown))
        rows = zip(shown, answers, strict=True)
        return {}, tuple({"text": self.valid.names[i], "class": self.valid.labels[i], "found": answer.label} for i, answer in rows)

    @classmethod
    def predictor(cls, run: LoadedRun) -> SoundClassifier:
        """Return what answers with a run's model."""
        assert isinstance(run.model, VisionTransformer)
        return SoundClassifier(run.model, run.decoding or ImageReading(), run.precision, reader_of(run.model))


def load_sounds(recipe: AudioRecipe, base: Path) -> Splits[Images]:
    """Read or synthesize the sounds of a recipe.

    Raises:
        DataError: a sound cannot be read, or there is too little to split.
    """
    data, model = recipe.data, recipe.model
    if (sounds := data.generate) is not None:
        parts = (("train", sounds.n_train), ("valid", sounds.n_valid), ("test", sounds.n_test))
        return Splits(*(synthesized(part, n, sounds.seed, model) for part, n in parts))
    root = base / expanded(data.root)

    def read(files: AudioFiles) -> Images:
        return read_sounds(root / expanded(files.audio), model)

    return read_splits(data, read, lambda sounds: split_off(sounds, sounds.digests, data.valid_share, "sounds"))
