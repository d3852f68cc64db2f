"""Token embeddings, to which a position encoding is added."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.model import EncoderConfig, TextTransformerConfig
from transom.layers.context import LayerContext
from transom.layers.dropout import Dropout
from transom.layers.norm import Norm, build_norm
from transom.layers.observe import observe
from transom.layers.position_encoding import PositionEncoding, build_position_encoding


class Embedding(nn.Module):
    """Token embeddings with positions: h = sqrt(d_model) E[x] + p (Vaswani et al. 2017, section 3.4).

    With token types, h = sqrt(d_model) E[x] + p + T[t] (Devlin et al. 2019, figure 2).
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        position: PositionEncoding,
        scale: bool,
        dropout: float,
        norm: Norm | None = None,
        token_types: nn.Embedding | None = None,
    ) -> None:
        """Combine an embedding table, which other modules may share, and a position encoding.

        Args:
            tokens: embedding table, (vocab, d_model).
            position: position encoding.
            scale: whether to multiply token embeddings by sqrt(d_model).
            dropout: probability of dropout on the sum.
            norm: norm of the sum, before dropout, as in BERT (Devlin et al. 2019) and BART (Lewis et al. 2020); None for no norm.
            token_types: embedding table of token types, (types, d_model); None for none.
        """
        super().__init__()
        self.tokens = tokens
        self.position = position
        self.scale = math.sqrt(tokens.embedding_dim) if scale else 1.0
        self.token_types = token_types
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        positions: Int[Tensor, "#batch length"],
        ctx: LayerContext = LayerContext(),
        token_types: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the embeddings of token ids at the given positions, by default of type 0."""
        x = observe(ctx, self, "resid", self.embed(tokens, positions, ctx, token_types))
        return self.dropout(to_autocast_dtype(x))

    def embed(
        self,
        tokens: Int[Tensor, "batch length"],
        positions: Int[Tensor, "#batch length"],
        ctx: LayerContext = LayerContext(),
        token_types: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the embeddings before dropout, which a trace does not observe."""
        x = self.tokens(tokens) * self.scale
        if (p := self.position(positions)) is not None:
            x = x + p
        if self.token_types is not None:
            x = x + self.embed_types(tokens, token_types)
        return x if self.norm is None else self.norm(x, ctx)

    def embed_types(
        self, tokens: Int[Tensor, "batch length"], token_types: Int[Tensor, "batch length"] | None
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the embeddings of the token types; all tokens are of type 0 if ``token_types`` is None."""
        assert self.token_types is not None
        embedded: Tensor = self.token_types(torch.zeros_like(tokens) if token_types is None else token_types)
        return embedded


def build_embedding(config: TextTransformerConfig, tokens: nn.Embedding, causal: bool) -> Embedding:
    """Build the embedding of a text Transformer, or of one of its sides, with the embedding table ``tokens``.

    Args:
        config: model configuration.
        tokens: embedding table, which the other side or the output projection may share.
        causal: whether the stack that reads the embeddings is causal.
    """
    norm = build_norm(config.norm, config.d_model) if config.embedding_norm else None
    types = nn.Embedding(config.n_token_types, config.d_model) if isinstance(config, EncoderConfig) and config.n_token_types else None
    return Embedding(tokens, build_position_encoding(config, causal), config.scale_embeddings, config.dropout, norm, types)


def to_autocast_dtype(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Cast ``x`` to the autocast dtype if autocast is enabled, so that the residual stream has this dtype and products need no cast."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
