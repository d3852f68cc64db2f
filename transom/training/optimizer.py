"""The optimizer of a recipe, over a model's parameters."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from transom.config.training import AdamW, Muon, Optimizer, Sgd
from transom.errors import ConfigError
from transom.layers.block import Block, ParallelBlock

Group = dict[str, Any]


def build_optimizer(model: nn.Module, brick: Optimizer) -> torch.optim.Optimizer:
    """Build the optimizer, in PyTorch's fused form where it has one.

    AdamW decays weight matrices only: never vectors (biases, gains) nor embeddings, tied output map included.
    The learning rate is set before each step by the schedule; it starts at 0.

    Raises:
        ConfigError: Muon is asked for, and no weight that learns is a block's matrix.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if isinstance(brick, Sgd):
        return torch.optim.SGD(parameters, lr=0.0, momentum=brick.momentum, weight_decay=brick.weight_decay, fused=True)
    if isinstance(brick, Muon):
        inner = _matrices_of_blocks(model)
        if not inner:
            raise ConfigError("training.optimizer: muon is for the matrices of blocks, and none learns here; use 'adamw'")
        chosen = {id(p) for p in inner}
        return MuonAndAdamW(inner, _decayed_apart(model, [p for p in parameters if id(p) not in chosen], brick), brick)
    betas = (brick.beta1, brick.beta2)
    if not isinstance(brick, AdamW):
        return torch.optim.Adam(parameters, lr=0.0, betas=betas, eps=brick.eps, fused=True)
    return torch.optim.AdamW(_decayed_apart(model, parameters, brick), lr=0.0, betas=betas, eps=brick.eps, fused=True)


def _decayed_apart(model: nn.Module, parameters: Iterable[nn.Parameter], brick: AdamW) -> list[Group]:
    """Group the parameters: matrices, which decay, and all others."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for p in parameters:
        (decayed if p.ndim > 1 and id(p) not in embeddings else others).append(p)
    return [{"params": decayed, "weight_decay": brick.weight_decay}, {"params": others, "weight_decay": 0.0}]


def _matrices_of_blocks(model: nn.Module) -> list[nn.Parameter]:
    """Find the weights of linear maps in blocks, each once; experts' maps, stacked to three axes, are not among them."""
    blocks = (m for m in model.modules() if isinstance(m, Block | ParallelBlock))
    maps = (m for block in blocks for m in block.modules() if isinstance(m, nn.Linear))
    return [p for m in maps for p in m.parameters(recurse=False) if p.ndim == 2 and p.requires_grad]


class MuonAndAdamW(torch.optim.Optimizer):
    """PyTorch's Muon and its fused AdamW as one optimizer: one list of groups, one state, one step."""

    def __init__(self, matrices: list[nn.Parameter], others: list[Group], brick: Muon) -> None:
        """Give ``matrices`` to Muon and ``others`` to AdamW."""
        muon = torch.optim.Muon(matrices, lr=0.0, weight_decay=brick.weight_decay, momentum=brick.momentum, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(others, lr=0.0, betas=(brick.beta1, brick.beta2), eps=brick.eps, fused=True)
        self.parts = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let both parts work on this optimizer's groups and state."""
        muon, adamw = self.parts
        muon.param_groups, adamw.param_groups = self.param_groups[:1], self.param_groups[1:]
        muon.state = adamw.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back what ``state_dict`` gave."""
        super().load_state_dict(state_dict)
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with both."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()  # type: ignore[no-untyped-call]
        return loss
