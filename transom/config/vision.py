"""Schemas of image models."""

from itertools import pairwise
from math import isqrt
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from transom.config.architecture import NORM_PLACEMENT_HELP, Fraction, ModelConfig, NormPlacement, TransformerConfig
from transom.config.component_registry import register_component
from transom.config.components import AnyFeedForward, AnyPatchPosition, FeedForwardConfig, LearnedPositionConfig
from transom.config.schema import ComponentConfig, Slot
from transom.files.limits import MAX_LAYERS, MAX_PATCHES

MAX_IMAGE_SIZE = 4096
"""Maximum width and height to which images are resized, in pixels."""


class ChannelAttentionConfig(ComponentConfig):
    """Base schema of channel attention."""

    def products(self, channels: int, size: int) -> int:
        """Count the multiplications for a feature map of ``size`` x ``size`` positions."""
        return 0


AnyChannelAttention = Annotated[ChannelAttentionConfig, Slot("channel_attention", ChannelAttentionConfig)]


@register_component("channel_attention")
class NoChannelAttentionConfig(ChannelAttentionConfig):
    """No channel attention: x.

    Cost and use: Free.
    """

    kind: Literal["none"] = "none"


@register_component("channel_attention")
class SqueezeExcitationConfig(ChannelAttentionConfig):
    """Squeeze-and-excitation: channel weights from the channel means (Hu et al. 2018, eq. 2-4): x_c sigmoid(W_2 relu(W_1 mean(x)))_c.

    Cost and use: 2 c^2 / reduction weights per stage of c channels and almost no time; no gain on 8 x 8 digits.
    """

    kind: Literal["se"] = "se"
    reduction: int = Field(8, ge=1, description="ratio of channels to hidden dimension")

    def hidden(self, channels: int) -> int:
        return max(1, channels // self.reduction)

    def products(self, channels: int, size: int) -> int:
        """Count the multiplications of W_1 and W_2, once per feature map."""
        return 2 * channels * self.hidden(channels)


@register_component("channel_attention")
class CbamConfig(SqueezeExcitationConfig):
    """CBAM: channel attention, then spatial attention (Woo et al. 2018, eq. 1-3).

    x' = x sigmoid(MLP(mean(x)) + MLP(max(x))) over positions, then x' sigmoid(Conv([mean(x'); max(x')])) over channels.

    Cost and use: As se, plus a convolution of two channels per stage; weights positions as well as channels.
    """

    kind: Literal["cbam"] = "cbam"  # type: ignore[assignment]
    kernel_size: int = Field(7, ge=1, le=31, description="kernel size of the spatial convolution, odd")

    @model_validator(mode="after")
    def _kernel_size_is_odd(self) -> "CbamConfig":
        if self.kernel_size % 2 == 0:
            raise ValueError(f"expected an odd kernel_size, found {self.kernel_size}")
        return self

    def products(self, channels: int, size: int) -> int:
        """Count the multiplications of the MLP, applied to means and maxima, and of the spatial convolution."""
        return 2 * super().products(channels, size) + 2 * (self.kernel_size * size) ** 2


class StemConfig(ComponentConfig):
    """Base schema of stems."""

    def maps(self, channels: int) -> tuple[int, ...]:
        """Return the number of channels of the input and after each stage."""
        return (channels,)

    def products(self, channels: int, size: int) -> int:
        """Count the multiplications for an image of ``size`` x ``size`` pixels."""
        return 0


AnyStem = Annotated[StemConfig, Slot("stem", StemConfig)]


@register_component("stem")
class NoStemConfig(StemConfig):
    """No stem: patches of the image itself (Dosovitskiy et al. 2021, section 3.1).

    Cost and use: The plain Vision Transformer, which must learn locality from data and needs many images.
    """

    kind: Literal["none"] = "none"


@register_component("stem")
class ConvStemConfig(StemConfig):
    """Convolutional stem: stages that each halve the image before it is split into patches (Xiao et al. 2021; Hassani et al. 2021).

    A stage is ``convs_per_stage`` times Attention(relu(GroupNorm(Conv_3x3(x)))), then 3 x 3 max pooling with stride 2.

    Cost and use: Locality is built in: much better than plain patches on small data sets.
    """

    kind: Literal["convolutional"] = "convolutional"
    channels: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = Field(
        (64, 128), strict=False, min_length=1, max_length=12, description="channels after each stage"
    )
    convs_per_stage: int = Field(1, ge=1, le=100, description="convolutions per stage")
    attention: AnyChannelAttention = Field(
        NoChannelAttentionConfig(), description="attention over channels and positions after each convolution"
    )

    def maps(self, channels: int) -> tuple[int, ...]:
        """Return the number of channels of the input and after each stage."""
        return (channels, *self.channels)

    def products(self, channels: int, size: int) -> int:
        """Count the multiplications of convolutions and channel attention for an image of ``size`` x ``size`` pixels."""
        total = 0
        for stage, (in_channels, out_channels) in enumerate(pairwise(self.maps(channels))):
            width = size >> stage
            kernels = 9 * out_channels * (in_channels + (self.convs_per_stage - 1) * out_channels) * width**2
            total += kernels + self.convs_per_stage * self.attention.products(out_channels, width)
        return total


class ImageClassifierConfig(ModelConfig):
    """Base schema of image classifiers."""

    FROM_DATA: ClassVar[tuple[str, ...]] = ("classes", "pixel_mean", "pixel_std")

    image_size: int = Field(32, ge=2, le=MAX_IMAGE_SIZE, description="width and height in pixels to which images are resized")
    channels: Literal[1, 3] = Field(3, description="3 for RGB, 1 for grayscale")
    stem: AnyStem = Field(NoStemConfig(), description="the stem before the patches")
    classes: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), strict=False, description="the classes; set from the data")
    pixel_mean: tuple[float, ...] = Field((), strict=False, description="mean of each channel, from 0 to 1; set from the data")
    pixel_std: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (), strict=False, description="standard deviation of each channel; set from the data"
    )

    @model_validator(mode="after")
    def _stages_fit(self) -> "ImageClassifierConfig":
        if self.image_size % self.reduction:
            raise ValueError(
                f"expected image_size to be a multiple of {self.reduction}, since each stage of the stem halves the image, found"
                f" {self.image_size}; change image_size"
            )
        for name in ("pixel_mean", "pixel_std"):
            if len(getattr(self, name)) not in (0, self.channels):
                raise ValueError(f"expected {name} with {self.channels} values, one per channel, found {len(getattr(self, name))}")
        return self

    @property
    def maps(self) -> tuple[int, ...]:
        """Number of channels of the image and after each stage of the stem."""
        return self.stem.maps(self.channels)

    @property
    def reduction(self) -> int:
        """Factor by which the stem reduces height and width."""
        return int(2 ** (len(self.maps) - 1))

    @property
    def image_size_multiple(self) -> int:
        """Number of which ``image_size`` must be a multiple."""
        return self.reduction

    @property
    def max_image_size(self) -> int:
        """Largest ``image_size`` that the other fields allow."""
        return MAX_IMAGE_SIZE // self.image_size_multiple * self.image_size_multiple

    @property
    def described_inputs(self) -> list[str]:
        """Description of the images and of the channels of the stem's stages."""
        maps = ", ".join(map(str, self.maps[1:]))
        return [f"{self.pictures}{f', after stages of {maps} channels' if maps else ''}"]

    @property
    def pictures(self) -> str:
        """Description of the images: kind and size."""
        return f"{'RGB' if self.channels == 3 else 'grayscale'} images of {self.image_size} x {self.image_size} pixels"


