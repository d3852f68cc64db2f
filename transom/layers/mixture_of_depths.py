"""Mixture of depths (MoD): a router selects the tokens that a block processes.

Two implementations give the same result: ``all_tokens``, the reference, and ``selected_tokens``, which computes only the selected tokens.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.depth import MixtureOfDepthsConfig
from transom.layers.cache import RoutedKVCache
from transom.layers.context import AttentionContext, BlockContext
from transom.layers.observe import observe
from transom.layers.position_encoding import RotaryCosSin
from transom.layers.value_residual import ValueResidualTerm

BlockFunction = Callable[..., tuple[Tensor, Any]]
"""A block as a function of (residual stream, context, encoder output, value residual) that returns (residual stream, values)."""


class SelectedTokens(NamedTuple):
    """Indices of the selected tokens of each row, ascending, padded to the length of the row with the most selected tokens.

    Attributes:
        indices: indices of the tokens in their row.
        valid: True at selected tokens, False at padding.
    """

    indices: Int[Tensor, "batch selected"]
    valid: Bool[Tensor, "batch selected"]


def gather_selected(selected: Bool[Tensor, "batch length"]) -> SelectedTokens:
    """Return the indices of the tokens of each row at which ``selected`` is True."""
    n_selected = int(selected.sum(1).max())
    indices = selected.int().argsort(dim=1, descending=True, stable=True)[:, :n_selected]
    return SelectedTokens(indices, selected.gather(1, indices))


def select_tokens(ctx: AttentionContext, selected: SelectedTokens, keys: Bool[Tensor, "batch key"] | None = None) -> AttentionContext:
    """Return the self-attention context of the selected tokens: mask, bias and rotary tables restricted to these tokens.

    Args:
        ctx: context of all tokens, with dense masks and biases.
        selected: selected tokens of this pass, which become the queries.
        keys: True at the selected tokens among all cached tokens; None without a cache: the keys are then the selected tokens.
    """
    assert ctx.block_mask is None and ctx.segment_mask is None, "a mixture-of-depths block needs dense masks"
    mask, bias = (x if x is None else _rows(x, selected.indices) for x in (ctx.mask, ctx.bias))
    if keys is None:
        mask, bias = (x if x is None else _columns(x, selected.indices) for x in (mask, bias))
        visible = selected.valid
    else:
        visible = keys if ctx.key_indices is None else keys[:, ctx.key_indices]
    visible = visible[:, None, None]
    rotary = None if ctx.rotary is None else RotaryCosSin(*(_rows(x, selected.indices) for x in ctx.rotary))
    return replace(ctx, mask=visible if mask is None else mask & visible, bias=bias, rotary=rotary, token_mask=selected.valid)


def select_queries(ctx: AttentionContext, selected: SelectedTokens) -> AttentionContext:
    """Return the cross-attention context of the selected tokens: the mask restricted to these queries."""
    return replace(ctx, mask=None if ctx.mask is None else _rows(ctx.mask, selected.indices))


def _rows(x: Tensor, indices: Tensor) -> Tensor:
    """Gather ``indices`` along axis 2 of (batch, heads, length, width); return ``x`` unchanged if that axis has size 1."""
    if x.shape[2] == 1:
        return x
    return x.expand(len(indices), -1, -1, -1).gather(2, indices[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def _columns(x: Tensor, indices: Tensor) -> Tensor:
    """Gather ``indices`` along axis 3 of (batch, heads, length, width); return ``x`` unchanged if that axis has size 1."""
    if x.shape[3] == 1:
        return x
    return x.expand(len(indices), -1, -1, -1).gather(3, indices[:, None, None].expand(-1, x.shape[1], x.shape[2], -1))


def all_tokens(
    block: BlockFunction, x: Tensor, selected: Tensor, ctx: BlockContext, memory: Any, value_residual: ValueResidualTerm | None
) -> Float[Tensor, "batch length d_model"]:
    """Compute Block(x) - x of the selected tokens, and 0 for all others, by running the block on all tokens.

    Keys that are not selected are masked. This is the reference; it does not support a cache.
    """
    assert ctx.attention.cache is None, "the reference has no cache"
    visible, attention = selected[:, None, None], ctx.attention
    mask = visible if attention.mask is None else attention.mask & visible
    selection = replace(ctx, token_mask=selected, attention=replace(attention, mask=mask, token_mask=selected))
    return (block(x, selection, memory, value_residual)[0] - x) * selected[:, :, None]


def selected_tokens(
    block: BlockFunction, x: Tensor, selected: Tensor, ctx: BlockContext, memory: Any, value_residual: ValueResidualTerm | None
) -> Float[Tensor, "batch length d_model"]:
    """Compute Block(x) - x of the selected tokens, and 0 for all others, by running the block on shorter rows of only these tokens."""
    selection, cache = gather_selected(selected), ctx.attention.cache
    keys = None
    if cache is not None:
        assert isinstance(cache, RoutedKVCache), "a block with a depth router needs a RoutedKVCache"
        keys = cache.reserve(selected, selection.indices)
    if not selection.indices.shape[1]:
        return torch.zeros_like(x)
    index = selection.indices[:, :, None].expand(-1, -1, x.shape[2])
    x_selected = x.gather(1, index)
    if value_residual is not None:
        value_residual = value_residual._replace(values=_rows(value_residual.values, selection.indices))
    attention, cross = select_tokens(ctx.attention, selection, keys), select_queries(ctx.cross, selection)
    selected_ctx = replace(ctx, token_mask=selection.valid, attention=attention, cross=cross)
    y = block(x_selected, selected_ctx, memory, value_residual)[0] - x_selected
    return torch.zeros_like(x, dtype=y.dtype).scatter(1, index, y * selection.valid[:, :, None])


class DepthRouter(nn.Module):
    """Selects the tokens that a block processes: x' = x + r (Block(x) - x) for these, x' = x for all others (Raposo et al. 2024, eq. 1).

    The score r = w x + b is computed in float32 or wider. In training the tokens with the largest scores of each row are selected
    (expert-choice routing), in evaluation all tokens with a score above 0.

    Attributes:
        path: function that runs the block: ``selected_tokens``, or its reference ``all_tokens``.
    """

    def __init__(self, config: MixtureOfDepthsConfig, d_model: int) -> None:
        """Initialize w and b, the weight and bias of the linear layer ``map``."""
        super().__init__()
        self.config = config
        self.map = nn.Linear(d_model, 1)
        self.path = selected_tokens

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        block: BlockFunction,
        ctx: BlockContext = BlockContext(),
        memory: Any = None,
        value_residual: ValueResidualTerm | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the residual stream after ``block``; ``ctx``, ``memory`` and ``value_residual`` are the arguments of the block."""
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            r = F.linear(x.to(wide), self.map.weight.to(wide), self.map.bias.to(wide))[:, :, 0]
        r = observe(ctx, self, "score", r)
        y = self.path(block, x, self.select(r, ctx.token_mask), ctx, memory, value_residual)
        return x + r[:, :, None].to(x.dtype) * y.to(x.dtype)

    def select(self, r: Float[Tensor, "batch length"], token_mask: Bool[Tensor, "#batch length"] | None) -> Bool[Tensor, "batch length"]:
        """Return True at selected tokens.

        In training the fraction ``capacity`` of the tokens of each row is selected, those with the largest scores r; in evaluation all
        tokens with r > 0. Padding is never selected.
        """
        valid = torch.ones_like(r, dtype=torch.bool) if token_mask is None else token_mask.expand_as(r)
        if not self.training:
            return (r > 0) & valid
        n_selected = (self.config.capacity * valid.sum(1, keepdim=True)).ceil()
        order = r.detach().masked_fill(~valid, -torch.inf).argsort(dim=1, descending=True, stable=True)
        return (order.argsort(1) < n_selected) & valid

    def attention_context(
        self, r: Float[Tensor, "batch length"], token_mask: Bool[Tensor, "#batch length"] | None, ctx: AttentionContext, cross: bool
    ) -> AttentionContext:
        """Return the context of self-attention, or with ``cross`` of cross-attention, for the tokens that scores ``r`` select."""
        selected = gather_selected(self.select(r, token_mask))
        return select_queries(ctx, selected) if cross else select_tokens(ctx, selected)


def router_bce_sum(r: Float[Tensor, "tokens"], selected: Bool[Tensor, "tokens"]) -> Float[Tensor, ""]:
    """Return the binary cross-entropy between sigmoid(r) and ``selected``, summed over tokens (Raposo et al. 2024, section 3.5)."""
    return F.binary_cross_entropy_with_logits(r, selected.to(r), reduction="sum")
