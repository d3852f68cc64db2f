"""The recipe of a classifier of images, and what it alone has."""

from typing import ClassVar, Literal

from pydantic import Field

from transom.config.data import Data, Digits, ImageFiles
from transom.config.decoding import ImageReading
from transom.config.model import ImageModel
from transom.config.options import DataOption, TaskHelp
from transom.config.recipe import Recipe
from transom.config.registry import register_task
from transom.config.training import AdamW, AdamWTraining, Augmentation, Optimizer
from transom.config.vision import VisionTransformer

ABOUT = TaskHelp(
    options=(
        DataOption("--images", "PATH", "For a classifier of images: a folder or .zip of CLASS/NAME.jpg.", "train", "images", is_text=False),
        DataOption(
            "--valid-images",
            "PATH",
            "Validation images, likewise; left out, 10 % is split off.",
            "valid",
            "images",
            "--images",
            "the images to train on",
            is_text=False,
        ),
    ),
    order=7,
    scored_by="a folder or .zip of CLASS/NAME.jpg",
)


class ImageData(Data):
    """Images, each of a class."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: ImageFiles | None = Field(None, description="training images")
    valid: ImageFiles | None = Field(None, description="validation images; left out, valid_share of train is split off by hash")
    test: ImageFiles | None = Field(None, description="test images: only the data report reads them, to tell which stand in train")
    generate: Digits | None = Field(None, description="images that every machine has, instead of files")
    valid_share: float = Field(0.1, gt=0, lt=1, description="share of the training images that is split off where data.valid is left out")

    @property
    def split_off(self) -> str:
        """Say what is taken for validation where no data are named."""
        return f"{100 * self.valid_share:g} % of the training images, split off by hash"


class ImageTraining(AdamWTraining):
    """One training run of a classifier of images."""

    optimizer: Optimizer = Field(AdamW(beta2=0.999, eps=1e-8, weight_decay=0.05), description="the optimizer brick")
    batch_images: int = Field(128, ge=1, description="images of a batch, over all ranks and accumulation")
    augmentation: Augmentation = Field(Augmentation(), description="what is changed in training images at random")
    select_by: Literal["loss", "accuracy"] = Field("accuracy", description="validation figure that chooses the kept weights")
    validate_samples: int = Field(6, ge=0, description="validation images whose class is told at a validation, to be shown")


@register_task
class ImageRecipe(Recipe):
    """A classifier of images."""

    TASK: ClassVar[str] = "transom.tasks.image_classification.task:ImageTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "images"
    VERB: ClassVar[str] = "classify"
    EXAMPLE: ClassVar[tuple[str, str]] = ("image.jpg", '["image.jpg"]')

    task: Literal["image-classification"] = Field("image-classification", description="what the model learns to do")
    data: ImageData = Field(..., description="the examples")
    model: ImageModel = Field(VisionTransformer(), description="the network; preset = NAME starts from a published one")
    training: ImageTraining = Field(ImageTraining(), description="the run")
    decoding: ImageReading = Field(ImageReading(), description="how images are read")
