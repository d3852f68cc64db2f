"""Mixture of depths: a router in front of a block, a readable reference, and a path on which only chosen tokens are computed."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.depth import MixtureOfDepths
from transom.layers.cache import BlockCache, RoutedCache
from transom.layers.masks.sight import EVERYTHING, Sight
from transom.layers.position import Rotation
from transom.layers.tap import Scope, tap
from transom.layers.values import FirstValues, Values

PassBlock = Callable[[Tensor, Sight, Sight, BlockCache | None], Tensor]
"""A block as a function of the stream, of what is seen of its own sequence and of the memory, and of the cache."""


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


def chosen_sight(sight: Sight, chosen: Chosen, keys: Bool[Tensor, "batch key"] | None = None) -> Sight:
    """Restrict what a block sees to chosen tokens.

    Args:
        sight: of all tokens; masks and biases written out.
        chosen: the tokens that ask.
        keys: True at the keys that were chosen, of a cache; left out, the keys are the tokens that ask.
    """
    assert sight.tiles is None and sight.reach is None, "masks are written out where tokens are chosen"
    mask, bias = (x if x is None else _rows(x, chosen.places) for x in (sight.mask, sight.bias))
    if keys is None:
        mask, bias = (x if x is None else _columns(x, chosen.places) for x in (mask, bias))
        there = chosen.real
    else:
        there = keys if sight.seen is None else keys[:, sight.seen]
    there = there[:, None, None]
    rotation = None if sight.rotation is None else Rotation(*(_rows(x, chosen.places) for x in sight.rotation))
    return Sight(
        there if mask is None else mask & there, bias, rotation, chosen.real, seen=sight.seen, values=_values(sight.values, chosen)
    )


def _values(values: Values | None, chosen: Chosen) -> Values | None:
    """Restrict the first block's values to the chosen tokens."""
    if values is None:
        return None
    assert values.first.v is not None, "the first block is no routed one"
    return Values(FirstValues(_rows(values.first.v, chosen.places)), values.mix)


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
    block: PassBlock, x: Tensor, chosen: Tensor, sight: Sight, memory_sight: Sight, cache: BlockCache | None
) -> Float[Tensor, "batch length d_model"]:
    """Compute by the equation: the block on all tokens, the keys of which are masked where they were not chosen; no cache."""
    assert cache is None, "a cache is for answering, which need not be slow"
    there = chosen[:, None, None]
    here = sight._replace(mask=there if sight.mask is None else sight.mask & there, real=chosen)
    return (block(x, here, memory_sight, None) - x) * chosen[:, :, None]


def only_chosen(
    block: PassBlock, x: Tensor, chosen: Tensor, sight: Sight, memory_sight: Sight, cache: BlockCache | None
) -> Float[Tensor, "batch length d_model"]:
    """Compute the same on the chosen tokens alone, gathered side by side."""
    here = gather_chosen(chosen)
    keys = None
    if cache is not None:
        assert isinstance(cache, RoutedCache), "a routed block's cache knows who was chosen"
        keys = cache.expect(chosen, here.places)
    if not here.places.shape[1]:
        return torch.zeros_like(x)
    across = here.places[:, :, None].expand(-1, -1, x.shape[2])
    part = x.gather(1, across)
    memory_mask = None if memory_sight.mask is None else _rows(memory_sight.mask, here.places)
    y = block(part, chosen_sight(sight, here, keys), memory_sight._replace(mask=memory_mask), cache) - part
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
        sight: Sight = EVERYTHING,
        memory_sight: Sight = EVERYTHING,
        cache: BlockCache | None = None,
        taps: Scope | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Let the chosen tokens pass the block."""
        exact = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            r = F.linear(x.to(exact), self.map.weight.to(exact), self.map.bias.to(exact))[:, :, 0]
        r = tap(taps, "score", r)
        y = self.path(block, x, self.choose(r, sight.real), sight, memory_sight, cache)
        return x + r[:, :, None].to(x.dtype) * y.to(x.dtype)

    def choose(self, r: Float[Tensor, "batch length"], real: Bool[Tensor, "#batch length"] | None) -> Bool[Tensor, "batch length"]:
        """Choose tokens by their scores; padding is never chosen."""
        there = torch.ones_like(r, dtype=torch.bool) if real is None else real.expand_as(r)
        if not self.training:
            return (r > 0) & there
        most = (self.brick.capacity * there.sum(1, keepdim=True)).ceil()
        order = r.detach().masked_fill(~there, -torch.inf).argsort(dim=1, descending=True, stable=True)
        return (order.argsort(1) < most) & there

    def sight(self, r: Float[Tensor, "batch length"], real: Bool[Tensor, "#batch length"] | None, sight: Sight, cross: bool) -> Sight:
        """Restrict what the block's attention sees to the tokens that were chosen by these scores; with ``cross``, of the memory."""
        chosen = gather_chosen(self.choose(r, real))
        if cross:
            return sight._replace(mask=None if sight.mask is None else _rows(sight.mask, chosen.places))
        return chosen_sight(sight, chosen)


def agreement_loss_sum(r: Float[Tensor, "tokens"], chosen: Bool[Tensor, "tokens"]) -> Float[Tensor, ""]:
    """Sum over tokens the cross-entropy between sigmoid(r) and whether a token was chosen (Raposo et al. 2024, section 3.5)."""
    return F.binary_cross_entropy_with_logits(r, chosen.to(r), reduction="sum")
