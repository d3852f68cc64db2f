"""The Transformer block: self-attention, optional cross-attention and feed-forward on one residual stream.

``ctx`` carries all inputs of a layer besides the tensors that the layer transforms: masks, rotary tables, score biases, the key-value
cache, the padding mask and an optional observer. The model builds ``ctx`` once per pass. ``x = observe(ctx, self, name, x)`` returns ``x``
unchanged unless an observer replaces it, so a first reading may skip these lines. Norm and feed-forward receive ``ctx`` for the observer.
Batch norm, experts with a capacity and the depth router also read the padding mask.

The feed-forward network transforms each token independently: W_2 Dropout(f(W_1 x + b_1)) + b_2, with f = GELU (tanh form) in GPT-2. The
recipe sets the dropout, ``feed_forward_dropout``. It may instead select a gated network, W_2 Dropout(f(W_g x) * (W_1 x)), such as SwiGLU,
or a mixture of experts (MoE).
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from transom.config.architecture import TransformerConfig
from transom.config.depth import MixtureOfDepthsConfig
from transom.layers.approximations.approximate_attention import build_attention
from transom.layers.attention import Attention
from transom.layers.cache import ProjectedMemory
from transom.layers.context import BlockContext
from transom.layers.dropout import Dropout
from transom.layers.feed_forward import build_feed_forward
from transom.layers.mixture_of_depths import DepthRouter
from transom.layers.norm import build_norm
from transom.layers.observe import observe
from transom.layers.value_residual import ValueResidualTerm

ResidualStream = Float[Tensor, "rows query d_model"]
"""Residual stream. ``rows`` is the batch size, in beam search times the number of beams; ``query`` is the number of tokens of this pass."""

Values = Float[Tensor, "rows kv_heads query d_value"]
"""Self-attention values V of the tokens of this pass (cached tokens excluded), before the value residual is mixed in."""

BlockMemory = Float[Tensor, "batch key d_model"] | ProjectedMemory
"""Encoder output, or its projection for the cross-attention of one block: keys and values, in linear attention sums over them."""


class ResidualConnection(nn.Module):
    """Norm and residual sum of one sub-layer: ``norm``, and ``add(x, y)`` = x + Dropout(y).

    The block decides whether ``norm`` is applied before the sub-layer or after the sum.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = build_norm(config.norm, config.d_model)
        self.dropout = Dropout(config.dropout)

    def add(self, x: Float[Tensor, "rows query d_model"], y: Float[Tensor, "rows query d_model"]) -> Float[Tensor, "rows query d_model"]:
        """Return x + Dropout(y). On a CPU the dropout probability is rounded to a multiple of 1/256: 0.1 to 26/256."""
        return self.dropout.add(x, y)


