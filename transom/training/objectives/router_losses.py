"""The losses and counts of mixtures of experts and of depths, computed from the logits of their routers."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.config.mixture import BiasBalance, LossBalance
from transom.data.batch import Batch
from transom.layers.depth import DepthRouter, agreement_loss_sum
from transom.layers.mixture import Mixture, balance_loss, loads, moved_bias, z_loss_sum
from transom.models.network import Network
from transom.parallel.world import World
from transom.training.objectives.objective import UPDATES, AuxiliaryObjective, ForwardPass, Ratio, forward_pass

_Passes = list[tuple[Float[Tensor, "_ _ ..."], Bool[Tensor, "_ _"]]]
"""The logits of each pass through a router, (batch, length, ...), with the mask of true tokens; passes differ in length."""


class _RouterObjective(AuxiliaryObjective):
    """Sums over the true tokens at routers, divided once by the whole batch's number of them."""

    def __init__(self, model: Network, sites: Sequence[str], world: World) -> None:
        self._model, self._world, self.sites = model, world, sites
        self._n_tokens: dict[str, float] = {}

    def prepare(self, slices: Sequence[Batch]) -> None:
        """Count the true tokens of the whole batch at each router, where it is in pieces."""
        self._n_tokens = {}
        if len(slices) > 1 or self._world.size > 1:
            n_tokens = [sum(int(real.sum()) for batch in slices for real in self._model.tokens(site, batch)) for site in self.sites]
            self._n_tokens = dict(zip(self.sites, self._world.totals(*n_tokens), strict=True))

    def _passes(self, site: str, forward: ForwardPass) -> _Passes:
        """Pair the logits of each pass with the mask of true tokens."""
        return list(zip(forward.activations[site], self._model.tokens(site, forward.batch), strict=True))


class ExpertBalance(_RouterObjective):
    """What balances experts, a loss or a bias that moves once per step, and the router z-loss.

    The balance loss is a product of two sums over tokens. A batch in pieces is therefore first read once without gradients, to count how
    often each expert is chosen.
    """

    figures: ClassVar[Mapping[str, Ratio]] = {"expert_load": Ratio("expert_load", UPDATES), "dropped": Ratio("dropped", None)}

    def __init__(self, model: Network, mixtures: Mapping[str, Mixture], world: World) -> None:
        """Hold the mixtures of ``model``, by their addresses."""
        self._mixtures = {f"{name}.router": mixture for name, mixture in mixtures.items()}
        super().__init__(model, tuple(self._mixtures), world)

    def prepare(self, slices: Sequence[Batch]) -> None:
        """Begin to count; read a batch in pieces for the balance loss."""
        super().prepare(slices)
        self._counts, self._dropped, self._whole = self._zeros(), 0, dict[str, Tensor]()
        if self._n_tokens and any(isinstance(each.brick.balance, LossBalance) for each in self._mixtures.values()):
            device, counts = self._model.device, self._zeros()
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):  # what learns draws the same again
                for batch in slices:
                    forward = forward_pass(self._model, batch, self.sites)
                    for site, mixture in self._mixtures.items():
                        counts[site] += _count(mixture, self._passes(site, forward))[0]
            self._whole = dict(zip(counts, self._world.summed(list(counts.values())), strict=True))

    def loss(self, forward: ForwardPass) -> Float[Tensor, ""] | float:
        """Compute a slice's share of the balance losses and z-losses."""
        total: Tensor | float = 0.0
        for site, mixture in self._mixtures.items():
            passes = self._passes(site, forward)
            counts, dropped = _count(mixture, passes)
            self._counts[site] += counts
            self._dropped += dropped
            brick, logits = mixture.brick, torch.cat([logits[real] for logits, real in passes])
            n_tokens = self._n_tokens.get(site, len(logits))
            if brick.z_weight:
                total = total + brick.z_weight * z_loss_sum(logits) / n_tokens
            if isinstance(brick.balance, LossBalance):
                whole = self._whole.get(site, counts).to(logits)
                total = total + brick.balance.weight * balance_loss(whole, mixture.shares(logits).sum(0), n_tokens)
        return total

    def after_update(self, updated: bool) -> Mapping[str, float]:
        """Move the biases that balance; measure the load of the busiest expert, over the mean of its layer, and the dropped choices."""
        (dropped,) = self._world.totals(self._dropped)
        every = [counts.double() for counts in self._world.summed(list(self._counts.values()))]
        for mixture, counts in zip(self._mixtures.values(), every, strict=True):
            learns = updated and mixture.router.weight.requires_grad
            if learns and isinstance(mixture.brick.balance, BiasBalance) and mixture.bias is not None:
                mixture.bias.copy_(moved_bias(mixture.bias, counts, mixture.brick.balance.rate))
        return {"expert_load": max((counts.max() / counts.mean()).item() for counts in every), "dropped": int(dropped)}

    def _zeros(self) -> dict[str, Int[Tensor, "n_experts"]]:
        device = self._model.device
        return {site: torch.zeros(len(each.experts), dtype=torch.long, device=device) for site, each in self._mixtures.items()}


@torch.no_grad()
def _count(mixture: Mixture, passes: _Passes) -> tuple[Int[Tensor, "n_experts"], int]:
    """Count how often each expert was chosen, and how many choices were dropped because the expert was full."""
    routed = [(mixture.route(logits, real), real.flatten()) for logits, real in passes]
    counts = torch.stack([loads(routing.experts, real, len(mixture.experts)) for routing, real in routed]).sum(0)
    return counts, sum(int((real[:, None] & ~routing.taken).sum()) for routing, real in routed if routing.taken is not None)


class DepthAgreement(_RouterObjective):
    """The loss by which the tokens that pass a routed block learn to decide so alone (Raposo et al. 2024, section 3.5).

    Its measurements are sums over all routed blocks: true tokens, those chosen to pass, and those that would choose themselves.
    """

    figures: ClassVar[Mapping[str, Ratio]] = {
        "depth_share": Ratio("routed_chosen", "routed_tokens"),
        "depth_alone": Ratio("routed_alone", "routed_tokens"),
    }

    def __init__(self, model: Network, routers: Mapping[str, DepthRouter], world: World) -> None:
        """Hold the routers of ``model``, by their addresses."""
        self._routers = {f"{name}.score": router for name, router in routers.items()}
        super().__init__(model, tuple(self._routers), world)

    def prepare(self, slices: Sequence[Batch]) -> None:
        """Begin to count."""
        super().prepare(slices)
        self._passed = [0, 0, 0]

    def loss(self, forward: ForwardPass) -> Float[Tensor, ""] | float:
        """Compute a slice's share of the cross-entropy between the scores and the choice made by rank."""
        total: Tensor | float = 0.0
        for site, router in self._routers.items():
            passes = self._passes(site, forward)
            n_tokens = self._n_tokens.get(site, sum(int(real.sum()) for _, real in passes))
            for r, real in passes:
                chosen = router.choose(r, real)
                total = total + router.brick.weight * agreement_loss_sum(r[real], chosen[real]) / n_tokens
                self._passed = [n + int(of.sum()) for n, of in zip(self._passed, (real, chosen, real & (r > 0)), strict=True)]
        return total

    def after_update(self, updated: bool) -> Mapping[str, float]:
        """Measure how many tokens passed the routed blocks."""
        return dict(zip(("routed_tokens", "routed_chosen", "routed_alone"), map(int, self._world.totals(*self._passed)), strict=True))
