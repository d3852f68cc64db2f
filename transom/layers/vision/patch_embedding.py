"""Patch embedding: split an image into patches and map each to a vector, with position embeddings and a class token."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config.vision import VisionTransformerConfig
from transom.layers.context import LayerContext
from transom.layers.dropout import Dropout
from transom.layers.embedding import to_autocast_dtype
from transom.layers.observe import observe
from transom.layers.position_encoding import build_position_encoding
from transom.layers.vision.conv_stem import ConvStem, PixelNormalization


def patchify(x: Float[Tensor, "batch channels height width"], patch_size: int) -> Float[Tensor, "batch patches patch_width"]:
    """Split a feature map into square patches, row by row; each patch is flattened with the axes in the order channel, row, column."""
    batch, channels, height, width = x.shape
    rows, columns = height // patch_size, width // patch_size
    # (batch, rows, columns, channels, side, side)
    split = x.reshape(batch, channels, rows, patch_size, columns, patch_size).permute(0, 2, 4, 1, 3, 5)
    return split.reshape(batch, rows * columns, channels * patch_size * patch_size)


class PatchEmbedding(nn.Module):
    """Patch embedding: z_0 = [x_cls; x_p^1 E; ...; x_p^N E] + E_pos (Dosovitskiy et al. 2021, eq. 1).

    The class token x_cls exists only with ``pooling = "cls"``. A distillation token may follow it (Touvron et al. 2021, section 4).
    """

    def __init__(self, config: VisionTransformerConfig) -> None:
        """Initialize the stem, E with its bias (``projection``), positions, and the tokens ``cls`` and ``distillation``, zeros."""
        super().__init__()
        self.patch_size = config.patch_size
        self.pixels, self.stem = PixelNormalization(config), ConvStem(config)
        self.projection = nn.Linear(config.patch_width, config.d_model)
        self.cls = nn.Parameter(torch.zeros(config.d_model)) if config.pooling == "cls" else None
        self.distillation = nn.Parameter(torch.zeros(config.d_model)) if config.distillation != "none" else None
        self.position = build_position_encoding(config, causal=False)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, pixels: Float[Tensor, "batch channels height width"], ctx: LayerContext = LayerContext()
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return the embedded patches of each image, preceded by the class token and the distillation token if there are any."""
        x = self.projection(patchify(self.stem(self.pixels(pixels), ctx), self.patch_size))
        for token in (self.distillation, self.cls):
            if token is not None:
                x = torch.cat([token.to(x).expand(len(x), 1, -1), x], 1)
        if (p := self.position(torch.arange(x.shape[1], device=x.device)[None])) is not None:
            x = x + p
        x = observe(ctx, self, "resid", x)
        return self.dropout(to_autocast_dtype(x))
