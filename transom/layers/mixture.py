"""Mixture of experts: a router, a readable reference, a grouped path that sends tokens to their experts only, and what balances them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.mixture import BiasBalance
from transom.config.mixture import Mixture as Brick
from transom.layers.context import LayerContext
from transom.layers.observe import observe

ROUND = 64
"""Above this many rows, slices of any number of tokens share a few shapes of products: the first bf16 product of a shape on a CPU makes its
kernel, which takes five times as long as the product of 500 tokens with 384 by 1024 weights, forward and back."""


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
        experts: the experts that each token is sent to, best first.
        weights: what their outputs count.
        taken: False at padding and where an expert is full; None where all are taken.
    """

    experts: Int[Tensor, "tokens top_k"]
    weights: Float[Tensor, "tokens top_k"]
    taken: Bool[Tensor, "tokens top_k"] | None = None


def every_expert(
    experts: Sequence[nn.Module], x: Float[Tensor, "tokens d_model"], routing: Routing, ctx: LayerContext = LayerContext()
) -> Float[Tensor, "tokens d_model"]:
    """Mix by the equation: every expert on every token, sum_i g_i E_i(x) with g_i = 0 where expert i was not chosen."""
    weights = routing.weights if routing.taken is None else routing.weights * routing.taken
    g = weights.new_zeros(len(x), len(experts)).scatter(1, routing.experts, weights)
    outputs = torch.stack([expert(x, ctx) for expert in experts], 1)  # (tokens, n_experts, d_model)
    return (g.to(outputs.dtype)[:, :, None] * outputs).sum(1)


def grouped(
    experts: Sequence[nn.Module], x: Float[Tensor, "tokens d_model"], routing: Routing, ctx: LayerContext = LayerContext()
) -> Float[Tensor, "tokens d_model"]:
    """Mix the same, each expert on its own tokens only: they are sorted by expert, and each expert takes its slice of them."""
    n_experts, top_k = len(experts), routing.experts.shape[1]
    chosen = routing.experts.flatten()
    if routing.taken is not None:
        chosen = chosen.masked_fill(~routing.taken.flatten(), n_experts)  # behind the last slice
    counts = chosen.bincount(minlength=n_experts + 1)[:n_experts].tolist()
    order = chosen.argsort(stable=True)[: sum(counts)]
    token = order // top_k
    slices = x.index_select(0, token).split(counts)
    learning = torch.is_grad_enabled()  # then an idle expert too has a gradient, of 0; otherwise it rests
    outputs = torch.cat(
        [expert(filled_up(part), ctx)[: len(part)] for expert, part in zip(experts, slices, strict=True) if learning or len(part)]
    )
    weighted = outputs * routing.weights.flatten().index_select(0, order)[:, None].to(outputs.dtype)
    return torch.zeros_like(x, dtype=outputs.dtype).index_add(0, token, weighted)


def filled_up(part: Float[Tensor, "tokens d_model"]) -> Float[Tensor, "rows d_model"]:
    """Add rows of zeros up to a multiple of ``ROUND`` where a new shape of product is dear: in a short type on a CPU."""
    device = part.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else part.dtype
    if device != "cpu" or dtype.itemsize >= torch.float32.itemsize or len(part) <= ROUND:
        return part
    return F.pad(part, (0, 0, 0, -len(part) % ROUND))