class SandwichResidualConnection(ResidualConnection):
    """A ``ResidualConnection`` with a second norm, ``norm_out``, which the block applies to the sub-layer's output before ``add``."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.norm_out = build_norm(config.norm, config.d_model)


class Block(nn.Module, ABC):
    """One Transformer block of a stack (Vaswani et al. 2017, figure 1); only the decoder of an encoder-decoder has cross-attention.

    There is one subclass per placement of the norms: pre, post, sandwich, parallel, and parallel with separate norms.

    Attributes:
        parallel: whether all sub-layers read the stream before the block, so that there is no stream between them.
        depth: mixture-of-depths router (Raposo et al. 2024); None by default. The stack, not the block, calls the router:
            ``depth(x, block, ...)`` returns x + r (Block(x) - x) for selected tokens and x for all others, with the token's score
            r = w x + b (no sigmoid). In training a fixed fraction of the tokens of each row is selected, those with the largest r; in
            evaluation all tokens with r > 0. Selected tokens attend to selected tokens only.
    """

    parallel: ClassVar[bool] = False
    attn: Attention
    cross: Attention | None

    def __init__(self) -> None:
        """Initialize without a depth router."""
        super().__init__()
        self.depth: DepthRouter | None = None

    @abstractmethod
    def forward(
        self,
        x: ResidualStream,
        ctx: BlockContext = BlockContext(),
        memory: BlockMemory | None = None,
        value_residual: ValueResidualTerm | None = None,
    ) -> tuple[ResidualStream, Values]:
        """Pass the residual stream through the sub-layers.

        Args:
            x: residual stream.
            ctx: context of the pass; ``ctx.attention`` is for self-attention, ``ctx.cross`` for cross-attention.
            memory: encoder output for cross-attention, or its keys and values; None without cross-attention.
            value_residual: V_1, the values of the stack's first block, and the mixing weights of this block; None in the first block and
                without value residuals.

        Returns:
            The new residual stream, and the values V of this block. The stack keeps V of its first block as V_1.
        """

    @abstractmethod
    def attention_input(self, x: ResidualStream, ctx: BlockContext) -> ResidualStream:
        """Return the input of self-attention: Norm(x), or x in a post-norm block."""

    def update_cache(self, x: ResidualStream, ctx: BlockContext, value_residual: ValueResidualTerm | None = None) -> None:
        """Append keys and values of ``x`` to the cache without computing the block; early exit needs this for blocks that a token skips."""
        self.attn.update_cache(self.attention_input(x, ctx), ctx.attention, value_residual)


class SequentialBlock(Block):
    """A block with a norm per sub-layer. Unless it is parallel, it applies its sub-layers one after another.

    Each sub-layer has a ``ResidualConnection`` with ``norm`` and ``add(x, y)`` = x + Dropout(y);
    a ``SandwichResidualConnection`` also has ``norm_out``.
    """

    residual_type: type[ResidualConnection] = ResidualConnection
    attn_residual: ResidualConnection
    cross_residual: ResidualConnection
    ff_residual: ResidualConnection

    def __init__(self, config: TransformerConfig, cross: bool) -> None:
        """Initialize the sub-layers; ``cross`` adds cross-attention between self-attention and feed-forward."""
        super().__init__()
        self.attn, self.attn_residual = build_attention(config), self.residual_type(config)
        self.cross = build_attention(config) if cross else None
        if cross:
            self.cross_residual = self.residual_type(config)
        self.ff = build_feed_forward(config.feed_forward, config.d_model, config.d_ff, config.feed_forward_dropout)
        self.ff_residual = self.residual_type(config)

    def attention_input(self, x: ResidualStream, ctx: BlockContext) -> ResidualStream:
        """Return Norm(x)."""
        return self.attn_residual.norm(x, ctx)


class PreNormBlock(SequentialBlock):
    """x' = x + Dropout(f(Norm(x))) for each sub-layer f (Xiong et al. 2020, figure 1b)."""

    def forward(
        self,
        x: ResidualStream,
        ctx: BlockContext = BlockContext(),
        memory: BlockMemory | None = None,
        value_residual: ValueResidualTerm | None = None,
    ) -> tuple[ResidualStream, Values]:
        """Apply self-attention, cross-attention (if any) and feed-forward in turn, each to the normalized stream."""
        x = observe(ctx, self, "resid_pre", x)
        y, values = self.attn(self.attn_residual.norm(x, ctx), ctx.attention, None, value_residual)
        x = self.attn_residual.add(x, y)
        x = observe(ctx, self, "resid_mid", x)
        if self.cross is not None:
            x = self.cross_residual.add(x, self.cross(self.cross_residual.norm(x, ctx), ctx.cross, memory)[0])
            x = observe(ctx, self, "resid_cross", x)
        x = self.ff_residual.add(x, self.ff(self.ff_residual.norm(x, ctx), ctx))
        return observe(ctx, self, "resid_post", x), values


class PostNormBlock(SequentialBlock):
    """x' = Norm(x + Dropout(f(x))) for each sub-layer f (Vaswani et al. 2017, section 5.4)."""

    def attention_input(self, x: ResidualStream, ctx: BlockContext) -> ResidualStream:
        """Return ``x`` unchanged."""
        return x

    def forward(
        self,
        x: ResidualStream,
        ctx: BlockContext = BlockContext(),
        memory: BlockMemory | None = None,
        value_residual: ValueResidualTerm | None = None,
    ) -> tuple[ResidualStream, Values]:
        """Apply self-attention, cross-attention (if any) and feed-forward in turn; normalize the stream after each sum."""
        x = observe(ctx, self, "resid_pre", x)
        y, values = self.attn(x, ctx.attention, None, value_residual)
        x = self.attn_residual.norm(self.attn_residual.add(x, y), ctx)
        x = observe(ctx, self, "resid_mid", x)
        if self.cross is not None:
            x = self.cross_residual.norm(self.cross_residual.add(x, self.cross(x, ctx.cross, memory)[0]), ctx)
            x = observe(ctx, self, "resid_cross", x)
        x = self.ff_residual.norm(self.ff_residual.add(x, self.ff(x, ctx)), ctx)
        return observe(ctx, self, "resid_post", x), values


