"""Recipe of the audio classification task."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from transom.config import model  # noqa: F401  # defines the slot of all networks
from transom.config.component_registry import implements, register_component
from transom.config.data import DataConfig, FilesConfig
from transom.config.decoding import ImageInferenceConfig
from transom.config.recipe import Recipe
from transom.config.schema import ComponentConfig, Schema
from transom.config.task_options import SKIP_DAMAGED, DataOption, TaskHelp
from transom.config.task_registry import register_task
from transom.config.training import AdamWConfig, AdamWTrainingConfig, AnyOptimizer
from transom.config.vision import VisionTransformerConfig

ABOUT = TaskHelp(
    options=(
        DataOption("--audio", "FOLDER", "For an audio classifier: a folder with files CLASS/NAME.wav.", "train", "audio", is_text=False),
        DataOption(
            "--valid-audio",
            "FOLDER",
            "Validation audio files in the same layout; default: 10% of the training files.",
            "valid",
            "audio",
            "--audio",
            "the sounds to train on",
            is_text=False,
        ),
        SKIP_DAMAGED,
    ),
    order=8,
    scored_by="a folder with files CLASS/NAME.wav",
)


class AudioFilesConfig(FilesConfig):
    """Sound files CLASS/NAME.wav, each in a folder named after its class.

    The files are in PCM or float format, mono or stereo, with sampling rates from 1 to 768 kHz.
    """

    audio: str = Field(..., description="the folder that contains the class folders")

    @property
    def paths(self) -> list[str]:
        return [self.audio]


class SyntheticSoundsConfig(ComponentConfig):
    """Synthesized sounds of nine classes: tones, rising and falling chirps, noise, and the vowels a, e, i, o and u of many speakers.

    The speakers (vocal tract lengths) and pitches of training, validation and test sounds are disjoint.
    """

    kind: Literal["sounds"] = "sounds"
    n_train: int = Field(1800, ge=90, le=1_000_000, description="number of training sounds")
    n_valid: int = Field(450, ge=9, le=1_000_000, description="number of validation sounds, with other speakers and pitches")
    n_test: int = Field(
        900,
        ge=9,
        le=1_000_000,
        description="number of test sounds, with speakers and pitches of neither training nor validation sounds; only the data report reads"
        " them",
    )
    seed: int = Field(1, ge=0, description="random seed")


class AudioDataConfig(DataConfig):
    """Sounds with classes."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: AudioFilesConfig | None = Field(None, description="training sounds")
    valid: AudioFilesConfig | None = Field(None, description="validation sounds; default: valid_fraction of train, held out")
    test: AudioFilesConfig | None = Field(
        None, description="test sounds; only the data report reads them, to find those that are also in train"
    )
    generate: SyntheticSoundsConfig | None = Field(None, description="synthesized sounds instead of files")
    valid_fraction: float = Field(
        0.1, gt=0, lt=1, description="fraction of the training sounds split off for validation if data.valid is not given"
    )
    skip_damaged: bool = Field(
        False, description="whether damaged sounds are skipped; otherwise an error names them. A class without other sounds is an error"
    )

    @property
    def holdout_description(self) -> str:
        """Describe the samples held out for validation if the recipe names no validation files."""
        return f"{100 * self.valid_fraction:g}% of the training sounds, held out"


@register_component("model")
class SpectrogramTransformerConfig(VisionTransformerConfig):
    """Audio Spectrogram Transformer: a Vision Transformer over patches of a log-mel spectrogram (Gong et al. 2021)."""

    FAMILY: ClassVar[str] = "an Audio Spectrogram Transformer for audio classification"

    kind: Literal["spectrogram-transformer"] = "spectrogram-transformer"  # type: ignore[assignment]
    image_size: int = Field(64, ge=2, le=1024, description="number of mel bands and of frames; the spectrogram is square")
    channels: Literal[1] = Field(1, description="a spectrogram has one channel")
    sample_rate: int = Field(16000, ge=1000, le=192_000, description="sampling rate in Hz to which sounds are resampled")
    seconds: float = Field(1.024, gt=0, le=60, description="length to which sounds are center-cropped or padded, in seconds")
    n_fft: int = Field(512, ge=16, le=2**16, multiple_of=2, description="FFT window length in samples")

    @model_validator(mode="after")
    def _frames_fit(self) -> "SpectrogramTransformerConfig":
        if self.hop_length < 1:
            raise ValueError(
                f"expected at least one sample per frame, found {self.seconds:g} s for {self.image_size} frames; raise seconds"
            )
        return self

    @property
    def hop_length(self) -> int:
        """The hop length, which is the number of samples between the starts of consecutive frames."""
        return round(self.seconds * self.sample_rate) // self.image_size

    @property
    def length(self) -> int:
        """Number of samples that are read from each sound."""
        return self.hop_length * self.image_size

    @property
    def pictures(self) -> str:
        """Description of the spectrograms: size, duration, sampling rate and patches."""
        size, rate = self.image_size, f"{self.length / self.sample_rate:.3g} s at {self.sample_rate:,} Hz"
        return f"spectrograms of {size} mel bands and {size} frames of {rate}, {self.grid} x {self.grid} patches"


@implements(SpectrogramTransformerConfig)
def build_network(config: SpectrogramTransformerConfig) -> Any:
    """Build the network.

    The Vision Transformer is imported here and not at the top, so that a recipe can be read without importing PyTorch.
    """
    from transom.models.vision import VisionTransformer as Network

    return Network(config)


class SpecAugmentConfig(Schema):
    """SpecAugment without time warping (Park et al. 2019).

    Training spectrograms are masked in frequency and in time, with new random masks in each epoch.
    """

    n_freq_masks: int = Field(1, ge=0, le=10, description="number of frequency masks")
    freq_mask_param: int = Field(8, ge=0, description="maximum width of a frequency mask, in mel bands")
    n_time_masks: int = Field(1, ge=0, le=10, description="number of time masks")
    time_mask_param: int = Field(8, ge=0, description="maximum width of a time mask, in frames")


class AudioTrainingConfig(AdamWTrainingConfig):
    """Training settings of an audio classifier."""

    optimizer: AnyOptimizer = Field(AdamWConfig(beta2=0.999, eps=1e-8, weight_decay=0.05), description="the optimizer")
    batch_size: int = Field(64, ge=1, description="sounds per optimizer step, over all ranks and accumulation steps")
    augmentation: SpecAugmentConfig = Field(SpecAugmentConfig(), description="random masking of training spectrograms")
    best_checkpoint_metric: Literal["loss", "accuracy"] = Field("accuracy", description="validation metric that selects the saved weights")
    validate_samples: int = Field(6, ge=0, description="number of validation sounds shown with their predicted class at each validation")


@register_task
class AudioRecipe(Recipe):
    """An audio classifier: a Transformer that predicts the class of a sound from its spectrogram."""

    TASK: ClassVar[str] = "transom.tasks.audio.task:AudioTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    UNIT: ClassVar[str] = "sounds"
    COMMAND: ClassVar[str] = "classify"
    EXAMPLE: ClassVar[tuple[str, str]] = ("sound.wav", '["sound.wav"]')

    task: Literal["audio-classification"] = Field("audio-classification", description="the task")
    data: AudioDataConfig = Field(..., description="the data")
    model: SpectrogramTransformerConfig = Field(SpectrogramTransformerConfig(), description="the network")
    training: AudioTrainingConfig = Field(AudioTrainingConfig(), description="training settings")
    decoding: ImageInferenceConfig = Field(ImageInferenceConfig(), description="inference settings")
