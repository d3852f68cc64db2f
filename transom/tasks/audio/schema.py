"""The recipe of a classifier of sounds, and what it alone has."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from transom.config import model  # noqa: F401  # has the slot of all networks
from transom.config.brick import Brick, Schema
from transom.config.components import component, implements
from transom.config.data import Data, Files
from transom.config.decoding import ImageReading
from transom.config.options import DataOption, TaskHelp
from transom.config.recipe import Recipe
from transom.config.registry import register_task
from transom.config.training import AdamW, AdamWTraining, Optimizer
from transom.config.vision import VisionTransformer

ABOUT = TaskHelp(
    options=(
        DataOption("--audio", "FOLDER", "For a classifier of sounds: a folder of CLASS/NAME.wav.", "train", "audio", is_text=False),
        DataOption(
            "--valid-audio",
            "FOLDER",
            "Validation sounds, likewise; left out, 10 % is split off.",
            "valid",
            "audio",
            "--audio",
            "the sounds to train on",
            is_text=False,
        ),
    ),
    order=8,
    scored_by="a folder of CLASS/NAME.wav",
)


class AudioFiles(Files):
    """Sounds, each in a folder that is named for its class: CLASS/NAME.wav, PCM or floats, mono or stereo, of any rate."""

    audio: str = Field(..., description="a folder of such folders")

    @property
    def paths(self) -> list[str]:
        """Name the folder."""
        return [self.audio]


class Sounds(Brick):
    """Synthesized sounds of nine classes: tones, rising and falling chirps, noise, and the vowels a, e, i, o and u of many speakers.

    No speaker, that is, no length of the vocal tract, and no pitch of one part is in another.
    """

    kind: Literal["sounds"] = "sounds"
    n_train: int = Field(1800, ge=90, le=1_000_000, description="training sounds")
    n_valid: int = Field(450, ge=9, le=1_000_000, description="validation sounds, of other speakers and pitches")
    n_test: int = Field(900, ge=9, le=1_000_000, description="test sounds, of others again: only the data report reads them")
    seed: int = Field(1, ge=0, description="seed of the draw")


class AudioData(Data):
    """Sounds, each of a class."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: AudioFiles | None = Field(None, description="training sounds")
    valid: AudioFiles | None = Field(None, description="validation sounds; left out, valid_share of train is split off by hash")
    test: AudioFiles | None = Field(None, description="test sounds: only the data report reads them, to tell which stand in train")
    generate: Sounds | None = Field(None, description="synthesized sounds instead of files")
    valid_share: float = Field(0.1, gt=0, lt=1, description="share of the training sounds that is split off where data.valid is left out")

    @property
    def split_off(self) -> str:
        """Say what is taken for validation where no data are named."""
        return f"{100 * self.valid_share:g} % of the training sounds, split off by hash"


@component("model")
class SpectrogramTransformer(VisionTransformer):
    """An encoder whose tokens are patches of a log-mel spectrogram (Gong et al. 2021): a Vision Transformer that listens."""

    FAMILY: ClassVar[str] = "an audio spectrogram Transformer for classes of sounds"

    kind: Literal["spectrogram-transformer"] = "spectrogram-transformer"  # type: ignore[assignment]
    image_size: int = Field(64, ge=2, le=1024, description="mel bands, and as many frames: the spectrogram is a square")
    channels: Literal[1] = Field(1, description="a spectrogram has one")
    sample_rate: int = Field(16000, ge=1000, le=192_000, description="samples a second to which sounds are brought")
    seconds: float = Field(1.024, gt=0, le=60, description="length to which sounds are cut or padded at both ends; the middle is read")
    n_fft: int = Field(512, ge=16, le=2**16, multiple_of=2, description="samples of the window of each frame")

    @model_validator(mode="after")
    def _frames_fit(self) -> "SpectrogramTransformer":
        if self.hop < 1:
            raise ValueError(f"expected at least a sample a frame, found {self.seconds:g} s for {self.image_size} frames; raise seconds")
        return self

    @property
    def hop(self) -> int:
        """Samples from a frame to the next."""
        return round(self.seconds * self.sample_rate) // self.image_size

    @property
    def length(self) -> int:
        """Samples that are read of a sound."""
        return self.hop * self.image_size

    @property
    def pictures(self) -> str:
        """Size of the spectrograms, their patches, and what part of a sound they show, in words."""
        size, rate = self.image_size, f"{self.length / self.sample_rate:.3g} s at {self.sample_rate:,} Hz"
        return f"spectrograms of {size} mel bands and {size} frames of {rate}, {self.grid} x {self.grid} patches"


@implements(SpectrogramTransformer)
def build_network(config: SpectrogramTransformer) -> Any:
    """Build the network: a Vision Transformer, which is imported, and PyTorch with it, when it is first built."""
    from transom.models.vision import VisionTransformer as Network

    return Network(config)


class SpecAugment(Schema):
    """Bands and times of training spectrograms that are hidden at random, in each epoch anew (Park et al. 2019); no time is warped."""

    n_bands: int = Field(1, ge=0, le=10, description="runs of mel bands that are hidden")
    bands: int = Field(8, ge=0, description="most mel bands of a run")
    n_times: int = Field(1, ge=0, le=10, description="runs of frames that are hidden")
    times: int = Field(8, ge=0, description="most frames of a run")


class AudioTraining(AdamWTraining):
    """One training run of a classifier of sounds."""

    optimizer: Optimizer = Field(AdamW(beta2=0.999, eps=1e-8, weight_decay=0.05), description="the optimizer brick")
    batch_sounds: int = Field(64, ge=1, description="sounds of a batch, over all ranks and accumulation")
    augmentation: SpecAugment = Field(SpecAugment(), description="what is hidden of training spectrograms at random")
    select_by: Literal["loss", "accuracy"] = Field("accuracy", description="validation figure that chooses the kept weights")
    validate_samples: int = Field(6, ge=0, description="validation sounds whose class is told at a validation, to be shown")


@register_task
class AudioRecipe(Recipe):
    """A classifier of sounds."""

    TASK: ClassVar[str] = "transom.tasks.audio.task:AudioTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "sounds"
    VERB: ClassVar[str] = "classify"
    EXAMPLE: ClassVar[tuple[str, str]] = ("sound.wav", '["sound.wav"]')

    task: Literal["audio-classification"] = Field("audio-classification", description="what the model learns to do")
    data: AudioData = Field(..., description="the examples")
    model: SpectrogramTransformer = Field(SpectrogramTransformer(), description="the network")
    training: AudioTraining = Field(AudioTraining(), description="the run")
    decoding: ImageReading = Field(ImageReading(), description="how sounds are read")
