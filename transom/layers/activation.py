"""Activation functions of the feed-forward network."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.layers.dispatch import operation


@operation("relu")
def relu(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Compute max(0, x)."""
    return F.relu(x)


@operation("activation")
def activate(
    x: Float[Tensor, "*axes"], up: Float[Tensor, "*axes"] | None, activation: Callable[[Tensor], Tensor]
) -> Float[Tensor, "*axes"]:
    """Compute f(x), or f(x) * ``up`` in a gated unit."""
    return activation(x) if up is None else activation(x) * up


def squared_relu(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Compute max(0, x)^2 (So et al. 2021)."""
    return relu(x).square()


def gelu_tanh(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Compute GELU's tanh approximation: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": F.gelu,
    "gelu-tanh": gelu_tanh,
    "silu": F.silu,
    "squared-relu": squared_relu,
}
"""Maps the ``kind`` of an ungated feed-forward configuration to its activation function."""

POOLER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": relu, "gelu": F.gelu}
"""Maps ``pooler_activation`` of a classifier to the activation function of its pooler."""

GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": torch.sigmoid,
    "reglu": relu,
    "geglu": F.gelu,
    "geglu-tanh": gelu_tanh,
    "swiglu": F.silu,
}
"""Maps the ``kind`` of a gated feed-forward configuration to the activation function of its gate."""
