"""Normalization layers.

To add a norm to the package, write its schema in ``config/components.py`` and a subclass of ``Norm`` with ``@implements`` here;
CONTRIBUTING.md lists the required tests. To use a norm without changing the package, write the same two classes in a file of your own, a
plugin: docs/extending.md.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config import components
from transom.config.component_registry import build, implements
from transom.config.schema import ComponentConfig
from transom.layers.context import LayerContext
from transom.layers.dispatch import operation
from transom.layers.observe import observe


@implements(components.NoNormConfig)
class Norm(nn.Module):
    """Base class of norms. The class itself is the norm ``none``, the identity."""

    def __init__(self, config: Any, width: int) -> None:
        """Initialize for vectors of ``width`` elements."""
        super().__init__()

    def forward(self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext = LayerContext()) -> Float[Tensor, "*axes d_model"]:
        """Return ``x`` unchanged."""
        x = observe(ctx, self, "x", x)
        return x


@operation("layer_norm")
def layer_norm(
    x: Float[Tensor, "*axes d_model"], weight: Float[Tensor, "d_model"], bias: Float[Tensor, "d_model"] | None, eps: float
) -> Float[Tensor, "*axes d_model"]:
    """Compute gamma * (x - mean) / sqrt(variance + eps) + beta, in float32 or wider (Ba et al. 2016, eq. 4)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centered = wide - wide.mean(-1, keepdim=True)
    y = centered * (centered.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
    return (y if bias is None else y + bias).to(x.dtype)


@operation("rms_norm")
def rms_norm(x: Float[Tensor, "*axes d_model"], weight: Float[Tensor, "d_model"], eps: float) -> Float[Tensor, "*axes d_model"]:
    """Compute gamma * x / sqrt(mean(x^2) + eps), in float32 or wider (Zhang & Sennrich 2019, eq. 4)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(x.dtype)


@implements(components.LayerNormConfig)
class LayerNorm(Norm):
    """Layer normalization: gamma * (x - mean) / sqrt(variance + eps) + beta over d_model (Ba et al. 2016, eq. 4).

    The variance is the biased estimate. Statistics are computed in float32 or wider.
    """

    def __init__(self, config: components.LayerNormConfig, width: int) -> None:
        """Initialize gamma (``weight``, ones) and beta (``bias``, zeros; optional)."""
        super().__init__(config, width)
        self.eps = config.eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if config.bias else None

    def forward(self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext = LayerContext()) -> Float[Tensor, "*axes d_model"]:
        """Normalize each vector."""
        x = observe(ctx, self, "x", x)
        return layer_norm(x, self.weight, self.bias, self.eps)


@implements(components.RmsNormConfig)
class RmsNorm(Norm):
    """Root-mean-square normalization (RMSNorm): gamma * x / sqrt(mean(x^2) + eps) over d_model (Zhang & Sennrich 2019, eq. 4).

    Statistics are computed in float32 or wider.
    """

    def __init__(self, config: components.RmsNormConfig, width: int) -> None:
        """Initialize gamma (``weight``, ones)."""
        super().__init__(config, width)
        self.eps = config.eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext = LayerContext()) -> Float[Tensor, "*axes d_model"]:
        """Normalize each vector."""
        x = observe(ctx, self, "x", x)
        return rms_norm(x, self.weight, self.eps)


@implements(components.DynamicTanhConfig)
class DynamicTanh(Norm):
    """Dynamic tanh, a replacement of normalization: gamma * tanh(alpha * x) + beta (Zhu et al. 2025, eq. 1)."""

    def __init__(self, config: components.DynamicTanhConfig, width: int) -> None:
        """Initialize gamma (``weight``, ones), beta (``bias``, zeros) and alpha."""
        super().__init__(config, width)
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.alpha = nn.Parameter(torch.tensor(config.alpha))

    def forward(self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext = LayerContext()) -> Float[Tensor, "*axes d_model"]:
        """Apply the scaled tanh to each element."""
        x = observe(ctx, self, "x", x)
        return (torch.tanh(self.alpha * x) * self.weight + self.bias).to(x.dtype)


class BatchStatistics(NamedTuple):
    """Number of tokens of a forward pass, and mean and biased variance of each feature over these tokens."""

    n_tokens: Int[Tensor, ""]
    mean: Float[Tensor, "d_model"]
    variance: Float[Tensor, "d_model"]


@implements(components.BatchNormConfig)
class BatchNorm(Norm):
    """Batch normalization: gamma * (x - mean) / sqrt(variance + eps) + beta, statistics over tokens without padding (Ioffe & Szegedy 2015).

    Training uses the statistics of the pass (algorithm 1), so that the output of a token depends on the other tokens; evaluation uses
    running statistics (algorithm 2). The forward pass does not update the running statistics. In training it exposes ``n_tokens``, ``mean``
    and ``variance`` as sites for an observer (``layers/observe.py``), from which the training objective updates the running statistics once
    per step, over all micro-batches. Statistics are computed in float32 or wider.
    """

    def __init__(self, config: components.BatchNormConfig, width: int) -> None:
        """Initialize gamma (``weight``, ones), beta (``bias``, zeros) and the running statistics (``mean`` zeros, ``variance`` ones)."""
        super().__init__(config, width)
        self.eps, self.momentum = config.eps, config.momentum
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.mean: Tensor
        self.variance: Tensor
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext = LayerContext()) -> Float[Tensor, "*axes d_model"]:
        """Normalize each feature: in training over the tokens of this pass, in evaluation with the running statistics."""
        x = observe(ctx, self, "x", x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance = self.batch_statistics(wide, ctx) if self.training else (self.mean, self.variance)
        return ((wide - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)

    def batch_statistics(
        self, x: Float[Tensor, "*axes d_model"], ctx: LayerContext
    ) -> tuple[Float[Tensor, "d_model"], Float[Tensor, "d_model"]]:
        """Return mean and biased variance of each feature over the tokens, padding excluded."""
        if ctx.token_mask is None:
            valid = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        else:
            valid = ctx.token_mask.expand(x.shape[:-1])
        rows, n_tokens = x[valid], valid.sum()
        n_tokens = observe(ctx, self, "n_tokens", n_tokens)
        mean = rows.sum(0) / n_tokens.clamp_min(1)
        mean = observe(ctx, self, "mean", mean)
        variance = (rows - mean).square().sum(0) / n_tokens.clamp_min(1)
        variance = observe(ctx, self, "variance", variance)
        return mean, variance

    @torch.no_grad()
    def update_running_statistics(self, passes: Sequence[BatchStatistics]) -> None:
        """Update the running mean and unbiased variance from the statistics of all micro-batches of a training step, combined."""
        counts = [int(each.n_tokens) for each in passes]
        if (n := sum(counts)) < 2:
            return
        fractions = [count / n for count in counts]
        mean = sum((fraction * each.mean for fraction, each in zip(fractions, passes, strict=True)), torch.zeros_like(self.mean))
        variances = (fraction * (each.variance + (each.mean - mean).square()) for fraction, each in zip(fractions, passes, strict=True))
        variance = sum(variances, torch.zeros_like(mean)) * n / (n - 1)
        self.mean.lerp_(mean.to(self.mean), self.momentum)
        self.variance.lerp_(variance.to(self.variance), self.momentum)


def build_norm(config: ComponentConfig, width: int) -> Norm:
    """Build the norm that ``config`` selects, for vectors of ``width`` elements."""
    return build(config, width)
