"""Channel and spatial attention of feature maps: squeeze-and-excitation and CBAM."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config import vision
from transom.config.component_registry import build, implements


@implements(vision.NoChannelAttentionConfig)
class ChannelAttention(nn.Module):
    """Base class of channel attention. The class itself is the kind ``none``, the identity."""

    def __init__(self, config: Any, channels: int) -> None:
        """Initialize for feature maps with ``channels`` channels."""
        super().__init__()

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """Return ``x`` with channels and positions multiplied by their weights."""
        return x


@implements(vision.SqueezeExcitationConfig)
class SqueezeExcitation(ChannelAttention):
    """Squeeze-and-excitation: x'_c = s_c x_c, s = sigmoid(W_2 relu(W_1 z + b_1) + b_2), z_c = mean(x_c) (Hu et al. 2018, eq. 2-4)."""

    def __init__(self, config: vision.SqueezeExcitationConfig, channels: int) -> None:
        """Initialize W_1 (``squeeze``) and W_2 (``excite``)."""
        super().__init__(config, channels)
        hidden = config.hidden(channels)
        self.squeeze, self.excite = nn.Linear(channels, hidden), nn.Linear(hidden, channels)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """Return ``x`` with each channel multiplied by its weight."""
        return x * self.channel_scores(x.mean((2, 3))).sigmoid()[:, :, None, None]

    def channel_scores(self, z: Float[Tensor, "batch channels"]) -> Float[Tensor, "batch channels"]:
        """Return the logits of the channel weights, computed from one pooled value per channel."""
        return self.excite(F.relu(self.squeeze(z)))


@implements(vision.CbamConfig)
class Cbam(SqueezeExcitation):
    """CBAM, channel then spatial attention (Woo et al. 2018): x' = x M_c(x), x'' = x' M_s(x').

    M_c(x) = sigmoid(MLP(mean(x)) + MLP(max(x))) with mean and maximum over positions (eq. 2). M_s(x) = sigmoid(Conv([mean(x); max(x)]))
    with mean and maximum over channels (eq. 3), and a convolution without bias.
    """

    def __init__(self, config: vision.CbamConfig, channels: int) -> None:
        """Initialize the MLP and the convolution (``spatial``)."""
        super().__init__(config, channels)
        self.spatial = nn.Conv2d(2, 1, config.kernel_size, padding=config.kernel_size // 2, bias=False)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """Return ``x`` with each channel, then each position multiplied by its weight."""
        x = x * (self.channel_scores(x.mean((2, 3))) + self.channel_scores(x.amax((2, 3)))).sigmoid()[:, :, None, None]
        return x * self.spatial(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)).sigmoid()


def build_channel_attention(config: vision.ChannelAttentionConfig, channels: int) -> ChannelAttention:
    """Build the channel attention that ``config`` selects, for feature maps of ``channels`` channels."""
    return build(config, channels)
