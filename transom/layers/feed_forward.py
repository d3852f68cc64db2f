"""The position-wise feed-forward network, and the linear layer."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config import components, moe
from transom.config.component_registry import build, implements
from transom.config.schema import ComponentConfig
from transom.layers.activation import ACTIVATIONS, GATES, activate
from transom.layers.context import LayerContext
from transom.layers.dispatch import operation
from transom.layers.dropout import Dropout
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.observe import has_hooks, is_observed, observe


@operation("linear")
def apply_linear(
    x: Float[Tensor, "*axes d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, "d_out"] | None
) -> Float[Tensor, "*axes d_out"]:
    """Compute x W^T + b."""
    return F.linear(x, weight, bias)


@operation("linears")
def apply_linears(
    x: Float[Tensor, "*axes d_in"], weights: tuple[Float[Tensor, "... d_in"], ...], biases: tuple[Float[Tensor, "..."] | None, ...]
) -> tuple[Float[Tensor, "..."], ...]:
    """Compute x W^T + b, (*axes, d_out), for each W, (d_out, d_in), and b, (d_out,)."""
    return tuple(F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))


class Linear(nn.Linear):
    """``torch.nn.Linear``, computed by the operation ``linear``."""

    def forward(self, x: Float[Tensor, "*axes d_in"]) -> Float[Tensor, "*axes d_out"]:
        """Compute x W^T + b."""
        return apply_linear(x, self.weight, self.bias)


def project(x: Float[Tensor, "*axes d_in"], *layers: nn.Module) -> tuple[Float[Tensor, "..."], ...]:
    """Return the outputs of layers that read x, computed by the operation ``linears`` if they are ``Linear`` and have no hooks.

    Under ``torch.compile`` the layers stay separate.
    """
    if torch.compiler.is_compiling() or any(type(each) is not Linear or has_hooks(each) for each in layers):
        return tuple(each(x) for each in layers)
    return apply_linears(x, tuple(each.weight for each in layers), tuple(each.bias for each in layers))  # type: ignore[misc]


@operation("feed_forward")
def transform_tokens(
    x: Float[Tensor, "*axes d_model"],
    up: Float[Tensor, "d_ff d_model"],
    down: Float[Tensor, "d_model d_ff"],
    up_bias: Float[Tensor, "d_ff"] | None,
    down_bias: Float[Tensor, "d_model"] | None,
    gate: Float[Tensor, "d_ff d_model"] | None,
    activation: Callable[[Tensor], Tensor],
) -> Float[Tensor, "*axes d_model"]:
    """Compute f(x W_1 + b_1) W_2 + b_2, or with a gate (f(x W_g) * (x W_1 + b_1)) W_2 + b_2."""
    first, second = F.linear(x, up, up_bias), None
    if gate is not None:
        first, second = F.linear(x, gate), first
    return F.linear(activate(first, second, activation), down, down_bias)


@implements(components.FeedForwardConfig)
class FeedForward(nn.Module):
    """Two linear layers with an activation between: FFN(x) = f(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2, where f is ReLU).

    W_1 is ``up`` and W_2 is ``down``; PyTorch stores them transposed.
    """

    def __init__(self, config: components.FeedForwardConfig, d_model: int, d_ff: int, dropout: float) -> None:
        """Initialize W_1 (d_model to d_ff) and W_2 (d_ff to d_model); ``dropout`` is the dropout probability of the hidden units."""
        super().__init__()
        self.activation = ACTIVATIONS[config.kind]
        self.up = Linear(d_model, d_ff, config.bias)
        self.down = Linear(d_ff, d_model, config.bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext = LayerContext()) -> Float[Tensor, "*axes d_model"]:
        """Transform each token independently."""
        if _can_fuse(self, ctx):
            return transform_tokens(x, self.up.weight, self.down.weight, self.up.bias, self.down.bias, None, self.activation)
        hidden = activate(self.up(x), None, self.activation)
        hidden = observe(ctx, self, "hidden", hidden)
        return self.down(self.dropout(hidden))


@implements(components.GatedFeedForwardConfig)
class GatedFeedForward(nn.Module):
    """Gated linear unit: FFN(x) = (f(x W_g) * (x W_1)) W_2 (Shazeer 2020, eq. 6).

    W_g is ``gate``, W_1 is ``up`` and W_2 is ``down``; PyTorch stores them transposed.
    """

    def __init__(self, config: components.GatedFeedForwardConfig, d_model: int, d_ff: int, dropout: float) -> None:
        """Initialize W_g and W_1 (d_model to d_ff) and W_2 (d_ff to d_model); ``dropout`` is the dropout probability of the gated units."""
        super().__init__()
        self.activation = GATES[config.kind]
        self.gate = Linear(d_model, d_ff, config.bias)
        self.up = Linear(d_model, d_ff, config.bias)
        self.down = Linear(d_ff, d_model, config.bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext = LayerContext()) -> Float[Tensor, "*axes d_model"]:
        """Transform each token independently."""
        if _can_fuse(self, ctx) and self.gate.bias is None:
            weights = self.up.weight, self.down.weight, self.up.bias, self.down.bias, self.gate.weight
            return transform_tokens(x, *weights, self.activation)
        gate, up = project(x, self.gate, self.up)
        hidden = activate(gate, up, self.activation)
        hidden = observe(ctx, self, "hidden", hidden)
        return self.down(self.dropout(hidden))


def _can_fuse(layer: FeedForward | GatedFeedForward, ctx: LayerContext) -> bool:
    """Return whether one operation may compute the output: nothing reads or changes the hidden units, and no linear layer has hooks.

    Under ``torch.compile`` the layers stay separate, and the compiler fuses them.
    """
    if torch.compiler.is_compiling() or (layer.training and layer.dropout.p) or is_observed(ctx, layer, "hidden"):
        return False
    return not any(has_hooks(part) or type(part) not in (Linear, Dropout) for part in layer.children())


@implements(moe.MoeConfig)
def build_mixture_of_experts(config: moe.MoeConfig, d_model: int, d_ff: int, dropout: float) -> MixtureOfExperts:
    """Build a mixture of experts, each of which is a feed-forward network with the configuration ``config.expert``."""
    return MixtureOfExperts(config, d_model, d_ff, lambda width: build_feed_forward(config.expert, d_model, width, dropout))


def build_feed_forward(config: ComponentConfig, d_model: int, d_ff: int, dropout: float) -> nn.Module:
    """Build the feed-forward network that ``config`` selects: ungated, gated, a mixture of experts or a plugin."""
    return build(config, d_model, d_ff, dropout)
