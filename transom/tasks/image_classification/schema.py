"""Recipe of the image classification task."""

from typing import ClassVar, Literal

from pydantic import Field

from transom.config.data import DataConfig, DigitsConfig, ImageFilesConfig
from transom.config.decoding import ImageInferenceConfig
from transom.config.model import AnyImageModel
from transom.config.recipe import Recipe
from transom.config.task_options import SKIP_DAMAGED, DataOption, TaskHelp
from transom.config.task_registry import register_task
from transom.config.training import AdamWConfig, AdamWTrainingConfig, AnyOptimizer, ImageAugmentationConfig
from transom.config.vision import VisionTransformerConfig

ABOUT = TaskHelp(
    options=(
        DataOption(
            "--images",
            "PATH",
            "For an image classifier: a folder or .zip with files CLASS/NAME.jpg, with train and val folders, or with a labels.csv.",
            "train",
            "images",
            is_text=False,
        ),
        DataOption(
            "--valid-images",
            "PATH",
            "Validation images in the same layout; default: 10% of the training images.",
            "valid",
            "images",
            "--images",
            "the images to train on",
            is_text=False,
        ),
        SKIP_DAMAGED,
    ),
    order=7,
    scored_by="a folder or .zip with files CLASS/NAME.jpg",
)


class ImageDataConfig(DataConfig):
    """Images with classes."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: ImageFilesConfig | None = Field(None, description="training images")
    valid: ImageFilesConfig | None = Field(None, description="validation images; default: valid_fraction of train, held out")
    test: ImageFilesConfig | None = Field(
        None, description="test images; only the data report reads them, to find those that are also in train"
    )
    generate: DigitsConfig | None = Field(None, description="built-in images instead of files")
    valid_fraction: float = Field(
        0.1, gt=0, lt=1, description="fraction of the training images split off for validation if data.valid is not given"
    )
    skip_damaged: bool = Field(
        False, description="whether damaged images are skipped; otherwise an error names them. A class without other images is an error"
    )

    @property
    def holdout_description(self) -> str:
        """Describe the samples held out for validation if the recipe names no validation files."""
        return f"{100 * self.valid_fraction:g}% of the training images, held out"


class ImageTrainingConfig(AdamWTrainingConfig):
    """Training settings of an image classifier."""

    optimizer: AnyOptimizer = Field(AdamWConfig(beta2=0.999, eps=1e-8, weight_decay=0.05), description="the optimizer")
    batch_size: int = Field(128, ge=1, description="images per optimizer step, over all ranks and accumulation steps")
    augmentation: ImageAugmentationConfig = Field(ImageAugmentationConfig(), description="random augmentation of training images")
    best_checkpoint_metric: Literal["loss", "accuracy"] = Field("accuracy", description="validation metric that selects the saved weights")
    validate_samples: int = Field(6, ge=0, description="number of validation images shown with their predicted class at each validation")


@register_task
class ImageRecipe(Recipe):
    """An image classifier: a network that predicts the class of an image."""

    TASK: ClassVar[str] = "transom.tasks.image_classification.task:ImageTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    UNIT: ClassVar[str] = "images"
    COMMAND: ClassVar[str] = "classify"
    EXAMPLE: ClassVar[tuple[str, str]] = ("image.jpg", '["image.jpg"]')

    task: Literal["image-classification"] = Field("image-classification", description="the task")
    data: ImageDataConfig = Field(..., description="the data")
    model: AnyImageModel = Field(
        VisionTransformerConfig(), description="the network; preset = NAME loads the configuration of a published model"
    )
    training: ImageTrainingConfig = Field(ImageTrainingConfig(), description="training settings")
    decoding: ImageInferenceConfig = Field(ImageInferenceConfig(), description="inference settings")
