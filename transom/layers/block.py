"""The Transformer block: attention, cross-attention where there is a memory, and feed-forward on one residual stream."""

from jaxtyping import Float
from torch import Tensor, nn

from transom.config.architecture import Transformer
from transom.config.depth import MixtureOfDepths
from transom.layers.approximations.approximate import build_attention
from transom.layers.cache import BlockCache, Remembered
from transom.layers.depth import DepthRouter
from transom.layers.dropout import Dropout
from transom.layers.feed_forward import build_feed_forward
from transom.layers.masks.sight import EVERYTHING, Sight
from transom.layers.norm import Norm, build_norm
from transom.layers.residual import WIRING, Residual
from transom.layers.tap import Scope, scope, tap


class Block(nn.Module):
    """One layer of an encoder or, with cross-attention, of a decoder (Vaswani et al. 2017, figure 1)."""

    def __init__(self, config: Transformer, cross: bool) -> None:
        """Make the sub-layers; ``cross`` adds attention over a memory between self-attention and feed-forward."""
        super().__init__()

        def norm() -> Norm:
            return build_norm(config.norm, config.d_model)

        def residual() -> Residual:
            return WIRING[config.norm_placement](norm, config.dropout)

        self.attn, self.attn_residual = build_attention(config), residual()
        self.cross = build_attention(config) if cross else None
        self.cross_residual = residual() if cross else None
        self.ff = build_feed_forward(config.feed_forward, config.d_model, config.d_ff, config.feed_forward_dropout)
        self.ff_residual = residual()
        self.depth: DepthRouter | None = None

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        sight: Sight = EVERYTHING,
        memory: Float[Tensor, "batch key d_model"] | Remembered | None = None,
        memory_sight: Sight = EVERYTHING,
        cache: BlockCache | None = None,
        taps: Scope | None = None,
    ) -> Float[Tensor, "rows query d_model"]:
        """Pass the residual stream through the sub-layers; arguments as in ``Attention``, ``memory_sight`` of the memory."""
        x = tap(taps, "resid_pre", x)
        x = self.attn_residual(x, lambda y: self.attn(y, sight, None, cache, scope(taps, "attn")), scope(taps, "attn_residual"), sight.real)
        x = tap(taps, "resid_mid", x)
        if (cross := self.cross) is not None and self.cross_residual is not None:
            x = self.cross_residual(
                x, lambda y: cross(y, memory_sight, memory, None, scope(taps, "cross")), scope(taps, "cross_residual"), sight.real
            )
            x = tap(taps, "resid_cross", x)
        x = self.ff_residual(x, lambda y: self.ff(y, scope(taps, "ff"), sight.real), scope(taps, "ff_residual"), sight.real)
        x = tap(taps, "resid_post", x)
        return x

    def keep(self, x: Float[Tensor, "rows query d_model"], sight: Sight, cache: BlockCache) -> None:
        """Keep tokens that go past the block for later ones to see."""
        self.attn.keep(self.attn_residual.before(x), sight, cache)


class ParallelBlock(nn.Module):
    """The sub-layers side by side on one norm: x' = x + Attention(Norm(x)) + FFN(Norm(x)) (Wang & Komatsuzaki 2021; PaLM, 2022, section 2).

    Cross-attention, where there is a memory, stands beside them.
    """

    def __init__(self, config: Transformer, cross: bool) -> None:
        """Make the sub-layers and their norm."""
        super().__init__()
        self.norm = build_norm(config.norm, config.d_model)
        self.attn = build_attention(config)
        self.cross = build_attention(config) if cross else None
        self.ff = build_feed_forward(config.feed_forward, config.d_model, config.d_ff, config.feed_forward_dropout)
        self.dropout = Dropout(config.dropout)
        self.depth: DepthRouter | None = None

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        sight: Sight = EVERYTHING,
        memory: Float[Tensor, "batch key d_model"] | Remembered | None = None,
        memory_sight: Sight = EVERYTHING,
        cache: BlockCache | None = None,
        taps: Scope | None = None,
    ) -> Float[Tensor, "rows query d_model"]:
        """Add every sub-layer's output on the same input; arguments as in ``Block``."""
        x = tap(taps, "resid_pre", x)
        y = self.norm(x, scope(taps, "norm"), sight.real)
        x = self.dropout.add(x, self.attn(y, sight, None, cache, scope(taps, "attn")))
        if self.cross is not None:
            x = self.dropout.add(x, self.cross(y, memory_sight, memory, None, scope(taps, "cross")))
        x = self.dropout.add(x, self.ff(y, scope(taps, "ff"), sight.real))
        x = tap(taps, "resid_post", x)
        return x

    def keep(self, x: Float[Tensor, "rows query d_model"], sight: Sight, cache: BlockCache) -> None:
        """Keep tokens that go past the block for later ones to see."""
        self.attn.keep(self.norm(x), sight, cache)


def build_block(config: Transformer, cross: bool, place: int = 0) -> Block | ParallelBlock:
    """Build the block that a configuration describes for a place of its stack; one that only chosen tokens pass has a router, ``depth``."""
    block = ParallelBlock(config, cross) if config.norm_placement == "parallel" else Block(config, cross)
    if isinstance(config.depth, MixtureOfDepths) and config.depth.routed(place):
        block.depth = DepthRouter(config.depth, config.d_model)
    return block
