"""The audio classification task, which batches and classifies spectrograms like images."""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from jaxtyping import UInt8
from torch import Tensor

from transom.data.images.image_files import Images
from transom.data.images.loader import ImageLoader
from transom.data.sampler import MicroBatching
from transom.data.split import Splits
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.tasks.audio.loader import AudioLoader, decode_spectrogram, load_sounds, read_sounds
from transom.tasks.audio.schema import SpectrogramTransformerConfig
from transom.tasks.audio.wav import read_file
from transom.tasks.image_classification.task import ImageClassifyCommand, ImageTask, data_url


class AudioClassifier(ImageClassifier):
    """Predictor of the classes of sounds."""

    NOUN: ClassVar[Literal["image", "sound"]] = "sound"

    @property
    def config(self) -> SpectrogramTransformerConfig:
        """The model configuration, which includes the spectrogram settings."""
        config = self.model.config
        assert isinstance(config, SpectrogramTransformerConfig)
        return config

    def pixels(self, file: Path) -> UInt8[Tensor, "1 size size"]:
        """Return the spectrogram of a WAV file, which the model reads like an image.

        Raises:
            UnreadableFileError: the file cannot be read or decoded.
        """
        return decode_spectrogram(read_file(file), str(file), self.config)


@dataclass(frozen=True)
class AudioClassifyCommand(ImageClassifyCommand):
    """The object that ``transom classify`` uses for sounds. Each sound is cropped or padded to the length that the model reads."""

    NOUN: ClassVar[str] = "sounds"
    KEY: ClassVar[str] = "sound"

    classifier: AudioClassifier

    def labeled_data(self, path: Path, columns: Mapping[str, Any]) -> Images:
        """Read labeled sounds as spectrograms.

        Raises:
            DataError: a sound cannot be read.
        """
        return read_sounds(path, self.classifier.config)


class AudioTask(ImageTask):
    """The audio classification task. Its attributes are those of ``ImageTask``, with spectrograms as images."""

    PREDICTOR: ClassVar[type[ImageClassifier]] = AudioClassifier
    COMMANDS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"classify": AudioClassifyCommand}
    FROM_BOTTOM: ClassVar[bool] = True

    @classmethod
    def load(cls, recipe: Any, base: Path) -> Splits[Images]:
        """Read or synthesize the sounds of a recipe, and return their spectrograms.

        Raises:
            DataError: a sound cannot be read, or there are too few sounds to split.
        """
        return load_sounds(recipe.data, base, recipe.model)

    @classmethod
    def make_loader(cls, recipe: Any, images: Images, classes: Sequence[str], micro_batching: MicroBatching) -> ImageLoader:
        """Return the loader of training batches of spectrograms."""
        training = recipe.training
        return AudioLoader(
            images,
            classes,
            spec_augment_config=training.augmentation,
            batch_size=training.batch_size,
            seed=training.seed,
            micro_batching=micro_batching,
        )

    @staticmethod
    def to_data_url(pixels: UInt8[Tensor, "1 size size"]) -> str:
        """Return a spectrogram as the data URL of a PNG image, with low frequencies at the bottom.

        The PNG image is encoded here, because the audio task requires no image library.
        """
        rows = pixels[0].flip(0).numpy()
        height, width = rows.shape
        chunks = {
            b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0),  # 8-bit grayscale
            b"IDAT": zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows)),
            b"IEND": b"",
        }
        packed = (struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks.items())
        return data_url(b"\x89PNG\r\n\x1a\n" + b"".join(packed))
