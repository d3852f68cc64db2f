"""The Transformer block: attention, cross-attention where there is a memory, and feed-forward on one residual stream."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from transom.config.architecture import Transformer
from transom.config.depth import MixtureOfDepths
from transom.layers.approximations.approximate import build_attention
from transom.layers.attention import Attention
from transom.layers.cache import ProjectedMemory
from transom.layers.context import BlockContext
from transom.layers.depth import DepthRouter
from transom.layers.dropout import Dropout
from transom.layers.feed_forward import build_feed_forward
from transom.layers.norm import build_norm
from transom.layers.observe import observe
from transom.layers.value_residual import FirstValues

Stream = Float[Tensor, "rows query d_model"]
Values = Float[Tensor, "rows kv_heads query d_value"]
Memory = Float[Tensor, "batch key d_model"] | ProjectedMemory


class Residual(nn.Module):
    """A sub-layer's norm, and its sum with the stream: x + Dropout(y).

    Where the norm stands is the block's to say.
    """

    def __init__(self, config: Transformer) -> None:
        """Make norm and dropout."""
        super().__init__()
        self.norm = build_norm(config.norm, config.d_model)
        self.dropout = Dropout(config.dropout)

    def add(self, x: Float[Tensor, "rows query d_model"], y: Float[Tensor, "rows query d_model"]) -> Float[Tensor, "rows query d_model"]:
        """Return x + Dropout(y), on a CPU in one pass over memory."""
        return self.dropout.add(x, y)


class SandwichResidual(Residual):
    """The same with a second norm, of the sub-layer's output: x + Dropout(Norm_out(y))."""

    def __init__(self, config: Transformer) -> None:
        """Make both norms and the dropout."""
        super().__init__(config)
        self.norm_out = build_norm(config.norm, config.d_model)


class Block(nn.Module, ABC):
    """One layer of an encoder or, with cross-attention, of a decoder (Vaswani et al. 2017, figure 1); a class for each wiring of norms.

    Attributes:
        depth: chooses the tokens that pass the block (mixture of depths); None where all do.
    """

    attn: Attention
    cross: Attention | None

    def __init__(self) -> None:
        """Let all tokens pass."""
        super().__init__()
        self.depth: DepthRouter | None = None

    @abstractmethod
    def forward(
        self, x: Stream, ctx: BlockContext = BlockContext(), memory: Memory | None = None, first_values: FirstValues | None = None
    ) -> tuple[Stream, Values]:
        """Pass the residual stream through the sub-layers.

        Args:
            x: the stream.
            ctx: masks, positions and caches of attention.
            memory: what cross-attention reads.
            first_values: of the stack's first block, for value residuals.

        Returns:
            The stream, and the block's own values.
        """

    @abstractmethod
    def attention_input(self, x: Stream, ctx: BlockContext) -> Stream:
        """Return what self-attention reads of the stream."""

    def update_cache(self, x: Stream, ctx: BlockContext, first_values: FirstValues | None = None) -> None:
        """Append the keys and values of tokens that do not pass the block to the cache, for later tokens to attend to."""
        self.attn.update_cache(self.attention_input(x, ctx), ctx.attention, first_values)


class SequentialBlock(Block):
    """A block whose sub-layers follow one another, each with its norm and its residual sum."""

    residual_type: type[Residual] = Residual
    attn_residual: Residual
    cross_residual: Residual
    ff_residual: Residual

    def __init__(self, config: Transformer, cross: bool) -> None:
        """Make the sub-layers; ``cross`` adds attention to a memory between self-attention and feed-forward."""
        super().__init__()
        self.attn, self.attn_residual = build_attention(config), self.residual_type(config)
        self.cross = build_attention(config) if cross else None
        if cross:
            self.cross_residual = self.residual_type(config)
        self.ff = build_feed_forward(config.feed_forward, config.d_model, config.d_ff, config.feed_forward_dropout)
        self.ff_residual = self.residual_type(config)

    def attention_input(self, x: Stream, ctx: BlockContext) -> Stream:
        """Return the normalized stream."""
        return self.attn_residual.norm(x, ctx)


class PreNormBlock(SequentialBlock):
    """x' = x + Dropout(f(Norm(x))) for each sub-layer f (Xiong et al. 2020, figure 1b)."""

    def forward(
        self, x: Stream, ctx: BlockContext = BlockContext(), memory: Memory | None = None, first_values: FirstValues | None = None
    ) -> tuple[Stream, Values]:
        """Normalize, attend, add; normalize, transform, add."""
        x = observe(ctx, self, "resid_pre", x)
        y, values = self.attn(self.attn_residual.norm(x, ctx), ctx.attention, None, first_values)
        x = self.attn_residual.add(x, y)
        x = observe(ctx, self, "resid_mid", x)
        if self.cross is not None:
            x = self.cross_residual.add(x, self.cross(self.cross_residual.norm(x, ctx), ctx.cross, memory)[0])
            x = observe(ctx, self, "resid_cross", x)
        x = self.ff_residual.add(x, self.ff(self.ff_residual.norm(x, ctx), ctx))
        x = observe(ctx, self, "resid_post", x)
        return x, values


