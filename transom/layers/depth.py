"""Mixture of depths: a router in front of a block, a readable reference, and a path on which only chosen tokens are computed."""

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
"""A block, called with the stream, its context, the memory and the first block's values."""


class Chosen(NamedTuple):
    """The chosen tokens of each row, gathered in their order.

    Attributes:
        places: where they stand in their row.
        real: False where a row has fewer than another.
    """

    places: Int[Tensor, "batch chosen"]
    real: Bool[Tensor, "batch chosen"]


def gather_chosen(chosen: Bool[Tensor, "batch length"]) -> Chosen:
    """Give the places of the chosen tokens, as many a row as the row with the most of them has."""
    most = int(chosen.sum(1).max())
    places = chosen.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    return Chosen(places, chosen.gather(1, places))


def select_tokens(ctx: AttentionContext, chosen: Chosen, keys: Bool[Tensor, "batch key"] | None = None) -> AttentionContext:
    """Restrict self-attention to chosen tokens.

    Args:
        ctx: of all tokens; masks and biases dense.
        chosen: the tokens that ask.
        keys: True at the keys that were chosen, of a cache; None where the keys are the tokens that ask.
    """
    assert ctx.tiles is None and ctx.segments is None, "masks are dense where tokens are chosen"
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
    """Restrict attention to a memory to the queries that were chosen."""
    return replace(ctx, mask=None if ctx.mask is None else _rows(ctx.mask, chosen.places))


def _rows(x: Tensor, places: Tensor) -> Tensor:
    """Gather along the last axis but one of (batch, heads, length, width), unless that is broadcast."""
    if x.shape[2] == 1:
        return x
    return x.expand(len(places), -1, -1, -1).gather(2, places[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def _columns(x: Tensor, places: Tensor) -> Tensor:
    """Gather along the last axis, unless that is broadcast."""
    if x.shape[3] == 1:
        return x
    return x.expand(len(places), -1, -1, -1).gather(3, places[:, None, None].expand(-1, x.shape[1], x.shape[2], -1))


def every_token(
    block: PassBlock, x: Tensor, chosen: Tensor, ctx: BlockContext, memory: Any, first_values: FirstValues | None
) -> Float[Tensor, "batch length d_model"]:
    """Compute by the equation: the block on all tokens, the keys of which are masked where they were not chosen; no cache."""
    assert ctx.attention.cache is None, "a cache is for answering, which need not be slow"
    taken, attention = chosen[:, None, None], ctx.attention
    mask = taken if attention.mask is None else attention.mask & taken
    here = replace(ctx, token_mask=chosen, attention=replace(attention, mask=mask, token_mask=chosen))
    return (block(x, here, memory, first_values)[0] - x) * chosen[:, :, None]


def only_chosen(
    block: PassBlock, x: Tensor, chosen: Tensor, ctx: BlockContext, memory: Any, first_values: FirstValues | None
) -> Float[Tensor, "batch length d_model"]:
    """Compute the same on the chosen tokens alone, gathered side by side."""
    here, cache = gather_chosen(chosen), ctx.attention.cache
    keys = None
    if cache is not None:
        assert isinstance(cache, RoutedCache), "a routed block's cache knows who was chosen"
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
    """Chooses the tokens that pass a block: x' = x + r (Block(x) - x) for these, x' = x for the others (Raposo et al. 2024, eq. 1).

    r = w x + b, in float32 at least. Training chooses the largest of each row, evaluation those above 0.

    Attributes:
        path: ``only_chosen``, or its reference ``every_token``, whose shapes depend on no data.
    """

    def __init__(self, brick: MixtureOfDepths, d_model: int) -> None:
        """Make w and b."""
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
        """Let the chosen tokens pass the block; the other arguments are the block's."""
        exact = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            r = F.linear(x.to(exact), self.map.weight.to(exact), self.map.bias.to(exact))[:, :, 0]
        r = observe(ctx, self, "score", r)
        y = self.path(block, x, self.choose(r, ctx.token_mask), ctx, memory, first_values)
        return x + r[:, :, None].to(x.dtype) * y.to(x.dtype)

    def choose(self, r: Float[Tensor, "batch length"], token_mask: Bool[Tensor, "#batch length"] | None) -> Bool[Tensor, "batch length"]:
        """Choose tokens by their scores; padding is never chosen."""
        there = torch.ones_like(r, dtype=torch.bool) if token_mask is None else token_mask.expand_as(r)
        if not self.training:
            return (r > 0) & there
        most = (self.brick.capacity * there.sum(1, keepdim=True)).ceil()
        order = r.detach().masked_fill(~there, -torch.inf).argsort(dim=1, descending=True, stable=True)
        return (order.argsort(1) < most) & there

    def attention_context(
        self, r: Float[Tensor, "batch length"], token_mask: Bool[Tensor, "#batch length"] | None, ctx: AttentionContext, cross: bool
    ) -> AttentionContext:
        """Restrict an attention of the block to the tokens that were chosen by these scores; with ``cross``, that to the memory."""
        chosen = gather_chosen(self.choose(r, token_mask))
        return select_queries(ctx, chosen) if cross else select_tokens(ctx, chosen)


def agreement_loss_sum(r: Float[Tensor, "tokens"], chosen: Bool[Tensor, "tokens"]) -> Float[Tensor, ""]:
    """Sum over tokens the cross-entropy between sigmoid(r) and whether a token was chosen (Raposo et al. 2024, section 3.5)."""
    return F.binary_cross_entropy_with_logits(r, chosen.to(r), reduction="sum")
