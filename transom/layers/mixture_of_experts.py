"""Mixture of experts (MoE): router, experts, a reference that runs every expert, a grouped path, and load-balancing losses."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.moe import BiasBalancingConfig, MoeConfig
from transom.layers.context import LayerContext
from transom.layers.observe import observe

PAD_MULTIPLE = 64
"""Batches of more tokens than this are padded to a multiple of it, so that few matrix shapes occur. On a CPU the first bf16 product of a
shape compiles its kernel, which takes five times as long as forward and backward of 500 tokens with 384 x 1024 weights."""


class Routing(NamedTuple):
    """Expert assignment of each token.

    Attributes:
        experts: indices of the top-k experts, best first.
        weights: gate g of each of them.
        kept: False at padding and where the expert is over capacity; None if no token is dropped.
    """

    experts: Int[Tensor, "tokens top_k"]
    weights: Float[Tensor, "tokens top_k"]
    kept: Bool[Tensor, "tokens top_k"] | None = None


def all_experts(
    experts: Sequence[nn.Module], x: Float[Tensor, "tokens d_model"], routing: Routing, ctx: LayerContext = LayerContext()
) -> Float[Tensor, "tokens d_model"]:
    """Compute sum_i g_i E_i(x) by running every expert on every token, with g_i = 0 for experts that are not selected: the reference."""
    weights = routing.weights if routing.kept is None else routing.weights * routing.kept
    g = weights.new_zeros(len(x), len(experts)).scatter(1, routing.experts, weights)
    outputs = torch.stack([expert(x, ctx) for expert in experts], 1)  # (tokens, n_experts, d_model)
    return (g.to(outputs.dtype)[:, :, None] * outputs).sum(1)


def grouped_experts(
    experts: Sequence[nn.Module], x: Float[Tensor, "tokens d_model"], routing: Routing, ctx: LayerContext = LayerContext()
) -> Float[Tensor, "tokens d_model"]:
    """Compute the same with each expert on its own tokens only, sorted by expert and split into slices."""
    n_experts, top_k = len(experts), routing.experts.shape[1]
    flat_experts = routing.experts.flatten()
    if routing.kept is not None:
        flat_experts = flat_experts.masked_fill(~routing.kept.flatten(), n_experts)  # sorted after the last slice
    counts = flat_experts.bincount(minlength=n_experts + 1)[:n_experts].tolist()
    order = flat_experts.argsort(stable=True)[: sum(counts)]
    token = order // top_k
    slices = x.index_select(0, token).split(counts)
    training = torch.is_grad_enabled()  # run idle experts too, so that they have a gradient, of 0
    outputs = torch.cat(
        [expert(pad_rows(part), ctx)[: len(part)] for expert, part in zip(experts, slices, strict=True) if training or len(part)]
    )
    weighted = outputs * routing.weights.flatten().index_select(0, order)[:, None].to(outputs.dtype)
    return torch.zeros_like(x, dtype=outputs.dtype).index_add(0, token, weighted)


def pad_rows(part: Float[Tensor, "tokens d_model"]) -> Float[Tensor, "rows d_model"]:
    """Pad with zeros to a multiple of ``PAD_MULTIPLE`` tokens where a new matrix shape is expensive: in 16-bit types on a CPU."""
    device = part.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else part.dtype
    if device != "cpu" or dtype.itemsize >= torch.float32.itemsize or len(part) <= PAD_MULTIPLE:
        return part
    return F.pad(part, (0, 0, 0, -len(part) % PAD_MULTIPLE))


class MixtureOfExperts(nn.Module):
    """sum_{i in TopK(s)} g_i E_i(x) + E_shared(x), s = softmax(x W_r) (Shazeer et al. 2017, eq. 1 and 3; Dai et al. 2024, eq. 9).

    The router runs in float32 or wider (Fedus et al. 2022, section 2.4). Experts are selected by s, plus the balancing bias, which has no
    gradient. In training, an expert over capacity drops further tokens, in the order of rows and of tokens in a row: a token is never
    displaced by a later token of its row, but may be by an earlier row.

    Attributes:
        path: combines the experts' outputs: ``grouped_experts``, or its reference ``all_experts``, whose shapes do not depend on data.
        bias: balancing bias, added to the scores for selection only and updated by training (Wang et al. 2024); None with a balancing loss
            or no balancing.
    """

    bias: Tensor | None

    def __init__(self, config: MoeConfig, d_model: int, d_ff: int, make_expert: Callable[[int], nn.Module]) -> None:
        """Initialize router and experts; ``make_expert`` builds an expert of a given hidden width."""
        super().__init__()
        self.config = config
        self.router = nn.Linear(d_model, config.n_experts, bias=False)
        self.experts = nn.ModuleList(make_expert(config.width(d_ff)) for _ in range(config.n_experts))
        self.shared = make_expert(config.n_shared_experts * config.width(d_ff)) if config.n_shared_experts else None
        self.register_buffer("bias", torch.zeros(config.n_experts) if isinstance(config.load_balancing, BiasBalancingConfig) else None)
        self.path = grouped_experts

    def forward(self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext = LayerContext()) -> Float[Tensor, "*axes d_model"]:
        """Route each token to its experts; padding takes no capacity."""
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(wide), self.router.weight.to(wide))
        logits = observe(ctx, self, "router", logits)
        tokens = x.reshape(-1, x.shape[-1])
        y = self.path(list(self.experts), tokens, self.route(logits, ctx.token_mask), ctx)
        if self.shared is not None:
            y = y + self.shared(tokens, ctx)
        return y.view_as(x)

    def router_scores(self, logits: Float[Tensor, "*axes n_experts"]) -> Float[Tensor, "*axes n_experts"]:
        """Return s, the score of each expert: softmax or sigmoid of the logits."""
        return logits.softmax(-1) if self.config.scoring_func == "softmax" else logits.sigmoid()

    def route(self, logits: Float[Tensor, "*axes n_experts"], token_mask: Bool[Tensor, "*axes"] | None = None) -> Routing:
        """Select the top-k experts of each token and compute their gates; in training, drop tokens over capacity."""
        s = self.router_scores(logits.reshape(-1, logits.shape[-1]))
        selection_scores = s.detach() if self.bias is None else s.detach() + self.bias
        experts = selection_scores.topk(self.config.top_k).indices
        weights = s.gather(1, experts)
        if self.config.norm_topk_prob:
            weights = weights / weights.sum(1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)
        if self.config.capacity_factor is None or not self.training:
            return Routing(experts, weights)
        valid = torch.ones(len(s), dtype=torch.bool, device=s.device) if token_mask is None else token_mask.flatten()
        capacity = (self.config.capacity_factor / self.config.n_experts * self.config.top_k * valid.sum()).ceil()
        position = position_in_expert(experts.masked_fill(~valid[:, None], self.config.n_experts).flatten()).view_as(experts)
        return Routing(experts, weights, (position < capacity) & valid[:, None])

    def router_probs(self, logits: Float[Tensor, "*axes n_experts"]) -> Float[Tensor, "*axes n_experts"]:
        """Return s over its sum: the probability of each expert, whose mean is P_i of ``load_balancing_loss`` (DeepSeek-V3, eq. 19)."""
        s = self.router_scores(logits)
        return s if self.config.scoring_func == "softmax" else s / s.sum(-1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)


def position_in_expert(experts: Int[Tensor, "choices"]) -> Int[Tensor, "choices"]:
    """Return the position of each choice in its expert's queue, from 0, in order of arrival.

    >>> position_in_expert(torch.tensor([1, 0, 1, 1, 0])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = experts.argsort(stable=True)
    sorted_experts = experts[order]
    position = torch.arange(len(order), device=order.device) - torch.searchsorted(
        sorted_experts, sorted_experts
    )  # minus the start of its expert
    return torch.empty_like(order).scatter(0, order, position)


def expert_load(experts: Int[Tensor, "tokens top_k"], token_mask: Bool[Tensor, "tokens"], n_experts: int) -> Int[Tensor, "n_experts"]:
    """Count the tokens routed to each expert, dropped or not; padding is excluded."""
    return experts[token_mask].flatten().bincount(minlength=n_experts)


def load_balancing_loss(counts: Float[Tensor, "n_experts"], prob_sums: Float[Tensor, "n_experts"], n_tokens: float) -> Float[Tensor, ""]:
    """Compute the load-balancing loss N sum_i f_i P_i (Fedus et al. 2022, eq. 4 to 6, without alpha); it is 1 for a uniform load.

    It is linear in ``prob_sums``: micro-batches add up to the loss of the batch if ``counts`` and ``n_tokens`` are the batch's.

    Args:
        counts: tokens routed to each expert; f_i is its fraction of all choices. No gradient.
        prob_sums: ``router_probs`` of each expert, summed over tokens; P_i is that over ``n_tokens``.
        n_tokens: tokens of the whole batch, padding excluded.
    """
    return len(counts) * (counts / counts.sum() * prob_sums).sum() / n_tokens


def router_z_loss_sum(logits: Float[Tensor, "tokens n_experts"]) -> Float[Tensor, ""]:
    """Compute the sum over tokens of (log sum_j e^(logit_j))^2, whose mean is the router z-loss (Zoph et al. 2022, eq. 5)."""
    return logits.logsumexp(-1).square().sum()


def update_router_bias(bias: Float[Tensor, "n_experts"], counts: Float[Tensor, "n_experts"], rate: float) -> Float[Tensor, "n_experts"]:
    """Return the balancing bias after a step: b_i + u sign(mean(c) - c_i) (Wang et al. 2024, algorithm 1)."""
    return bias + rate * (counts.mean() - counts).sign().to(bias)
