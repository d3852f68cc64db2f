"""Audio classification task: spectrograms are batched and classified like images."""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jaxtyping import UInt8
from torch import Tensor

from transom.data.images.images import Images
from transom.data.images.loader import ImageLoader
from transom.data.sampler import Slicing
from transom.data.split import Splits
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.tasks.audio.loader import AudioLoader, load_sounds, read_sounds, spectrogram_of
from transom.tasks.audio.schema import SpectrogramTransformer
from transom.tasks.audio.wav import read_file
from transom.tasks.image_classification.task import ImagesClassified, ImageTask, data_address


class SoundClassifier(ImageClassifier):
    """Predicts the classes of sounds."""

    NOUN: ClassVar[str] = "sound"

    @property
    def config(self) -> SpectrogramTransformer:
        """The model configuration, with the spectrogram settings."""
        config = self.model.config
        assert isinstance(config, SpectrogramTransformer)
        return config

    def pixels(self, file: Path) -> UInt8[Tensor, "1 size size"]:
        """Return the spectrogram of a WAV file.

        Raises:
            DataError: the file cannot be decoded.
        """
        return spectrogram_of(read_file(file), str(file), self.config)


@dataclass(frozen=True)
class SoundsClassified(ImagesClassified):
    """The object that ``transom classify`` uses for sounds; all are cropped or padded to the length of the model."""

    NOUN: ClassVar[str] = "sounds"
    KEY: ClassVar[str] = "sound"

    classifier: SoundClassifier

    def labelled(self, path: Path) -> Images:
        """Read labeled sounds as spectrograms.

        Raises:
            DataError: a sound cannot be read.
        """
        return read_sounds(path, self.classifier.config)


class AudioTask(ImageTask):
    """Audio classification; attributes as in ``ImageTask``."""

    PREDICTOR: ClassVar[type[ImageClassifier]] = SoundClassifier
    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"classify": SoundsClassified}

    @classmethod
    def load(cls, recipe: Any, base: Path) -> Splits[Images]:
        """Read or synthesize the sounds of a recipe.

        Raises:
            DataError: a sound cannot be read, or there are too few to split.
        """
        return load_sounds(recipe.data, base, recipe.model)

    @classmethod
    def make_loader(cls, recipe: Any, images: Images, classes: Sequence[str], slicing: Slicing) -> ImageLoader:
        """Return the loader of training batches."""
        training = recipe.training
        return AudioLoader(
            images, classes, masking=training.augmentation, batch_images=training.batch_sounds, seed=training.seed, slicing=slicing
        )

    @staticmethod
    def picture(pixels: UInt8[Tensor, "1 size size"]) -> str:
        """Return a spectrogram as a data URL of a PNG, low frequencies at the bottom; encoded without an image library."""
        rows = pixels[0].flip(0).numpy()
        height, width = rows.shape
        chunks = {
            b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0),  # 8-bit grayscale
            b"IDAT": zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows)),
            b"IEND": b"",
        }
        packed = (struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks.items())
        return data_address(b"\x89PNG\r\n\x1a\n" + b"".join(packed))
