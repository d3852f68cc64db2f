"""Classification of sounds as a task: the class of a whole sound is to be named."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor

from transom.checkpoints.run_folder import RunFolder
from transom.config.decoding import ImageReading
from transom.config.training import Augmentation
from transom.data.audio.sounds import Spectrum, read_sounds, read_spectrum, spectrum_of, synthesize_splits
from transom.data.audio.spectrogram import spec_augment
from transom.data.batch import ImageBatch
from transom.data.images.images import Images
from transom.data.images.loader import ImageLoader, image_fingerprint
from transom.data.labeled.classes import classes_of, numbered
from transom.data.reports.images import report_images
from transom.data.reports.report import Report
from transom.data.split import Splits, read_splits, split_off
from transom.data.text.text import expanded
from transom.decoding.backends.searcher import reader_of
from transom.decoding.inference import Tell, evaluating, refuse_one, unheard
from transom.decoding.predictors.classifier import Classified, Scores, ranked, scored
from transom.decoding.predictors.long_texts import TooLong
from transom.decoding.search.loop import log_probabilities
from transom.models.network import Network
from transom.models.vision import VisionTransformer
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.audio.schema import AudioFiles, AudioRecipe, SpectrogramTransformer
from transom.tasks.task import LoadedRun
from transom.training.objectives.mixed_images import MixedImages
from transom.training.objectives.objective import Objective
from transom.training.task import Answers, Reader
from transom.training.validation import validation_accuracy, validation_loss


def spectrum_for(config: SpectrogramTransformer) -> Spectrum:
    """Return what makes the spectrograms that a model reads."""
    return spectrum_of(config.sample_rate, config.seconds, config.image_size, config.window)


@dataclass(frozen=True)
class SoundClassifier:
    """Names the classes of sounds, and is what ``transom classify`` works with.

    Attributes:
        model: a classifier of sounds, ready to answer.
        reading: the recipe's.
        precision: how the type of its matrix products was chosen; None where it was not.
        reader: reads in the model's place, faster; None for the model itself.
    """

    NOUN: ClassVar[str] = "sounds"
    KEY: ClassVar[str] = "sound"

    model: VisionTransformer
    reading: ImageReading = field(default_factory=ImageReading)
    precision: Precision | None = None
    reader: Any = None
    max_tokens: None = None

    def classify(self, items: Sequence[str | Path], too_long: TooLong = "truncate", tell: Tell = unheard) -> list[Classified]:
        """Name the class of each WAV file.

        Raises:
            DataError: one cannot be read.
        """
        refuse_one(items, "sound file")
        found, batch = list[Classified](), self.reading.batch_images
        for start in range(0, len(items), batch):
            spectra = [read_spectrum(Path(item), self._spectrum)[0] for item in items[start : start + batch]]
            found += self.classify_spectra(torch.stack(spectra)[:, None])
            tell(len(found), len(items))
        return found

    def score(self, labelled: Path, too_long: TooLong = "truncate", tell: Tell = unheard) -> Scores:
        """Compare the classes that the model names with those of a folder of CLASS/NAME.wav.

        Raises:
            TransomError: a sound cannot be read, or is of a class that the model does not have.
        """
        known = read_sounds(labelled, self._spectrum)
        found = self.classify_spectra(known.load(range(len(known))))
        tell(len(found), len(known))
        return scored(found, known.labels, known, self.model.config.classes)

    @torch.inference_mode()
    def classify_spectra(self, spectra: Float[Tensor, "sounds 1 mels frames"]) -> list[Classified]:
        """Name the class of each spectrogram."""
        weight, found = self.model.unembedding.weight, list[Classified]()
        for part in spectra.split(self.reading.batch_images):
            batch = ImageBatch(part.to(weight), torch.zeros(len(part), dtype=torch.long), tuple(range(len(part))))
            with evaluating(self.model):
                rows = log_probabilities((self.reader or self.model)(batch.to(weight.device))).double().cpu()
            found += [ranked(self.model.config.classes, row) for row in rows]
        return found

    @property
    def _spectrum(self) -> Spectrum:
        assert isinstance(self.model.config, SpectrogramTransformer)
        return spectrum_for(self.model.config)


class SoundLoader(ImageLoader):
    """Training batches of spectrograms without end, masked in each epoch anew; its whole state is its position."""

    def __init__(self, sounds: Images, recipe: AudioRecipe, reader: Reader) -> None:
        """Hold the spectrograms and what is masked in them."""
        training, classes = recipe.training, recipe.model.classes
        size, seed, slicing = training.batch_sounds, training.seed, reader.slicing(training)
        super().__init__(sounds, classes, batch_images=size, seed=seed, augmentation=Augmentation(), slicing=slicing)
        c = training.augmentation
        self._masked = partial(spec_augment, masks=c.masks, width=c.width, fill=recipe.model.pixel_mean[0], seed=training.seed)

    def _batch(self, rows: list[int], partner: dict[int, int], epoch: int) -> ImageBatch:
        spectra = self._masked(self.images.load(rows), epoch=epoch, samples=rows)
        return ImageBatch(spectra, torch.tensor([self.labels[i] for i in rows]), tuple(rows))


@dataclass(frozen=True)
class AudioTask:
    """Sounds with their classes, ready to be learnt from.

    Attributes:
        recipe: as resolved, classes and statistics of the spectrograms filled in.
        loader: training batches.
        valid: validation sounds.
        labels: number of each one's class.
        report: what is known of the sounds.
        data: hash of all training and validation sounds and their classes, in their order.
    """

    recipe: AudioRecipe
    loader: SoundLoader
    valid: Images
    labels: Sequence[int]
    report: Report
    data: str

    PREDICTOR: ClassVar[type] = SoundClassifier
    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    @classmethod
    def read(cls, recipe: AudioRecipe, reader: Reader) -> Self:
        """Read or synthesize the sounds and examine them.

        Raises:
            TransomError: the sounds cannot be read, or do not fit the recipe.
        """
        reader.tell("reading the sounds")
        splits = load_sounds(recipe, reader.base)
        classes = classes_of(splits.train.labels, splits.train, recipe.model.classes)
        filled: dict[str, Any] = {"classes": classes}
        if not recipe.model.pixel_mean:
            spectra = splits.train.load(range(len(splits.train))).double()
            filled |= {"pixel_mean": (float(spectra.mean()),), "pixel_std": (max(float(spectra.std(correction=0)), 1e-4),)}
        recipe = recipe.with_fields("model", **filled)
        loader = SoundLoader(splits.train, recipe, reader)
        labels, report = numbered(splits.valid.labels, classes, splits.valid), report_images(splits, classes, "sound")
        return cls(recipe, loader, splits.valid, labels, report, image_fingerprint(splits.train, splits.valid))

    def write(self, folder: RunFolder) -> None:
        """Leave nothing in the run folder: the configuration says all that answering needs."""

    def place(self, sample: int) -> str:
        """Name a training sound by its file."""
        return self.loader.images.names[sample]

    def objective(self, model: Network) -> Objective:
        """Return the loss that a model is learned from."""
        return MixedImages(self.recipe.training.label_smoothing)

    def flops(self, batch: ImageBatch) -> float:
        """Count the floating-point operations of learning from a batch, forward and backward."""
        return count_flops(self.recipe.model, len(batch.samples), self.recipe.model.n_positions, 1).training

    def measure(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Measure a model on the validation sounds."""
        assert isinstance(model, VisionTransformer)
        batches = list(self._validation_batches())
        figures = validation_loss(model, batches, autocast) | validation_accuracy(model, batches, autocast)
        del figures["perplexity"]  # of classes it says nothing
        return figures

    def _validation_batches(self) -> Iterator[ImageBatch]:
        for samples in torch.arange(len(self.valid)).split(self.recipe.decoding.batch_images):
            rows = samples.tolist()
            yield ImageBatch(self.valid.load(rows), torch.tensor([self.labels[i] for i in rows]), tuple(rows))

    def answer(self, model: Network, autocast: torch.autocast, precision: Precision) -> Answers:
        """Give a few validation sounds with the class that a model finds."""
        assert isinstance(model, VisionTransformer)
        shown = range(min(self.recipe.training.validate_samples, len(self.valid)))
        if not shown:
            return {}, ()
        with autocast:
            answers = SoundClassifier(model, self.recipe.decoding).classify_spectra(self.valid.load(shown))
        rows = zip(shown, answers, strict=True)
        return {}, tuple({"text": self.valid.names[i], "class": self.valid.labels[i], "found": found.label} for i, found in rows)

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
    data, spectrum = recipe.data, spectrum_for(recipe.model)
    if (made := data.generate) is not None:
        return synthesize_splits(made.n_train, made.n_valid, made.n_test, made.seed, spectrum)

    def read(files: AudioFiles) -> Images:
        return read_sounds(base / expanded(data.root) / expanded(files.audio), spectrum)

    return read_splits(data, read, lambda sounds: split_off(sounds, sounds.digests, data.valid_share, "sounds"))