class Mixture(nn.Module):
    """sum_{i in TopK(s)} g_i E_i(x) + E_shared(x), s = softmax(x W_r) (Shazeer et al. 2017, eq. 1 and 3; Dai et al. 2024, eq. 9).

    The router works in float32 at least (Fedus et al. 2022, section 2.4). A choice is made by s, or by s and the balance's bias, which no
    gradient reaches. In training, an expert whose capacity is used up drops what comes later, in the order of rows, and of tokens in a row:
    so a token loses no place to a later one of its row, but it may to one of a row above.

    Attributes:
        path: mixes the experts' outputs: ``grouped``, or its reference ``every_expert``, whose shapes depend on no data.
        bias: on the scores, for the choice only; moved by training. None where a loss or nothing balances.
    """

    bias: Tensor | None

    def __init__(self, brick: Brick, d_model: int, d_ff: int, make: Callable[[int], nn.Module]) -> None:
        """Make router and experts; ``make`` builds a network of a hidden width."""
        super().__init__()
        self.brick = brick
        self.router = nn.Linear(d_model, brick.n_experts, bias=False)
        self.experts = nn.ModuleList(make(brick.width(d_ff)) for _ in range(brick.n_experts))
        self.shared = make(brick.n_shared * brick.width(d_ff)) if brick.n_shared else None
        self.register_buffer("bias", torch.zeros(brick.n_experts) if isinstance(brick.balance, BiasBalance) else None)
        self.path = grouped

    def forward(self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext = LayerContext()) -> Float[Tensor, "*axes d_model"]:
        """Send each token to its experts; padding takes no place."""
        exact = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(exact), self.router.weight.to(exact))
        logits = observe(ctx, self, "router", logits)
        tokens = x.reshape(-1, x.shape[-1])
        y = self.path(list(self.experts), tokens, self.route(logits, ctx.token_mask), ctx)
        if self.shared is not None:
            y = y + self.shared(tokens, ctx)
        return y.view_as(x)

    def scores(self, logits: Float[Tensor, "*axes n_experts"]) -> Float[Tensor, "*axes n_experts"]:
        """Return s: how much a token belongs to each expert."""
        return logits.softmax(-1) if self.brick.scores == "softmax" else logits.sigmoid()

    def route(self, logits: Float[Tensor, "*axes n_experts"], real: Bool[Tensor, "*axes"] | None = None) -> Routing:
        """Choose each token's experts and weigh them."""
        s = self.scores(logits.reshape(-1, logits.shape[-1]))
        liked = s.detach() if self.bias is None else s.detach() + self.bias
        experts = liked.topk(self.brick.top_k).indices
        weights = s.gather(1, experts)
        if self.brick.normalise:
            weights = weights / weights.sum(1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)
        if self.brick.capacity is None or not self.training:
            return Routing(experts, weights)
        there = torch.ones(len(s), dtype=torch.bool, device=s.device) if real is None else real.flatten()
        most = (self.brick.capacity / self.brick.n_experts * self.brick.top_k * there.sum()).ceil()
        place = places(experts.masked_fill(~there[:, None], self.brick.n_experts).flatten()).view_as(experts)
        return Routing(experts, weights, (place < most) & there[:, None])

    def shares(self, logits: Float[Tensor, "*axes n_experts"]) -> Float[Tensor, "*axes n_experts"]:
        """Return s over its sum: each expert's share of a token's scores, P of ``balance_loss`` before the mean (DeepSeek-V3, eq. 19)."""
        s = self.scores(logits)
        return s if self.brick.scores == "softmax" else s / s.sum(-1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)


def places(experts: Int[Tensor, "choices"]) -> Int[Tensor, "choices"]:
    """Number the choices of each expert, from 0, in the order in which they come.

    >>> places(torch.tensor([1, 0, 1, 1, 0])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = experts.argsort(stable=True)
    gathered = experts[order]
    place = torch.arange(len(order), device=order.device) - torch.searchsorted(gathered, gathered)  # less where its expert begins
    return torch.empty_like(order).scatter(0, order, place)


def loads(experts: Int[Tensor, "tokens top_k"], real: Bool[Tensor, "tokens"], n_experts: int) -> Int[Tensor, "n_experts"]:
    """Count the real tokens that chose each expert, dropped or not."""
    return experts[real].flatten().bincount(minlength=n_experts)


def balance_loss(counts: Float[Tensor, "n_experts"], share_sums: Float[Tensor, "n_experts"], n_tokens: float) -> Float[Tensor, ""]:
    """Compute N sum_i f_i P_i, which is 1 where all is even (Fedus et al. 2022, eq. 4 to 6, without its factor alpha).

    It is linear in the sums: pieces of a batch add up to its loss, if ``counts`` and ``n_tokens`` are the whole batch's.

    Args:
        counts: how often each expert was chosen: f_i is its part of all choices. It has no gradient.
        share_sums: each expert's ``shares``, summed over tokens: P_i is that over ``n_tokens``.
        n_tokens: real tokens of the whole batch.
    """
    return len(counts) * (counts / counts.sum() * share_sums).sum() / n_tokens


def z_loss_sum(logits: Float[Tensor, "tokens n_experts"]) -> Float[Tensor, ""]:
    """Compute the sum over tokens of (log sum_j e^(logit_j))^2; the router z-loss is its mean (Zoph et al. 2022, eq. 5)."""
    return logits.logsumexp(-1).square().sum()


def moved_bias(bias: Float[Tensor, "n_experts"], counts: Float[Tensor, "n_experts"], rate: float) -> Float[Tensor, "n_experts"]:
    """Return the balance's bias after a step: b_i + u sign(mean(c) - c_i) (Wang et al. 2024, algorithm 1)."""
    return bias + rate * (counts.mean() - counts).sign().to(bias)
