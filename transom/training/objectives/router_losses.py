"""Losses and metrics of mixtures of experts and mixtures of depths, computed from the logits of their routers."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.config.moe import AuxLossBalancingConfig, BiasBalancingConfig
from transom.data.batch import Batch
from transom.layers.mixture_of_depths import DepthRouter, router_bce_sum
from transom.layers.mixture_of_experts import MixtureOfExperts, expert_load, load_balancing_loss, router_z_loss_sum, update_router_bias
from transom.models.base import Network
from transom.parallel.processes.collectives import World
from transom.training.objectives.objective import N_UPDATES, AuxiliaryObjective, ForwardPass, RatioMetric

_Passes = list[tuple[Float[Tensor, "_ _ ..."], Bool[Tensor, "_ _"]]]
"""Logits, (batch, length, ...), and token mask of each pass through a router; the length may differ between passes."""


class _RouterObjective(AuxiliaryObjective):
    """Base of router losses: sums over tokens without padding, divided once by the number of tokens of the batch."""

    def __init__(self, model: Network, sites: Sequence[str], world: World) -> None:
        self._model, self._world, self.sites = model, world, sites
        self._n_tokens: dict[str, float] = {}

    def prepare(self, micro_batches: Sequence[Batch]) -> None:
        """Count the tokens of the whole batch at each router, if there are several micro-batches or processes."""
        self._n_tokens = {}
        if len(micro_batches) > 1 or self._world.size > 1:
            n_tokens = [
                sum(int(token_mask.sum()) for batch in micro_batches for token_mask in self._model.token_masks(site, batch))
                for site in self.sites
            ]
            self._n_tokens = dict(zip(self.sites, self._world.all_reduce_scalars(*n_tokens), strict=True))

    def _passes(self, site: str, batch: Batch, activations: Mapping[str, Sequence[Tensor]]) -> _Passes:
        """Return logits and token mask of each pass through the router at ``site``."""
        return list(zip(activations[site], self._model.token_masks(site, batch), strict=True))


class ExpertLoadBalancing(_RouterObjective):
    """Load balancing of experts, by a loss or by a bias that is updated once per step, and the router z-loss.

    The balancing loss is a product of two sums over the tokens of the whole batch. With several micro-batches or processes, a first forward
    pass without gradients therefore counts how often each expert is chosen.
    """

    metrics: ClassVar[Mapping[str, RatioMetric]] = {
        "max_expert_load": RatioMetric("max_expert_load", N_UPDATES),
        "expert_overflow": RatioMetric("expert_overflow", None),
    }

    def __init__(self, model: Network, mixtures: Mapping[str, MixtureOfExperts], world: World) -> None:
        """Observe the routers of ``mixtures``, which are given by their module paths in ``model``."""
        self._mixtures = {f"{name}.router": mixture for name, mixture in mixtures.items()}
        super().__init__(model, tuple(self._mixtures), world)

    def prepare(self, micro_batches: Sequence[Batch]) -> None:
        """Reset the counts. If the balancing loss needs counts over the whole batch, compute these by a first forward pass."""
        super().prepare(micro_batches)
        self._counts, self._n_overflow, self._batch_counts = self._zeros(), 0, dict[str, Tensor]()
        if self._n_tokens and any(isinstance(each.config.load_balancing, AuxLossBalancingConfig) for each in self._mixtures.values()):
            device, counts = self._model.device, self._zeros()
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):  # training draws the same numbers
                for batch, activations in zip(micro_batches, self.record(micro_batches, self.sites), strict=True):
                    for site, mixture in self._mixtures.items():
                        counts[site] += _count_assignments(mixture, self._passes(site, batch, activations))[0]
            self._world.all_reduce(list(counts.values()))
            self._batch_counts = counts

    def loss(self, forward: ForwardPass) -> Float[Tensor, ""] | float:
        """Compute a micro-batch's contribution to the balancing losses and router z-losses of all layers."""
        total: Tensor | float = 0.0
        for site, mixture in self._mixtures.items():
            passes = self._passes(site, forward.batch, forward.activations)
            counts, dropped = _count_assignments(mixture, passes)
            self._counts[site] += counts
            self._n_overflow += dropped
            config, logits = mixture.config, torch.cat([logits[token_mask] for logits, token_mask in passes])
            n_tokens = self._n_tokens.get(site, len(logits))
            if config.z_loss_coef:
                total = total + config.z_loss_coef * router_z_loss_sum(logits) / n_tokens
            if isinstance(config.load_balancing, AuxLossBalancingConfig):
                batch_counts = self._batch_counts.get(site, counts).to(logits)
                total = total + config.load_balancing.aux_loss_coef * load_balancing_loss(
                    batch_counts, mixture.router_probs(logits).sum(0), n_tokens
                )
        return total

    def after_update(self, updated: bool) -> Mapping[str, float]:
        """Update the balancing biases, unless the step was skipped.

        Returns:
            ``max_expert_load``, the highest load of an expert divided by the mean load in its layer, and ``expert_overflow``, the number of
            assignments dropped because an expert was full.
        """
        (dropped,) = self._world.all_reduce_scalars(self._n_overflow)
        self._world.all_reduce(list(self._counts.values()))
        every = [counts.double() for counts in self._counts.values()]
        for mixture, counts in zip(self._mixtures.values(), every, strict=True):
            learns = updated and mixture.router.weight.requires_grad
            if learns and isinstance(mixture.config.load_balancing, BiasBalancingConfig) and mixture.bias is not None:
                mixture.bias.copy_(update_router_bias(mixture.bias, counts, mixture.config.load_balancing.bias_update_rate))
        largest = max((counts.max() / counts.mean()).item() for counts in every)
        of_stages = self.stages.all_gather(torch.tensor([largest, dropped], dtype=torch.float64))
        loads, overflows = zip(*(each.tolist() for each in of_stages), strict=True)
        return {"max_expert_load": max(loads), "expert_overflow": int(sum(overflows))}

    def _zeros(self) -> dict[str, Int[Tensor, "n_experts"]]:
        device = self._model.device
        return {site: torch.zeros(each.config.n_experts, dtype=torch.long, device=device) for site, each in self._mixtures.items()}


