"""Mixture of experts (MoE): router, experts, two ways to compute their weighted sum, and load-balancing losses."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.moe import BiasBalancingConfig, MoeConfig
from transom.layers.context import LayerContext
from transom.layers.dropout import DropoutSite, keyed_tokens, selected_rows
from transom.layers.observe import observe

PAD_MULTIPLE = 64
"""An expert's batch of more tokens than this is padded to a multiple of this number, so that few matrix shapes occur. On a CPU the first
bfloat16 product of each shape compiles a kernel, which takes five times as long as forward and backward of 500 tokens with 384 x 1024
weights."""


class Routing(NamedTuple):
    """Expert assignment of each token.

    Attributes:
        experts: indices of the top-k experts, best first.
        weights: gate g of each of these experts.
        kept: False where the expert does not process the token: at padding, and if the expert is over capacity; None if nothing is dropped.
    """

    experts: Int[Tensor, "tokens top_k"]
    weights: Float[Tensor, "tokens top_k"]
    kept: Bool[Tensor, "tokens top_k"] | None = None


def all_experts(
    experts: Sequence[nn.Module], x: Float[Tensor, "tokens d_model"], routing: Routing, ctx: LayerContext = LayerContext()
) -> Float[Tensor, "tokens d_model"]:
    """Compute the reference sum_i g_i E_i(x): every expert runs on every token, and g_i = 0 for experts that are not selected."""
    weights = routing.weights if routing.kept is None else routing.weights * routing.kept
    g = weights.new_zeros(len(x), len(experts)).scatter(1, routing.experts, weights)
    outputs = torch.stack([expert(x, ctx) for expert in experts], 1)  # (tokens, n_experts, d_model)
    return (g.to(outputs.dtype)[:, :, None] * outputs).sum(1)


def run_experts(
    experts: Sequence[nn.Module], x: Float[Tensor, "choices d_model"], counts: Sequence[int], ctx: LayerContext = LayerContext()
) -> Float[Tensor, "choices d_model"]:
    """Run each expert on its tokens, of which expert i has ``counts[i]`` consecutive ones in ``x``."""
    run_idle = torch.is_grad_enabled() or not len(x)  # so that idle experts have a gradient, of 0, and the result has its dtype
    outputs, rows = [], torch.arange(len(x), device=x.device)
    for expert, part, indices in zip(experts, x.split(list(counts)), rows.split(list(counts)), strict=True):
        if run_idle or len(part):
            padded = pad_rows(part)
            with selected_rows(indices, len(padded)):
                outputs.append(expert(padded, ctx)[: len(part)])
    return torch.cat(outputs)


def grouped_experts(
    experts: Sequence[nn.Module | None],
    x: Float[Tensor, "tokens d_model"],
    routing: Routing,
    ctx: LayerContext = LayerContext(),
    run: Callable[[Sequence[Any], Tensor, Sequence[int], LayerContext], Tensor] = run_experts,
) -> Float[Tensor, "tokens d_model"]:
    """Compute sum_i g_i E_i(x) by running each expert only on the tokens that are routed to it, gathered into one batch per expert.

    Args:
        experts: the experts; None where another process holds the expert and ``run`` reaches it.
        x: the tokens.
        routing: experts and gates of each token.
        ctx: context of the layer.
        run: function with the interface of ``run_experts``.
    """
    n_experts, top_k = len(experts), routing.experts.shape[1]
    flat_experts = routing.experts.flatten()
    if routing.kept is not None:
        flat_experts = flat_experts.masked_fill(~routing.kept.flatten(), n_experts)  # sorted after the last slice
    counts = flat_experts.bincount(minlength=n_experts + 1)[:n_experts].tolist()
    order = flat_experts.argsort(stable=True)[: sum(counts)]
    token = order // top_k
    with selected_rows(token, len(token)):
        outputs = run(experts, x.index_select(0, token), counts, ctx)
    weighted = outputs * routing.weights.flatten().index_select(0, order)[:, None].to(outputs.dtype)
    return torch.zeros_like(x, dtype=outputs.dtype).index_add(0, token, weighted)


def pad_rows(part: Float[Tensor, "tokens d_model"]) -> Float[Tensor, "rows d_model"]:
    """Pad with zeros to a multiple of ``PAD_MULTIPLE`` tokens, only in 16-bit dtypes on a CPU, where new matrix shapes are expensive."""
    device = part.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else part.dtype
    if device != "cpu" or dtype.itemsize >= torch.float32.itemsize or len(part) <= PAD_MULTIPLE:
        return part
    return F.pad(part, (0, 0, 0, -len(part) % PAD_MULTIPLE))


class MixtureOfExperts(DropoutSite, nn.Module):
    """Mixture of experts: sum_{i in TopK(s)} g_i E_i(x) + E_shared(x), with router scores s = softmax(x W_r).

    References: Shazeer et al. 2017, eq. 1 and 3; Dai et al. 2024, eq. 9. The router runs in float32 or wider (Fedus et al. 2022, section
    2.4). The experts with the largest s plus balancing bias are selected. In training, an expert accepts tokens up to its capacity, row by
    row and in each row from the first token on, and drops further tokens. So a token may be dropped because of an earlier token of its row
    or a token of an earlier row, but never because of a later token. The keyed dropout masks of an expert are those of its tokens;
    ``offsets`` is the index of the first token that this process holds.

    Attributes:
        path: function that computes the weighted sum of the experts' outputs: ``grouped_experts``, or its reference ``all_experts``, whose
            shapes do not depend on the routing.
        bias: balancing bias, added to the scores for selection only and updated in training (Wang et al. 2024); None if a loss balances the
            load, or nothing does.
    """

    bias: Tensor | None

    def __init__(self, config: MoeConfig, d_model: int, d_ff: int, make_expert: Callable[[int], nn.Module]) -> None:
        """Initialize router and experts; ``make_expert`` builds an expert with the given hidden width."""
        super().__init__()
        self.config = config
        self.router = nn.Linear(d_model, config.n_experts, bias=False)
        self.experts = nn.ModuleList(make_expert(config.width(d_ff)) for _ in range(config.n_experts))
        self.shared = make_expert(config.n_shared_experts * config.width(d_ff)) if config.n_shared_experts else None
        self.register_buffer("bias", torch.zeros(config.n_experts) if isinstance(config.load_balancing, BiasBalancingConfig) else None)
        self.path: Callable[..., Tensor] = grouped_experts

    def forward(self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext = LayerContext()) -> Float[Tensor, "*axes d_model"]:
        """Return the gated sum of expert outputs for each token; padding takes up no capacity of the experts."""
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(wide), self.router.weight.to(wide))
        logits = observe(ctx, self, "router", logits)
        tokens = x.reshape(-1, x.shape[-1])
        with keyed_tokens(self, x):
            y = self.path(list(self.experts), tokens, self.route(logits, ctx.token_mask), ctx)
            if self.shared is not None:
                y = y + self.shared(tokens, ctx)
        return y.view_as(x)

    def router_scores(self, logits: Float[Tensor, "*axes n_experts"]) -> Float[Tensor, "*axes n_experts"]:
        """Return s, the score of each expert: softmax or sigmoid of the logits."""
        return logits.softmax(-1) if self.config.scoring_func == "softmax" else logits.sigmoid()

    def route(self, logits: Float[Tensor, "*axes n_experts"], token_mask: Bool[Tensor, "*axes"] | None = None) -> Routing:
        """Return the top-k experts of each token and their gates; in training, mark tokens over an expert's capacity as dropped."""
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
        """Return the probability of each expert, s over its sum (DeepSeek-V3, eq. 19), whose mean is P_i of ``load_balancing_loss``."""
        s = self.router_scores(logits)
        return s if self.config.scoring_func == "softmax" else s / s.sum(-1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)


