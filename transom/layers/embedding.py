"""Token embeddings, to which a position encoding is added."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.model import TextTransformerConfig
from transom.layers.context import LayerContext
from transom.layers.dropout import Dropout
from transom.layers.norm import Norm, build_norm
from transom.layers.observe import observe
from transom.layers.position_encoding import PositionEncoding, build_position_encoding


class Embedding(nn.Module):
    """Token embeddings with positions: h = sqrt(d_model) E[x] + p (Vaswani et al. 2017, section 3.4)."""

    def __init__(self, tokens: nn.Embedding, position: PositionEncoding, scale: bool, dropout: float, norm: Norm | None = None) -> None:
        """Combine an embedding table, which other modules may share, and a position encoding.

        Args:
            tokens: embedding table, (vocab, d_model).
            position: position encoding.
            scale: whether to multiply token embeddings by sqrt(d_model).
            dropout: probability of dropout on the sum.
            norm: norm of the sum, before dropout, as in BERT (Devlin et al. 2019) and BART (Lewis et al. 2020); None for no norm.
        """
        super().__init__()
        self.tokens = tokens
        self.position = position
        self.scale = math.sqrt(tokens.embedding_dim) if scale else 1.0
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(
        self, tokens: Int[Tensor, "batch length"], positions: Int[Tensor, "#batch length"], ctx: LayerContext = LayerContext()
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the embeddings of token ids at the given positions."""
        x = self.tokens(tokens) * self.scale
        if (p := self.position(positions)) is not None:
            x = x + p
        if self.norm is not None:
            x = self.norm(x, ctx)
        x = observe(ctx, self, "resid", x)
        return self.dropout(to_autocast_dtype(x))


def build_embedding(config: TextTransformerConfig, tokens: nn.Embedding, causal: bool) -> Embedding:
    """Build the embedding of a text Transformer, or of one of its sides, with the embedding table ``tokens``.

    Args:
        config: model configuration.
        tokens: embedding table, which the other side or the output projection may share.
        causal: whether the stack that reads the embeddings is causal.
    """
    norm = build_norm(config.norm, config.d_model) if config.embedding_norm else None
    return Embedding(tokens, build_position_encoding(config, causal), config.scale_embeddings, config.dropout, norm)


def to_autocast_dtype(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Cast ``x`` to the autocast dtype if autocast is enabled, so that the residual stream has this dtype and products need no cast."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
