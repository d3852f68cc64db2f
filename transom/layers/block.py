"""The Transformer block: attention, cross-attention where there is a memory, and feed-forward on one residual stream."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transom.config.model import Seq2Seq
from transom.layers.attention import Attention
from transom.layers.cache import KeyValueCache, KeyValues
from transom.layers.feed_forward import FeedForward
from transom.layers.norm import LayerNorm
from transom.layers.residual import WIRING, Residual
from transom.layers.tap import Scope, scope, tap


class Block(nn.Module):
    """One layer of an encoder or, with cross-attention, of a decoder (Vaswani et al. 2017, figure 1)."""

    def __init__(self, config: Seq2Seq, cross: bool) -> None:
        """Make the sub-layers; ``cross`` adds attention over a memory between self-attention and feed-forward."""
        super().__init__()

        def attention() -> Attention:
            c = config
            return Attention(c.attention, c.d_model, c.n_heads, c.width_of_head, c.width_of_value, c.attention_dropout)

        def residual() -> Residual:
            return WIRING[config.norm_placement](LayerNorm(config.norm, config.d_model), config.dropout)

        self.attn, self.attn_residual = attention(), residual()
        self.cross = attention() if cross else None
        self.cross_residual = residual() if cross else None
        self.ff = FeedForward(config.feed_forward, config.d_model, config.d_ff, config.feed_forward_dropout)
        self.ff_residual = residual()

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        memory: Float[Tensor, "batch key d_model"] | KeyValues | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
        taps: Scope | None = None,
    ) -> Float[Tensor, "rows query d_model"]:
        """Pass the residual stream through the sub-layers; arguments as in ``Attention``."""
        x = tap(taps, "resid_pre", x)
        x = self.attn_residual(x, lambda y: self.attn(y, None, mask, cache=cache, taps=scope(taps, "attn")), scope(taps, "attn_residual"))
        x = tap(taps, "resid_mid", x)
        if (cross := self.cross) is not None and self.cross_residual is not None:
            x = self.cross_residual(x, lambda y: cross(y, memory, memory_mask, taps=scope(taps, "cross")), scope(taps, "cross_residual"))
            x = tap(taps, "resid_cross", x)
        x = self.ff_residual(x, lambda y: self.ff(y, scope(taps, "ff")), scope(taps, "ff_residual"))
        x = tap(taps, "resid_post", x)
        return x