@torch.no_grad()
def _count_assignments(mixture: MixtureOfExperts, passes: _Passes) -> tuple[Int[Tensor, "n_experts"], int]:
    """Return the number of tokens assigned to each expert, and the number of all assignments dropped because an expert was full."""
    routed = [(mixture.route(logits, token_mask), token_mask.flatten()) for logits, token_mask in passes]
    counts = torch.stack([expert_load(routing.experts, token_mask, mixture.config.n_experts) for routing, token_mask in routed]).sum(0)
    return counts, sum(int((token_mask[:, None] & ~routing.kept).sum()) for routing, token_mask in routed if routing.kept is not None)


class DepthRouterLoss(_RouterObjective):
    """The loss that trains the router of a mixture of depths to predict its own top-k choice causally (Raposo et al. 2024, section 3.5).

    The metrics are the fractions of tokens that the routers select in training, by rank, and at inference, by the causal prediction.
    """

    metrics: ClassVar[Mapping[str, RatioMetric]] = {
        "mod_fraction": RatioMetric("routed_chosen", "routed_tokens"),
        "mod_fraction_causal": RatioMetric("routed_causal", "routed_tokens"),
    }

    def __init__(self, model: Network, routers: Mapping[str, DepthRouter], world: World) -> None:
        """Observe ``routers``, which are given by their module paths in ``model``."""
        self._routers = {f"{name}.score": router for name, router in routers.items()}
        super().__init__(model, tuple(self._routers), world)

    def prepare(self, micro_batches: Sequence[Batch]) -> None:
        """Reset the counts."""
        super().prepare(micro_batches)
        self._n_routed = [0, 0, 0]

    def loss(self, forward: ForwardPass) -> Float[Tensor, ""] | float:
        """Compute a micro-batch's contribution to the cross-entropy between the routers' scores and their selection by rank."""
        total: Tensor | float = 0.0
        for site, router in self._routers.items():
            passes = self._passes(site, forward.batch, forward.activations)
            n_tokens = self._n_tokens.get(site, sum(int(token_mask.sum()) for _, token_mask in passes))
            for r, token_mask in passes:
                chosen = router.select(r, token_mask)
                total = total + router.config.aux_loss_coef * router_bce_sum(r[token_mask], chosen[token_mask]) / n_tokens
                self._n_routed = [
                    n + int(of.sum()) for n, of in zip(self._n_routed, (token_mask, chosen, token_mask & (r > 0)), strict=True)
                ]
        return total

    def after_update(self, updated: bool) -> Mapping[str, float]:
        """Return three counts over all routed blocks: tokens, tokens selected by rank, and tokens selected by the causal prediction."""
        return dict(
            zip(("routed_tokens", "routed_chosen", "routed_causal"), map(int, self._world.all_reduce_scalars(*self._n_routed)), strict=True)
        )
