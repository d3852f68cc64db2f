"""Optimizers: SGD, Adam, AdamW and Muon."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.checkpoints.tensors import TensorSpec
from transom.config.component_registry import build, implements
from transom.config.schema import ComponentConfig
from transom.config.training import AdamConfig, AdamWConfig, MuonConfig, SgdConfig
from transom.errors import ConfigError
from transom.layers.block import Block
from transom.layers.mixture_of_depths import DepthRouter
from transom.layers.mixture_of_experts import MixtureOfExperts

NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b and c of a s + b s^3 + c s^5; five iterations map every s from about 0.002 to 1 close to 1 (Jordan et al. 2024)."""


def build_optimizer(model: nn.Module, config: ComponentConfig, dtype: torch.dtype = torch.float32) -> torch.optim.Optimizer:
    """Build the optimizer, fused where PyTorch has a fused implementation.

    AdamW decays weight matrices only: never vectors (biases, gains) nor embeddings, including a tied output projection.
    The schedule sets the learning rate before each step; its initial value is 0.

    Args:
        model: the model, whose parameters that require gradients are optimized.
        config: kind and settings of the optimizer.
        dtype: precision of the run's matrix products; if it is bfloat16, Muon's own products are in bfloat16 too.

    Raises:
        ConfigError: Muon is chosen, and no trainable matrix is one that it applies to.
    """
    return build(config, model, [p for p in model.parameters() if p.requires_grad], dtype)


def state_specs(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, TensorSpec]:
    """Return types and shapes, by name, of the tensors that an optimizer keeps per parameter after its first gradient.

    An optimizer that is not PyTorch's defines a method ``state_specs(parameter)``.
    """
    if own := getattr(optimizer, "state_specs", None):
        return own(parameter)
    like = TensorSpec.of(parameter)
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer": like} if optimizer.defaults["momentum"] else {}
    return {"step": TensorSpec(torch.float32, ()), "exp_avg": like, "exp_avg_sq": like}


@implements(SgdConfig)
def build_sgd(config: SgdConfig, model: nn.Module, parameters: list[nn.Parameter], dtype: torch.dtype) -> torch.optim.SGD:
    """Build stochastic gradient descent."""
    return torch.optim.SGD(parameters, lr=0.0, momentum=config.momentum, weight_decay=config.weight_decay, fused=True)


@implements(AdamConfig)
def build_adam(config: AdamConfig, model: nn.Module, parameters: list[nn.Parameter], dtype: torch.dtype) -> torch.optim.Adam:
    """Build Adam."""
    return torch.optim.Adam(parameters, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


@implements(AdamWConfig)
def build_adamw(config: AdamWConfig, model: nn.Module, parameters: list[nn.Parameter], dtype: torch.dtype) -> torch.optim.AdamW:
    """Build AdamW, which decays weight matrices only."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for p in parameters:
        (decayed if p.ndim > 1 and id(p) not in embeddings else others).append(p)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


@implements(MuonConfig)
class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for the attention and feed-forward matrices of blocks, PyTorch's fused AdamW for all the rest; one state, one learning rate.

    Experts and routers use AdamW: Muon would update a matrix that no token reached with a full-size step along its old momentum.
    PyTorch's own Muon is not used because it always multiplies in bfloat16, which is very slow on processors without support for it.
    """

    def __init__(self, config: MuonConfig, model: nn.Module, parameters: list[nn.Parameter], dtype: torch.dtype) -> None:
        """Split the parameters between Muon and AdamW.

        Raises:
            ConfigError: Muon applies to none of them.
        """
        muon_ids = {id(p) for p in _block_matrices(model)}
        matrices, rest = list[nn.Parameter](), list[nn.Parameter]()
        for p in parameters:
            (matrices if id(p) in muon_ids else rest).append(p)
        if not matrices:
            raise ConfigError("training.optimizer: muon requires trainable matrices in blocks, found none; use 'adamw'")
        self.momentum, self.weight_decay = config.momentum, config.weight_decay
        self.dtype = dtype if dtype == torch.bfloat16 else None
        self.adamw = build_adamw(config, model, rest, dtype)
        super().__init__([{"params": matrices, "lr": 0.0}, *self.adamw.param_groups], {})
        self._share_state()

    def _share_state(self) -> None:
        """Make AdamW use its parameter groups and the state of this optimizer."""
        self.adamw.param_groups, self.adamw.state = self.param_groups[1:], self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of ``state_dict``."""
        super().load_state_dict(state_dict)
        self._share_state()

    def state_specs(self, parameter: nn.Parameter) -> dict[str, TensorSpec]:
        """Return the types and shapes of the state of a parameter: Muon's momentum, or AdamW's state."""
        muon_ids = any(parameter is p for p in self.param_groups[0]["params"])
        return {"momentum": TensorSpec.of(parameter)} if muon_ids else state_specs(self.adamw, parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step with both."""
        assert closure is None, "the gradients are there"
        self.adamw.step()
        (matrices, lr) = (self.param_groups[0][name] for name in ("params", "lr"))
        for p in matrices:
            if p.grad is not None:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                average = state["momentum"].lerp_(p.grad, 1 - self.momentum)
                update = newton_schulz_orthogonalize(p.grad.lerp(average, self.momentum), self.dtype)
                p.mul_(1 - lr * self.weight_decay).add_(update, alpha=-0.2 * lr * max(p.shape) ** 0.5)


def _block_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights of linear layers in blocks, without experts; with LoRA, the low-rank matrices instead."""
    excluded = {id(m) for mixture in model.modules() if isinstance(mixture, MixtureOfExperts | DepthRouter) for m in mixture.modules()}
    blocks = (m for m in model.modules() if isinstance(m, Block))
    linears = (m for block in blocks for m in block.modules() if isinstance(m, nn.Linear) and id(m) not in excluded)
    return [p for m in linears for p in m.parameters(recurse=False) if p.ndim == 2]


def newton_schulz_orthogonalize(x: Float[Tensor, "rows columns"], dtype: torch.dtype | None = None) -> Float[Tensor, "rows columns"]:
    """Return U p(S) V^T of x = U S V^T with p near 1, by five Newton-Schulz steps on x divided by its norm (Jordan et al. 2024).

    Args:
        x: any matrix.
        dtype: precision of the products; by default that of ``x``.
    """
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    x = (x / x.norm().clamp(min=1e-7)).to(dtype or x.dtype)
    wide = x if x.shape[0] <= x.shape[1] else x.T
    for _ in range(5):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if x.shape[0] <= x.shape[1] else wide.T