class VisionTransformerConfig(ImageClassifierConfig, TransformerConfig):
    """A Vision Transformer: an encoder over image patches (Dosovitskiy et al. 2021), with ViT's components as defaults."""

    FAMILY: ClassVar[str] = "a Vision Transformer for classes of images"
    STACK: ClassVar[str] = "an encoder"

    kind: Literal["vision-transformer"] = "vision-transformer"
    n_layers: int = Field(6, ge=1, le=MAX_LAYERS, description="blocks")
    patch_size: int = Field(4, ge=1, description="width and height of a patch, in pixels, or in positions after the stem")
    pooling: Literal["cls", "mean"] = Field(
        "cls", description="vector to classify: that of a classification token, or the mean over all patches"
    )
    distillation: Literal["none", "token", "head"] = Field(
        "none",
        description="a second learned token after the class one, alone or with its own head (Touvron et al. 2021); needs a class token",
    )
    head_dropout: Fraction = Field(0.0, description="dropout on the pooled vector")
    norm_placement: NormPlacement = Field("pre", description=NORM_PLACEMENT_HELP)
    position: AnyPatchPosition = Field(LearnedPositionConfig(), description="the position component")
    feed_forward: AnyFeedForward = Field(FeedForwardConfig(kind="gelu"), description="the feed-forward component")

    @model_validator(mode="after")
    def _patches_fit(self) -> "VisionTransformerConfig":
        side = self.image_size_multiple
        if self.distillation != "none" and self.pooling != "cls":
            raise ValueError(f"distillation = {self.distillation!r} needs pooling = 'cls', found {self.pooling!r}; change one of them")
        if self.image_size % side:
            raise ValueError(
                f"expected image_size to be a multiple of {side} pixels, the side of a patch, found {self.image_size};"
                " change image_size or patch_size"
            )
        if self.grid**2 > MAX_PATCHES:
            raise ValueError(f"expected at most {MAX_PATCHES} patches, found {self.grid} x {self.grid}; raise patch_size")
        if self.position.kind == "sinusoidal-2d" and self.d_model % 4:
            raise ValueError(
                f"position.kind = 'sinusoidal-2d' needs d_model to be a multiple of 4, found {self.d_model}; change one of them"
            )
        return self

    @property
    def image_size_multiple(self) -> int:
        """Number of which ``image_size`` must be a multiple: the side of a patch in pixels."""
        return self.reduction * self.patch_size

    @property
    def max_image_size(self) -> int:
        """Largest ``image_size`` that the other fields allow, at which there are at most ``MAX_PATCHES`` patches."""
        return min(super().max_image_size, isqrt(MAX_PATCHES) * self.image_size_multiple)

    @property
    def grid(self) -> int:
        """Number of patches per side."""
        return self.image_size // self.image_size_multiple

    @property
    def n_positions(self) -> int:
        """Number of positions: one per patch, and one for each token before them."""
        return self.grid**2 + self.n_class_tokens

    @property
    def n_class_tokens(self) -> int:
        """Number of tokens before the patches: the classification token and the distillation token."""
        return (self.pooling == "cls") + (self.distillation != "none")

    @property
    def n_pooled(self) -> int:
        """Number of vectors from which the logits are computed: the classification token's, and with a second head the other token's."""
        return 2 if self.distillation == "head" else 1

    @property
    def pictures(self) -> str:
        """Description of the images and their patches."""
        return f"{super().pictures}, {self.grid} x {self.grid} patches"

    @property
    def patch_width(self) -> int:
        """Number of values per patch."""
        return self.maps[-1] * self.patch_size**2


class ConvolutionalNetworkConfig(ImageClassifierConfig):
    """A small convolutional baseline: stages, global average pooling and one hidden layer (after LeCun et al. 1998)."""

    FAMILY: ClassVar[str] = "a convolutional network for classes of images"

    kind: Literal["convolutional"] = "convolutional"
    d_model: int = Field(128, ge=1, description="dimension of the hidden layer")
    stem: ConvStemConfig = Field(ConvStemConfig(channels=(32, 64, 128)), description="the convolutional stages")
    dropout: Fraction = Field(0.1, description="dropout on the hidden layer")

    @property
    def described_layers(self) -> str:
        """Description of the stages and their convolutions."""
        depth = self.stem.convs_per_stage
        return f"{len(self.stem.channels)} stages of {depth} convolution{'' if depth == 1 else 's'}"
