"""Self-attention that builds its own mask and rotary tables, for use in models outside this package."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config.components import RotaryConfig
from transom.config.error_messages import validate
from transom.config.model import DecoderConfig
from transom.errors import TransomError
from transom.layers.attention import Attention, causal_mask, non_padding_mask
from transom.layers.context import AttentionContext
from transom.layers.position_encoding import build_position_encoding


class SelfAttention(nn.Module):
    """Multi-head self-attention with RoPE and grouped-query attention (Su et al. 2021; Ainslie et al. 2023).

    Wraps ``Attention``, for which a model has to build mask and rotary tables. Here they are built from the shape of the input.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        *,
        causal: bool = True,
        dropout: float = 0.0,
        max_seq_len: int = 2048,
        rope_theta: float = 10000.0,
    ) -> None:
        """Initialize the projections W_Q, W_K, W_V and W_O, and rotary tables for ``max_seq_len`` positions.

        Args:
            d_model: dimension of input and output.
            n_heads: query heads.
            n_kv_heads: key and value heads; default ``n_heads``.
            causal: whether a token attends to itself and earlier tokens only.
            dropout: probability of dropping an attention weight.
            max_seq_len: longest sequence in tokens.
            rope_theta: base of the rotary frequencies.

        Raises:
            ConfigError: an argument is out of range, or ``d_model`` is not a multiple of ``n_heads``, or ``n_heads`` of ``n_kv_heads``.
        """
        super().__init__()
        fields = {"d_model": d_model, "n_heads": n_heads, "n_kv_heads": n_kv_heads or n_heads, "max_seq_len": max_seq_len}
        position = RotaryConfig(rope_theta=rope_theta)
        config = validate(DecoderConfig, {**fields, "attention_dropout": dropout, "position": position}, ".".join)
        self.d_model, self.causal, self.max_seq_len = d_model, causal, max_seq_len
        self.attention = Attention(config)
        self.position = build_position_encoding(config, causal)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch length d_model"]:
        """Compute self-attention over the tokens of each row.

        Args:
            x: input vectors.
            attention_mask: (batch, length), 1 at tokens, 0 at padding on the left or right; None without padding.

        Raises:
            TransomError: ``x`` or ``attention_mask`` has a wrong shape, or a row is longer than ``max_seq_len``.
        """
        if x.dim() != 3 or x.shape[2] != self.d_model or x.shape[1] > self.max_seq_len:
            expected = f"(batch, length up to {self.max_seq_len}, {self.d_model})"
            raise TransomError(f"x: expected shape {expected}, found {tuple(x.shape)}")
        if attention_mask is not None and attention_mask.shape != x.shape[:2]:
            raise TransomError(
                f"attention_mask: expected the shape (batch, length) of x, {tuple(x.shape[:2])}, found {tuple(attention_mask.shape)}"
            )
        length = x.shape[1]
        positions, mask = torch.arange(length, device=x.device)[None], None
        if self.causal:
            mask = causal_mask(length, length, x.device)
        if attention_mask is not None:
            segments = (attention_mask != 0).long()
            positions, padding = (segments.cumsum(1) - 1).clamp(min=0), non_padding_mask(segments)
            mask = padding if mask is None else mask & padding
        return self.attention(x, AttentionContext(mask=mask, rotary=self.position.rotary(positions)))[0]
