"""What mixtures of experts and of depths add to a training step: their losses and counts, derived from what their routers say."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.config.mixture import BiasBalance, LossBalance
from transom.data.batch import Batch
from transom.layers.depth import DepthRouter, agreement_loss_sum
from transom.layers.mixture import Mixture, balance_loss, loads, moved_bias, z_loss_sum
from transom.layers.observe import ActivationRecorder
from transom.models.network import Network
from transom.parallel.world import World
from transom.training.events import Load, Passed


class Routers:
    """The routers of a model in training: ``loss`` follows each pass, observed at ``sites``, between ``begin`` and ``end``.

    All is sums over true tokens, divided once by the whole batch's, however it is sliced and dealt out to processes. The balance loss is a
    product of two such sums, so a batch in pieces is first read once without gradients, to know how often each expert is chosen.
    A model without mixtures, of experts or of depths, has no routers, and nothing is done.
    """

    def __init__(self, model: Network, world: World) -> None:
        """Find the mixtures of ``model``, which ``world``'s processes share."""
        self._model, self._world = model, world
        self._mixtures = {f"{name}.router": each for name, each in model.named_modules() if isinstance(each, Mixture)}
        self._depths = {f"{name}.score": each for name, each in model.named_modules() if isinstance(each, DepthRouter)}
        self._dropped = 0

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._mixtures or self._depths)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites at which routers speak."""
        return (*self._mixtures, *self._depths)

    def begin(self, slices: Sequence[Batch], autocast: AbstractContextManager[object]) -> None:
        """Begin a step on the slices of a batch, which are where the model is."""
        device = self._model.device
        self._counts = {site: torch.zeros(len(each.experts), dtype=torch.long, device=device) for site, each in self._mixtures.items()}
        self._whole, self._n_tokens = dict[str, Tensor](), dict[str, float]()
        self._dropped = 0
        self._passed = [0, 0, 0]
        if not self or (len(slices) == 1 and self._world.size == 1):
            return
        sites = self.sites
        n_tokens = [sum(int(real.sum()) for batch in slices for real in self._model.tokens(site, batch)) for site in sites]
        self._n_tokens = dict(zip(sites, self._world.totals(*n_tokens), strict=True))
        if any(isinstance(each.brick.balance, LossBalance) for each in self._mixtures.values()):
            cuda = [device] if device.type == "cuda" else []
            sums = {site: torch.zeros_like(counts) for site, counts in self._counts.items()}
            with torch.no_grad(), torch.random.fork_rng(cuda), autocast:  # the pass that learns draws the same numbers again
                for batch in slices:
                    recorder = ActivationRecorder(sites)
                    self._model.output(batch, recorder)
                    for site, counts in self._count(batch, recorder).items():
                        sums[site] += counts
            self._whole = dict(zip(sums, self._world.summed(list(sums.values())), strict=True))
            self._dropped = 0  # what that pass dropped is dropped again

    def loss(self, batch: Batch, recorder: ActivationRecorder) -> Float[Tensor, ""] | float:
        """Return what the pass in which ``recorder`` observed ``batch`` adds to the mean loss of the whole batch."""
        total: Tensor | float = 0.0
        for site, counts in self._count(batch, recorder).items():
            self._counts[site] += counts
            brick, said = self._mixtures[site].brick, torch.cat([logits[real] for logits, real in self._passes(site, batch, recorder)])
            n_tokens = self._n_tokens.get(site, len(said))
            if brick.z_weight:
                total = total + brick.z_weight * z_loss_sum(said) / n_tokens
            if isinstance(brick.balance, LossBalance):
                whole = self._whole.get(site, counts).to(said)
                total = total + brick.balance.weight * balance_loss(whole, self._mixtures[site].shares(said).sum(0), n_tokens)
        for site, router in self._depths.items():
            for r, real in self._passes(site, batch, recorder):
                chosen = router.choose(r, real)
                n_tokens = self._n_tokens.get(site, sum(int(each.sum()) for each in self._model.tokens(site, batch)))
                total = total + router.brick.weight * agreement_loss_sum(r[real], chosen[real]) / n_tokens
                for i, of in enumerate((real, chosen, real & (r > 0))):
                    self._passed[i] += int(of.sum())
        return total

    def passed(self) -> Passed | None:
        """Count how many tokens passed the blocks that only chosen ones pass, in this step so far; None where there are no such blocks."""
        return Passed(*map(int, self._world.totals(*self._passed))) if self._depths else None

    def end(self, updated: bool) -> Load | None:
        """End the step; where its update was made, move the biases that balance."""
        if not self._mixtures:
            return None
        (dropped,) = self._world.totals(self._dropped)
        every = [counts.double() for counts in self._world.summed(list(self._counts.values()))]
        for mixture, counts in zip(self._mixtures.values(), every, strict=True):
            learns = updated and mixture.router.weight.requires_grad
            if learns and isinstance(mixture.brick.balance, BiasBalance) and mixture.bias is not None:
                mixture.bias.copy_(moved_bias(mixture.bias, counts, mixture.brick.balance.rate))
        return Load(max((counts.max() / counts.mean()).item() for counts in every), int(dropped))

    def _passes(
        self, site: str, batch: Batch, recorder: ActivationRecorder
    ) -> list[tuple[Float[Tensor, "batch length ..."], Bool[Tensor, "batch length"]]]:
        """Pair what a router said of a batch with where its tokens are."""
        return list(zip((each[site] for each in recorder.passes), self._model.tokens(site, batch), strict=True))

    @torch.no_grad()
    def _count(self, batch: Batch, recorder: ActivationRecorder) -> dict[str, Int[Tensor, "n_experts"]]:
        """Count how often the last pass chose each expert, and note what it dropped."""
        counts = {}
        for site, mixture in self._mixtures.items():
            counts[site] = torch.zeros_like(self._counts[site])
            for logits, real in self._passes(site, batch, recorder):
                routing = mixture.route(logits, real)
                counts[site] += loads(routing.experts, real.flatten(), len(mixture.experts))
                if routing.taken is not None:
                    self._dropped += int((real.flatten()[:, None] & ~routing.taken).sum())
        return counts
