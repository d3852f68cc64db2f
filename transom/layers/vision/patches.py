"""Patch embedding: split an image into patches and map each to a vector, with position embeddings and a class token."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config.vision import VisionTransformer
from transom.layers.context import LayerContext
from transom.layers.dropout import Dropout
from transom.layers.embedding import in_autocast_type
from transom.layers.observe import observe
from transom.layers.position import build_position
from transom.layers.vision.stem import Pixels, Stem


def patches(x: Float[Tensor, "batch channels height width"], side: int) -> Float[Tensor, "batch patches patch_width"]:
    """Split a feature map into square patches, row by row; a patch is flattened channel by channel, then row by row."""
    batch, channels, height, width = x.shape
    rows, columns = height // side, width // side
    # (batch, rows, columns, channels, side, side)
    cut = x.reshape(batch, channels, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
    return cut.reshape(batch, rows * columns, channels * side * side)


class PatchEmbedding(nn.Module):
    """z_0 = [x_cls; x_p^1 E; ...; x_p^N E] + E_pos (Dosovitskiy et al. 2021, eq. 1); x_cls only with ``pool = "cls"``."""

    def __init__(self, config: VisionTransformer) -> None:
        """Initialize the stem, E with its bias (``patches``), positions, and x_cls (``cls``, zeros)."""
        super().__init__()
        self.side = config.patch_size
        self.pixels, self.stem = Pixels(config), Stem(config)
        self.patches = nn.Linear(config.patch_width, config.d_model)
        self.cls = nn.Parameter(torch.zeros(config.d_model)) if config.pool == "cls" else None
        self.position = build_position(config, causal=False)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, pixels: Float[Tensor, "batch channels height width"], ctx: LayerContext = LayerContext()
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Embed images."""
        x = self.patches(patches(self.stem(self.pixels(pixels), ctx), self.side))
        if self.cls is not None:
            x = torch.cat([self.cls.to(x).expand(len(x), 1, -1), x], 1)
        if (p := self.position(torch.arange(x.shape[1], device=x.device)[None])) is not None:
            x = x + p
        x = observe(ctx, self, "resid", x)
        return self.dropout(in_autocast_type(x))