def position_in_expert(experts: Int[Tensor, "choices"]) -> Int[Tensor, "choices"]:
    """Return, for each choice of an expert by a token, how many earlier choices selected the same expert.

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
    """Count the tokens routed to each expert, including tokens dropped over capacity, excluding padding."""
    return experts[token_mask].flatten().bincount(minlength=n_experts)


def load_balancing_loss(counts: Float[Tensor, "n_experts"], prob_sums: Float[Tensor, "n_experts"], n_tokens: float) -> Float[Tensor, ""]:
    """Compute the load-balancing loss N sum_i f_i P_i (Fedus et al. 2022, eq. 4 to 6, without alpha).

    The loss is 1 for a uniform load. It is linear in ``prob_sums``: with ``counts`` and ``n_tokens`` of the whole batch, the losses of the
    micro-batches add up to the loss of the batch.

    Args:
        counts: tokens routed to each expert, without gradient; f_i is the fraction of expert i in their sum.
        prob_sums: ``router_probs`` of each expert, summed over tokens; P_i is this sum divided by ``n_tokens``.
        n_tokens: number of tokens, padding excluded.
    """
    return len(counts) * (counts / counts.sum() * prob_sums).sum() / n_tokens


def router_z_loss_sum(logits: Float[Tensor, "tokens n_experts"]) -> Float[Tensor, ""]:
    """Compute the sum over tokens of (log sum_j e^(logit_j))^2, whose mean is the router z-loss (Zoph et al. 2022, eq. 5)."""
    return logits.logsumexp(-1).square().sum()


def update_router_bias(bias: Float[Tensor, "n_experts"], counts: Float[Tensor, "n_experts"], rate: float) -> Float[Tensor, "n_experts"]:
    """Return the balancing bias after a training step: b_i + rate * sign(mean(counts) - counts_i) (Wang et al. 2024, algorithm 1)."""
    return bias + rate * (counts.mean() - counts).sign().to(bias)