class PostNormBlock(SequentialBlock):
    """x' = Norm(x + Dropout(f(x))) for each sub-layer f (Vaswani et al. 2017, section 5.4)."""

    def attention_input(self, x: Stream, ctx: BlockContext) -> Stream:
        """Return the stream itself."""
        return x

    def forward(
        self, x: Stream, ctx: BlockContext = BlockContext(), memory: Memory | None = None, first_values: FirstValues | None = None
    ) -> tuple[Stream, Values]:
        """Attend, add, normalize; transform, add, normalize."""
        x = observe(ctx, self, "resid_pre", x)
        y, values = self.attn(x, ctx.attention, None, first_values)
        x = self.attn_residual.norm(self.attn_residual.add(x, y), ctx)
        x = observe(ctx, self, "resid_mid", x)
        if self.cross is not None:
            x = self.cross_residual.norm(self.cross_residual.add(x, self.cross(x, ctx.cross, memory)[0]), ctx)
            x = observe(ctx, self, "resid_cross", x)
        x = self.ff_residual.norm(self.ff_residual.add(x, self.ff(x, ctx)), ctx)
        x = observe(ctx, self, "resid_post", x)
        return x, values


class SandwichBlock(SequentialBlock):
    """x' = x + Dropout(Norm_out(f(Norm(x)))) for each sub-layer f (Ding et al. 2021; Gemma Team 2024)."""

    residual_type = SandwichResidual
    attn_residual: SandwichResidual
    cross_residual: SandwichResidual
    ff_residual: SandwichResidual

    def forward(
        self, x: Stream, ctx: BlockContext = BlockContext(), memory: Memory | None = None, first_values: FirstValues | None = None
    ) -> tuple[Stream, Values]:
        """Normalize, attend, normalize, add; normalize, transform, normalize, add."""
        x = observe(ctx, self, "resid_pre", x)
        y, values = self.attn(self.attn_residual.norm(x, ctx), ctx.attention, None, first_values)
        x = self.attn_residual.add(x, self.attn_residual.norm_out(y, ctx))
        x = observe(ctx, self, "resid_mid", x)
        if self.cross is not None:
            y = self.cross(self.cross_residual.norm(x, ctx), ctx.cross, memory)[0]
            x = self.cross_residual.add(x, self.cross_residual.norm_out(y, ctx))
            x = observe(ctx, self, "resid_cross", x)
        x = self.ff_residual.add(x, self.ff_residual.norm_out(self.ff(self.ff_residual.norm(x, ctx), ctx), ctx))
        x = observe(ctx, self, "resid_post", x)
        return x, values


class ParallelBlock(Block):
    """x' = x + Attention(Norm(x)) + FFN(Norm(x)), one norm for both (Wang & Komatsuzaki 2021; PaLM, 2022, section 2).

    Cross-attention, where there is a memory, reads the same.
    """

    def __init__(self, config: Transformer, cross: bool) -> None:
        """Make the sub-layers and their norm; ``cross`` adds attention to a memory."""
        super().__init__()
        self.norm = build_norm(config.norm, config.d_model)
        self.attn = build_attention(config)
        self.cross = build_attention(config) if cross else None
        self.ff = build_feed_forward(config.feed_forward, config.d_model, config.d_ff, config.feed_forward_dropout)
        self.dropout = Dropout(config.dropout)

    def attention_input(self, x: Stream, ctx: BlockContext) -> Stream:
        """Return the normalized stream."""
        return self.norm(x, ctx)

    def forward(
        self, x: Stream, ctx: BlockContext = BlockContext(), memory: Memory | None = None, first_values: FirstValues | None = None
    ) -> tuple[Stream, Values]:
        """Normalize once; add the output of each sub-layer."""
        x = observe(ctx, self, "resid_pre", x)
        y = self.norm(x, ctx)
        z, values = self.attn(y, ctx.attention, None, first_values)
        x = self.dropout.add(x, z)
        if self.cross is not None:
            x = self.dropout.add(x, self.cross(y, ctx.cross, memory)[0])
        x = self.dropout.add(x, self.ff(y, ctx))
        x = observe(ctx, self, "resid_post", x)
        return x, values


BLOCKS: dict[str, type[SequentialBlock] | type[ParallelBlock]] = {
    "pre": PreNormBlock,
    "post": PostNormBlock,
    "sandwich": SandwichBlock,
    "parallel": ParallelBlock,
}
"""The blocks by their ``norm_placement`` in a recipe."""


def build_block(config: Transformer, cross: bool, place: int = 0) -> SequentialBlock | ParallelBlock:
    """Build the block that a configuration describes for a place of its stack; one that only chosen tokens pass has a router, ``depth``."""
    block = BLOCKS[config.norm_placement](config, cross)
    if isinstance(config.depth, MixtureOfDepths) and config.depth.routed(place):
        block.depth = DepthRouter(config.depth, config.d_model)
    return block
