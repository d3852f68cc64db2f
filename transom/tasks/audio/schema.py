"""The recipe of a classifier of sounds, and what it alone has."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from transom.config.brick import Brick, Schema
from transom.config.components import component
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
    """Sounds, each in a folder that is named for its class: CLASS/NAME.wav, integer PCM, mono or stereo."""

    audio: str = Field(..., description="a folder of such folders")

    @property
    def paths(self) -> list[str]:
        """Name the folder."""
        return [self.audio]


class SynthesizedSounds(Brick):
    """Tones, chirps, noises and vowels; the speakers and pitches of training, validation and test are disjoint."""

    kind: Literal["synthesized-sounds"] = "synthesized-sounds"
    n_train: int = Field(2100, ge=70, le=100_000, description="training sounds")
    n_valid: int = Field(350, ge=7, le=100_000, description="validation sounds")
    n_test: int = Field(700, ge=7, le=100_000, description="test sounds")
    seed: int = Field(1, ge=0, description="seed of the draw")


class AudioData(Data):
    """Sounds, each of a class."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: AudioFiles | None = Field(None, description="training sounds")
    valid: AudioFiles | None = Field(None, description="validation sounds; left out, valid_share of train is split off by hash")
    test: AudioFiles | None = Field(None, description="test sounds: only the data report reads them, to tell which stand in train")
    generate: SynthesizedSounds | None = Field(None, description="synthesized sounds instead of files")
    valid_share: float = Field(0.1, gt=0, lt=1, description="share of the training sounds that is split off where data.valid is left out")

    @property
    def split_off(self) -> str:
        """Say what is taken for validation where no data are named."""
        return f"{100 * self.valid_share:g} % of the training sounds, split off by hash"


@component("model")
class SpectrogramTransformer(VisionTransformer):
    """A Vision Transformer whose image is a log-mel spectrogram, image_size bands by as many frames (after Gong et al. 2021)."""

    FAMILY: ClassVar[str] = "a Transformer on spectrograms for classes of sounds"

    kind: Literal["spectrogram-transformer"] = "spectrogram-transformer"  # type: ignore[assignment]
    image_size: int = Field(64, ge=2, le=4096, description="mel bands, and frames of the spectrogram")
    channels: Literal[1] = Field(1, description="a spectrogram has one")
    sample_rate: int = Field(16000, ge=1000, le=192_000, description="samples a second to which sounds are brought")
    seconds: float = Field(
        1.0, gt=0, le=600, description="length that is read: the middle of a longer sound; a shorter one stands in silence"
    )
    window: int = Field(512, ge=16, le=65536, description="samples of a frame's window")

    @model_validator(mode="after")
    def _frames_fit(self) -> "SpectrogramTransformer":
        if (n := round(self.sample_rate * self.seconds)) < self.image_size:
            raise ValueError(f"expected at least {self.image_size} samples, one a frame, found {n}; raise seconds")
        return self


class SpecAugment(Schema):
    """Masks on training spectrograms (Park et al. 2019), drawn for each epoch anew."""

    masks: int = Field(1, ge=0, le=100, description="masked bands of frequencies, and as many of time")
    width: int = Field(6, ge=0, le=4096, description="most mel bands or frames of a mask")


class AudioTraining(AdamWTraining):
    """One training run of a classifier of sounds."""

    optimizer: Optimizer = Field(AdamW(beta2=0.999, eps=1e-8, weight_decay=0.05), description="the optimizer brick")
    batch_sounds: int = Field(64, ge=1, description="sounds of a batch, over all ranks and accumulation")
    augmentation: SpecAugment = Field(SpecAugment(), description="what is masked in training spectrograms at random")
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
    decoding: ImageReading = Field(ImageReading(), description="how spectrograms are read")
