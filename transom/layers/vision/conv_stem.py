"""Convolutional stem before the patch embedding, and pixel normalization."""

import math
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.vision import ConvStemConfig, ImageClassifierConfig
from transom.layers.context import LayerContext
from transom.layers.observe import observe
from transom.layers.vision.channel_attention import build_channel_attention

MAX_GROUPS = 8
"""Maximum number of groups of GroupNorm (Wu & He 2018). Unlike batch norm, GroupNorm does not mix the images of a batch."""


class ConvBlock(nn.Module):
    """Convolution, norm, ReLU and channel attention: Attention(relu(GroupNorm(Conv_3x3(x))))."""

    def __init__(self, options: ConvStemConfig, in_channels: int, out_channels: int) -> None:
        """Initialize a convolution from ``in_channels`` to ``out_channels`` channels."""
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(math.gcd(MAX_GROUPS, out_channels), out_channels)
        self.attention = build_channel_attention(options.attention, out_channels)

    def forward(self, x: Float[Tensor, "batch in_channels height width"]) -> Float[Tensor, "batch out_channels height width"]:
        y = self.norm(self.conv(x).contiguous())  # in channels_last, the backward pass of GroupNorm in bfloat16 is ten times slower
        return self.attention(F.relu(y.contiguous(memory_format=torch.channels_last)))


class ConvStem(nn.Module):
    """Stages of convolutions and pooling, each of which halves height and width; the identity if there are no stages."""

    def __init__(self, config: ImageClassifierConfig) -> None:
        super().__init__()
        options, maps, stages = config.stem, config.maps, list[nn.Module]()
        if isinstance(options, ConvStemConfig):
            for in_channels, out_channels in pairwise(maps):
                widths = [in_channels] + options.convs_per_stage * [out_channels]
                stages.append(nn.Sequential(*(ConvBlock(options, *pair) for pair in pairwise(widths))))
        self.stages = nn.ModuleList(stages)

    def forward(
        self, x: Float[Tensor, "batch channels height width"], ctx: LayerContext = LayerContext()
    ) -> Float[Tensor, "batch maps map_height map_width"]:
        """Apply the stages, each followed by 3 x 3 max pooling with stride 2."""
        last = torch.channels_last  # twice as fast; pooling alone is six times as fast
        for number, stage in enumerate(self.stages):
            x = stage(x.contiguous(memory_format=last)).contiguous(memory_format=last)  # a single channel is in both formats
            x = F.max_pool2d(x, 3, 2, 1)
            x = observe(ctx, self, f"stages.{number}", x)
        return x


class PixelNormalization(nn.Module):
    """Shifts and scales pixels in [0, 1] so that the training images have mean 0 and standard deviation 1 per channel."""

    def __init__(self, config: ImageClassifierConfig) -> None:
        """Take mean and standard deviation from the configuration; they are not saved with the weights."""
        super().__init__()
        self.mean, self.std = config.pixel_mean or (0.0,) * config.channels, config.pixel_std or (1.0,) * config.channels

    def forward(self, pixels: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """Normalize each channel."""
        mean, std = (pixels.new_tensor(numbers)[:, None, None] for numbers in (self.mean, self.std))
        return (pixels - mean) / std
