"""Mixture of depths (MoD): a router selects the tokens that a block processes; a reference, and a path on these tokens only."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.depth import MixtureOfDepths
from transom.layers.cache import RoutedCache
from transom.layers.context import AttentionContext, BlockContext
from transom.layers.observe import observe
from transom.layers.position import Rotation
from transom.layers.value_residual import FirstValues

PassBlock = Callable[..., tuple[Tensor, Any]]
"""A block as a function of (residual stream, context, encoder output, value residual)."""


class Chosen(NamedTuple):
    """Selected tokens of each row, in order, padded to the row with the most.

    Attributes:
        places: indices of the tokens in their row.
        real: False at padding: rows with fewer selected tokens.
    """

    places: Int[Tensor, "batch chosen"]
    real: Bool[Tensor, "batch chosen"]


def gather_chosen(chosen: Bool[Tensor, "batch length"]) -> Chosen:
    """Return the indices of the selected tokens of each row."""
    most = int(chosen.sum(1).max())
    places = chosen.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    return Chosen(places, chosen.gather(1, places))


def select_tokens(ctx: AttentionContext, chosen: Chosen, keys: Bool[Tensor, "batch key"] | None = None) -> AttentionContext:
    """Restrict self-attention to selected tokens.

    Args:
        ctx: context of all tokens, with dense masks and biases.
        chosen: selected tokens of this pass: the queries.
        keys: True at selected keys of the cache; None without a cache, where the keys are the queries.
    """
    assert ctx.tiles is None and ctx.segments is None, "a mixture-of-depths block needs dense masks"
    mask, bias = (x if x is None else _rows(x, chosen.places) for x in (ctx.mask, ctx.bias))
    if keys is None:
        mask, bias = (x if x is None else _columns(x, chosen.places) for x in (mask, bias))
        taken = chosen.real
    else:
        taken = keys if ctx.visible_keys is None else keys[:, ctx.visible_keys]
    taken = taken[:, None, None]
    rotation = None if ctx.rotation is None else Rotation(*(_rows(x, chosen.places) for x in ctx.rotation))
    return replace(ctx, mask=taken if mask is None else mask & taken, bias=bias, rotation=rotation, token_mask=chosen.real)


def select_queries(ctx: AttentionContext, chosen: Chosen) -> AttentionContext:
    """Restrict cross-attention to selected queries."""
    return replace(ctx, mask=None if ctx.mask is None else _rows(ctx.mask, chosen.places))


def _rows(x: Tensor, places: Tensor) -> Tensor:
    """Gather along the query axis of (batch, heads, length, width), unless it is broadcast."""
    if x.shape[2] == 1:
        return x
    return x.expand(len(places), -1, -1, -1).gather(2, places[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def _columns(x: Tensor, places: Tensor) -> Tensor:
    """Gather along the last axis, unless it is broadcast."""
    if x.shape[3] == 1:
        return x
    return x.expand(len(places), -1, -1, -1).gather(3, places[:, None, None].expand(-1, x.shape[1], x.shape[2], -1))


def every_token(
    block: PassBlock, x: Tensor, chosen: Tensor, ctx: BlockContext, memory: Any, first_values: FirstValues | None
) -> Float[Tensor, "batch length d_model"]:
    """Compute Block(x) - x of selected tokens by running the block on all tokens with other keys masked: the reference, without a cache."""
    assert ctx.attention.cache is None, "the reference has no cache"
    taken, attention = chosen[:, None, None], ctx.attention
    mask = taken if attention.mask is None else attention.mask & taken
    here = replace(ctx, token_mask=chosen, attention=replace(attention, mask=mask, token_mask=chosen))
    return (block(x, here, memory, first_values)[0] - x) * chosen[:, :, None]


def only_chosen(
    block: PassBlock, x: Tensor, chosen: Tensor, ctx: BlockContext, memory: Any, first_values: FirstValues | None
) -> Float[Tensor, "batch length d_model"]:
    """Compute the same on the selected tokens only, gathered into a shorter batch."""
    here, cache = gather_chosen(chosen), ctx.attention.cache
    keys = None
    if cache is not None:
        assert isinstance(cache, RoutedCache), "a block with a depth router needs a RoutedCache"
        keys = cache.expect(chosen, here.places)
    if not here.places.shape[1]:
        return torch.zeros_like(x)
    across = here.places[:, :, None].expand(-1, -1, x.shape[2])
    part = x.gather(1, across)
    if first_values is not None:
        first_values = first_values._replace(values=_rows(first_values.values, here.places))
    attention, cross = select_tokens(ctx.attention, here, keys), select_queries(ctx.cross, here)
    part_ctx = replace(ctx, token_mask=here.real, attention=attention, cross=cross)
    y = block(part, part_ctx, memory, first_values)[0] - part
    return torch.zeros_like(x, dtype=y.dtype).scatter(1, across, y * here.real[:, :, None])


class DepthRouter(nn.Module):
    """Selects the tokens that a block processes: x' = x + r (Block(x) - x) for these, x' = x for others (Raposo et al. 2024, eq. 1).

    r = w x + b, in float32 or wider. Training selects the top scores of each row (expert-choice routing), evaluation the scores above 0.

    Attributes:
        path: ``only_chosen``, or its reference ``every_token``, whose shapes do not depend on data.
    """

    def __init__(self, brick: MixtureOfDepths, d_model: int) -> None:
        """Initialize w and b (``map``)."""
        super().__init__()
        self.brick = brick
        self.map = nn.Linear(d_model, 1)
        self.path = only_chosen

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        block: PassBlock,
        ctx: BlockContext = BlockContext(),
        memory: Any = None,
        first_values: FirstValues | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Apply ``block`` to the selected tokens; the other arguments are the block's."""
        exact = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            r = F.linear(x.to(exact), self.map.weight.to(exact), self.map.bias.to(exact))[:, :, 0]
        r = observe(ctx, self, "score", r)
        y = self.path(block, x, self.choose(r, ctx.token_mask), ctx, memory, first_values)
        return x + r[:, :, None].to(x.dtype) * y.to(x.dtype)

    def choose(self, r: Float[Tensor, "batch length"], token_mask: Bool[Tensor, "#batch length"] | None) -> Bool[Tensor, "batch length"]:
        """Select tokens by their scores r: the top fraction ``capacity`` of each row in training, r > 0 in evaluation; never padding."""
        there = torch.ones_like(r, dtype=torch.bool) if token_mask is None else token_mask.expand_as(r)
        if not self.training:
            return (r > 0) & there
        most = (self.brick.capacity * there.sum(1, keepdim=True)).ceil()
        order = r.detach().masked_fill(~there, -torch.inf).argsort(dim=1, descending=True, stable=True)
        return (order.argsort(1) < most) & there

    def attention_context(
        self, r: Float[Tensor, "batch length"], token_mask: Bool[Tensor, "#batch length"] | None, ctx: AttentionContext, cross: bool
    ) -> AttentionContext:
        """Restrict self-attention of the block, or with ``cross`` its cross-attention, to the tokens selected by scores ``r``."""
        chosen = gather_chosen(self.choose(r, token_mask))
        return select_queries(ctx, chosen) if cross else select_tokens(ctx, chosen)


def agreement_loss_sum(r: Float[Tensor, "tokens"], chosen: Bool[Tensor, "tokens"]) -> Float[Tensor, ""]:
    """Compute the summed binary cross-entropy between sigmoid(r) and whether a token was selected (Raposo et al. 2024, section 3.5)."""
    return F.binary_cross_entropy_with_logits(r, chosen.to(r), reduction="sum")