class SandwichBlock(SequentialBlock):
    """x' = x + Dropout(Norm_out(f(Norm(x)))) for each sub-layer f (Ding et al. 2021; Gemma Team 2024)."""

    residual_type = SandwichResidualConnection
    attn_residual: SandwichResidualConnection
    cross_residual: SandwichResidualConnection
    ff_residual: SandwichResidualConnection

    def forward(
        self,
        x: ResidualStream,
        ctx: BlockContext = BlockContext(),
        memory: BlockMemory | None = None,
        value_residual: ValueResidualTerm | None = None,
    ) -> tuple[ResidualStream, Values]:
        """Apply self-attention, cross-attention (if any) and feed-forward in turn; normalize the input and the output of each."""
        x = observe(ctx, self, "resid_pre", x)
        y, values = self.attn(self.attn_residual.norm(x, ctx), ctx.attention, None, value_residual)
        x = self.attn_residual.add(x, self.attn_residual.norm_out(y, ctx))
        x = observe(ctx, self, "resid_mid", x)
        if self.cross is not None:
            y = self.cross(self.cross_residual.norm(x, ctx), ctx.cross, memory)
            x = self.cross_residual.add(x, self.cross_residual.norm_out(y[0], ctx))
            x = observe(ctx, self, "resid_cross", x)
        x = self.ff_residual.add(x, self.ff_residual.norm_out(self.ff(self.ff_residual.norm(x, ctx), ctx), ctx))
        return observe(ctx, self, "resid_post", x), values


class ParallelSeparateBlock(SequentialBlock):
    """x' = x + Dropout(Attention(Norm_1(x))) + Dropout(FFN(Norm_2(x))) (Black et al. 2022, section 2.1; GPT-NeoX).

    With a memory, Dropout(CrossAttention(Norm_3(x), memory)) is added too.
    """

    parallel = True

    def forward(
        self,
        x: ResidualStream,
        ctx: BlockContext = BlockContext(),
        memory: BlockMemory | None = None,
        value_residual: ValueResidualTerm | None = None,
    ) -> tuple[ResidualStream, Values]:
        """Apply every sub-layer to the stream, normalized by its own norm, and add all outputs to the stream."""
        x = observe(ctx, self, "resid_pre", x)
        y, values = self.attn(self.attn_residual.norm(x, ctx), ctx.attention, None, value_residual)
        after = self.attn_residual.add(x, y)
        if self.cross is not None:
            after = self.cross_residual.add(after, self.cross(self.cross_residual.norm(x, ctx), ctx.cross, memory)[0])
        after = self.ff_residual.add(after, self.ff(self.ff_residual.norm(x, ctx), ctx))
        return observe(ctx, self, "resid_post", after), values


class ParallelBlock(Block):
    """x' = x + Dropout(Attention(h)) + Dropout(FFN(h)), h = Norm(x) (Wang & Komatsuzaki 2021; PaLM, 2022, section 2).

    With a memory, Dropout(CrossAttention(h, memory)) is added too.
    """

    parallel = True

    def __init__(self, config: TransformerConfig, cross: bool) -> None:
        """Initialize the sub-layers and their norm; ``cross`` adds cross-attention."""
        super().__init__()
        self.norm = build_norm(config.norm, config.d_model)
        self.attn = build_attention(config)
        self.cross = build_attention(config) if cross else None
        self.ff = build_feed_forward(config.feed_forward, config.d_model, config.d_ff, config.feed_forward_dropout)
        self.dropout = Dropout(config.dropout)

    def attention_input(self, x: ResidualStream, ctx: BlockContext) -> ResidualStream:
        """Return Norm(x)."""
        return self.norm(x, ctx)

    def forward(
        self,
        x: ResidualStream,
        ctx: BlockContext = BlockContext(),
        memory: BlockMemory | None = None,
        value_residual: ValueResidualTerm | None = None,
    ) -> tuple[ResidualStream, Values]:
        """Normalize the stream once, apply every sub-layer to the result, and add all outputs to the stream."""
        x = observe(ctx, self, "resid_pre", x)
        h = self.norm(x, ctx)
        y, values = self.attn(h, ctx.attention, None, value_residual)
        x = self.dropout.add(x, y)
        if self.cross is not None:
            y, _ = self.cross(h, ctx.cross, memory)
            x = self.dropout.add(x, y)
        x = self.dropout.add(x, self.ff(h, ctx))
        return observe(ctx, self, "resid_post", x), values


BLOCK_TYPES: dict[str, type[SequentialBlock] | type[ParallelBlock]] = {
    "pre": PreNormBlock,
    "post": PostNormBlock,
    "sandwich": SandwichBlock,
    "parallel": ParallelBlock,
    "parallel-separate": ParallelSeparateBlock,
}
"""Block class per ``norm_placement`` of a recipe."""


def build_block(config: TransformerConfig, cross: bool, layer_index: int = 0) -> SequentialBlock | ParallelBlock:
    """Build block number ``layer_index`` of a stack, from 0. With mixture of depths, blocks 1, 3, 5, ... (by default) get a router."""
    block = BLOCK_TYPES[config.norm_placement](config, cross)
    if isinstance(config.depth, MixtureOfDepthsConfig) and config.depth.routed(layer_index):
        block.depth = DepthRouter(config.depth, config.d_model)
    return block
