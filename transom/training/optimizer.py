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
"""a, b and c of the map s -> a s + b s^3 + c s^5, which five iterations bring close to 1 for s in [0.002, 1] (Jordan et al. 2024)."""


def build_optimizer(model: nn.Module, config: ComponentConfig, dtype: torch.dtype = torch.float32) -> torch.optim.Optimizer:
    """Build the optimizer, fused where PyTorch has a fused implementation.

    AdamW applies weight decay to matrices only, not to vectors (biases, gains of norms) and not to embeddings, even if an embedding is
    tied to the output projection. The learning rate is 0 until ``TrainStep`` sets it.

    Args:
        model: the model; its parameters that require gradients are optimized.
        config: kind and settings of the optimizer.
        dtype: dtype of the run's matrix products; if it is bfloat16, Muon's own products are in bfloat16 too.

    Raises:
        ConfigError: Muon is chosen, and the model has no trainable matrix to which Muon applies.
    """
    return build(config, model, [p for p in model.parameters() if p.requires_grad], dtype)


def split_groups_by_mesh(optimizer: torch.optim.Optimizer) -> None:
    """Split each parameter group so that its parameters are plain tensors, or sharded over one mesh: fused updates cannot mix them."""
    for group in list(optimizer.param_groups):
        by_mesh: dict[Any, list[Tensor]] = {}
        for p in group["params"]:
            by_mesh.setdefault(getattr(p, "device_mesh", None), []).append(p)
        first, *others = by_mesh.values() or [[]]
        group["params"] = first
        optimizer.param_groups += [{**group, "params": parameters} for parameters in others]
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        group["fused"] = group["fused"] and not any(hasattr(p, "device_mesh") for p in group["params"])  # PyTorch has none for shards


def state_specs(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, TensorSpec]:
    """Return dtype and shape, by name, of the state tensors that an optimizer keeps for a parameter that has had a gradient.

    An optimizer that is not from PyTorch, such as ``MuonAndAdamW``, must have a method ``state_specs(parameter)``.
    """
    if own := getattr(optimizer, "state_specs", None):
        return own(parameter)
    like = TensorSpec.of(parameter)
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer": like} if optimizer.defaults["momentum"] else {}
    return {"step": TensorSpec(torch.float32, ()), "exp_avg": like, "exp_avg_sq": like}


@implements(SgdConfig)
def build_sgd(config: SgdConfig, model: nn.Module, parameters: list[nn.Parameter], dtype: torch.dtype) -> torch.optim.SGD:
    """Build fused SGD with the momentum and weight decay of ``config``."""
    return torch.optim.SGD(parameters, lr=0.0, momentum=config.momentum, weight_decay=config.weight_decay, fused=True)


@implements(AdamConfig)
def build_adam(config: AdamConfig, model: nn.Module, parameters: list[nn.Parameter], dtype: torch.dtype) -> torch.optim.Adam:
    """Build fused Adam, without weight decay."""
    return torch.optim.Adam(parameters, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


@implements(AdamWConfig)
def build_adamw(config: AdamWConfig, model: nn.Module, parameters: list[nn.Parameter], dtype: torch.dtype) -> torch.optim.AdamW:
    """Build fused AdamW, with weight decay on weight matrices only."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for p in parameters:
        (decayed if p.ndim > 1 and id(p) not in embeddings else others).append(p)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


@implements(MuonConfig)
class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for the attention and feed-forward matrices of blocks, PyTorch's fused AdamW for all other parameters.

    Both share one state and one learning rate. Experts and routers use AdamW: Muon would update the matrix of an expert that no token
    reached with a full-size step along its old momentum. PyTorch's own Muon is not used because it always multiplies in bfloat16, which
    is very slow on processors without bfloat16 instructions.
    """

    def __init__(self, config: MuonConfig, model: nn.Module, parameters: list[nn.Parameter], dtype: torch.dtype) -> None:
        """Split ``parameters`` between Muon and AdamW; other arguments as for ``build_optimizer``.

        Raises:
            ConfigError: Muon applies to none of ``parameters``.
        """
        muon_ids = {id(p) for p in _block_matrices(model)}
        matrices, rest = list[nn.Parameter](), list[nn.Parameter]()
        for p in parameters:
            (matrices if id(p) in muon_ids else rest).append(p)
        if not matrices:
            raise ConfigError("training.optimizer = 'muon': expected trainable matrices in the model's blocks, found none; use 'adamw'")
        self.momentum, self.weight_decay = config.momentum, config.weight_decay
        self.dtype = dtype if dtype == torch.bfloat16 else None
        self.adamw = build_adamw(config, model, rest, dtype)
        super().__init__([{"params": matrices, "lr": 0.0}, *self.adamw.param_groups], {})
        self._share_state()

    def _share_state(self) -> None:
        """Let AdamW use the state of this optimizer and all its parameter groups but the first, which is Muon's."""
        self.adamw.param_groups, self.adamw.state = self.param_groups[1:], self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of ``state_dict`` for both Muon and AdamW."""
        super().load_state_dict(state_dict)
        self._share_state()

    def state_specs(self, parameter: nn.Parameter) -> dict[str, TensorSpec]:
        """Return dtype and shape, by name, of the state tensors of ``parameter``: Muon's momentum, or the state of AdamW."""
        muon_ids = any(parameter is p for p in self.param_groups[0]["params"])
        return {"momentum": TensorSpec.of(parameter)} if muon_ids else state_specs(self.adamw, parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters from their gradients: first those of AdamW, then those of Muon."""
        assert closure is None, "closures are not supported"
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
    """Return the matrices of linear layers in blocks, without experts and routers; with LoRA, also A and B of each adapted layer."""
    excluded = {id(m) for mixture in model.modules() if isinstance(mixture, MixtureOfExperts | DepthRouter) for m in mixture.modules()}
    blocks = (m for m in model.modules() if isinstance(m, Block))
    linears = (m for block in blocks for m in block.modules() if isinstance(m, nn.Linear) and id(m) not in excluded)
    return [p for m in linears for p in m.parameters(recurse=False) if p.ndim == 2]


def newton_schulz_orthogonalize(x: Float[Tensor, "rows columns"], dtype: torch.dtype | None = None) -> Float[Tensor, "rows columns"]:
    """Orthogonalize a matrix approximately by five Newton-Schulz steps (Jordan et al. 2024).

    For x = U S V^T, the result is U S' V^T with all singular values S' near 1. The steps start from x divided by its Frobenius norm.

    Args:
        x: any matrix.
        dtype: dtype of the products and of the result; by default that of ``x``.
    """
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    x = (x / x.norm().clamp(min=1e-7)).to(dtype or x.dtype)
    wide = x if x.shape[0] <= x.shape[1] else x.T
    for _ in range(5):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if x.shape[0] <= x.shape[1] else wide.T
