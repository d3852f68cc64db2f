"""Normalisation of tokens' vectors."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config import bricks
from transom.config.brick import Brick
from transom.config.components import build, implements
from transom.layers.second_order import differentiable_gradients, wants_graph
from transom.layers.tap import Scope, tap


@implements(bricks.NoNorm)
class Norm(nn.Module):
    """What every kind has, and what ``none`` is: the vector as it is."""

    def __init__(self, brick: Any, width: int) -> None:
        """Make what the brick describes for vectors of ``width`` columns."""
        super().__init__()

    def forward(
        self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None, real: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*axes d_model"]:
        """Normalise each vector; ``real`` is False at padding, which counts in no statistics."""
        x = tap(taps, "x", x)
        return x


@implements(bricks.LayerNorm)
class LayerNorm(Norm):
    """Layer normalisation: gamma * (x - mean) / sqrt(variance + eps) + beta over d_model (Ba et al. 2016, eq. 4).

    The variance is the biased one. Statistics are in float32 at least, whatever the type of ``x``.
    """

    def __init__(self, brick: bricks.LayerNorm, width: int) -> None:
        """Make gamma (``weight``, ones) and beta (``bias``, zeros, or none)."""
        super().__init__(brick, width)
        self.eps = brick.eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if brick.bias else None

    def forward(
        self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None, real: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*axes d_model"]:
        """Normalise each vector."""
        x = tap(taps, "x", x)
        if x.device.type != "cpu" or x.dtype.itemsize >= torch.float32.itemsize or not torch.is_grad_enabled():
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
        out: Tensor = _ShortLayerNorm.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return out


@implements(bricks.RmsNorm)
class RmsNorm(Norm):
    """Root-mean-square normalisation: gamma * x / sqrt(mean(x^2) + eps) over d_model (Zhang & Sennrich 2019, eq. 4).

    Statistics are in float32 at least, whatever the type of ``x``.
    """

    def __init__(self, brick: bricks.RmsNorm, width: int) -> None:
        """Make gamma (``weight``, ones)."""
        super().__init__(brick, width)
        self.eps = brick.eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(
        self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None, real: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*axes d_model"]:
        """Normalise each vector."""
        x = tap(taps, "x", x)
        if x.device.type != "cpu":
            return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)
        out: Tensor = _RootMeanSquare.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Compute gamma (x - mean) / sqrt(variance + eps) + beta in plain operations, in float32 at least."""
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    centered = exact - exact.mean(-1, keepdim=True)
    y = centered * (centered.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
    return (y if bias is None else y + bias).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute gamma x / sqrt(mean(x^2) + eps) in plain operations, in float32 at least."""
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    return (exact * (exact.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(x.dtype)


class _ShortLayerNorm(torch.autograd.Function):
    """Layer normalisation of bfloat16 with PyTorch's kernels, but for the gradients of gamma and beta.

    On a CPU these are added up in bfloat16 there, which puts them off by 8 % over 4,096 tokens. With n = (x - mean) / sigma and G the
    gradient: dbeta = sum(G), dgamma = sum(G * n) = sum(G * x / sigma) - sum(G * mean / sigma), as products that add up in float32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        out, mean, r = _normalize(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, r)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, r = ctx.saved_tensors
        if wants_graph():
            return *differentiable_gradients(layer_norm, (x, weight, bias, ctx.eps), grad)[:3], None
        grad_x = _gradient_of_input(grad, x, mean, r, weight)
        flat = grad.reshape(-1, x.shape[-1])
        sums = torch.stack([torch.ones_like(r).flatten(), (mean * r).flatten()]).to(x.dtype) @ flat
        grad_weight = _weighted_sum(r, grad * x) - sums[1]
        return grad_x, grad_weight.to(weight.dtype), None if bias is None else sums[0].to(bias.dtype), None


def _gradient_of_input(grad: Tensor, x: Tensor, mean: Tensor, r: Tensor, weight: Tensor) -> Tensor:
    """Return (u - mean(u) - n mean(u n)) r for u = weight * grad, n = (x - mean) r: the kernel of layer normalisation."""
    kernel = getattr(torch.ops.aten, "native_layer_norm_backward", None)  # undocumented
    if kernel is None:
        u, n = grad.to(r.dtype) * weight, (x.to(r.dtype) - mean) * r
        return ((u - u.mean(-1, keepdim=True) - n * (u * n).mean(-1, keepdim=True)) * r).to(x.dtype)
    out: Tensor = kernel(grad.contiguous(), x.contiguous(), x.shape[-1:], mean, r, weight, None, [True, False, False])[0]
    return out


def _normalize(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised vectors, and the mean and 1 / sigma of each."""
    kernel = getattr(torch, "native_layer_norm", None)  # undocumented
    if kernel is None:
        variance, mean = torch.var_mean(x.to(torch.promote_types(x.dtype, torch.float32)), -1, correction=0, keepdim=True)
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps), mean, (variance + eps).rsqrt()
    found: tuple[Tensor, Tensor, Tensor] = kernel(x, x.shape[-1:], weight, bias, eps)
    return found


def _weighted_sum(r: Tensor, rows: Tensor) -> Tensor:
    """Add up rows, each times its number."""
    return (r.to(rows.dtype).reshape(1, -1) @ rows.reshape(-1, rows.shape[-1]))[0]


class _RootMeanSquare(torch.autograd.Function):
    """RMS normalisation with its gradient written out; on a CPU PyTorch composes both of a dozen passes over memory.

    With n = x / r, r = sqrt(mean(x^2) + eps), u = gamma * G and G the gradient of gamma * n: dgamma = sum(G * n),
    dx = (u - n mean(u n)) / r. The kernel of layer normalisation's gradient, told that the mean is 0, gives that less mean(u) / r.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=exact).square_().div_(x.shape[-1])
        r = mean_square.add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        ctx.eps = eps
        return (x.to(exact) * r).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, r = ctx.saved_tensors
        if wants_graph():
            return differentiable_gradients(rms_norm, (x, weight, ctx.eps), grad)
        mean = (grad @ weight.to(grad.dtype))[..., None].to(r.dtype) / x.shape[-1]
        grad_x = _gradient_of_input(grad, x, torch.zeros_like(r), r, weight).add_((mean * r).to(x.dtype))
        return grad_x, _weighted_sum(r, grad * x).to(weight.dtype), None


@implements(bricks.DynamicTanh)
class DynamicTanh(Norm):
    """A bounded curve in a norm's place: gamma * tanh(alpha * x) + beta (Zhu et al. 2025, eq. 1)."""

    def __init__(self, brick: bricks.DynamicTanh, width: int) -> None:
        """Make gamma (``weight``, ones), beta (``bias``, zeros) and alpha."""
        super().__init__(brick, width)
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.alpha = nn.Parameter(torch.tensor(brick.alpha))

    def forward(
        self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None, real: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*axes d_model"]:
        """Bend each vector."""
        x = tap(taps, "x", x)
        return (torch.tanh(self.alpha * x) * self.weight + self.bias).to(x.dtype)


class _Statistics(NamedTuple):
    """How many tokens there were, and the mean and the variance of each column over them."""

    n: int
    mean: Tensor
    variance: Tensor


@implements(bricks.BatchNorm)
class BatchNorm(Norm):
    """Batch normalisation: gamma * (x - mean) / sqrt(variance + eps) + beta, mean and variance over true tokens (Ioffe & Szegedy 2015).

    Training normalises by the statistics of the tokens of a pass (algorithm 1), so tokens depend on each other; evaluation by the running
    ones (algorithm 2). Those of passes that are learnt from are kept until ``end_step``: the running ones move once a step, by what all of
    its passes saw together, and not for a step that is not made. Statistics are in float32 at least.
    """

    def __init__(self, brick: bricks.BatchNorm, width: int) -> None:
        """Make gamma (``weight``, ones), beta (``bias``, zeros) and the running statistics (zeros and ones)."""
        super().__init__(brick, width)
        self.eps, self.momentum = brick.eps, brick.momentum
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.mean: Tensor
        self.variance: Tensor
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.passes: list[_Statistics] = []

    def forward(
        self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None, real: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*axes d_model"]:
        """Normalise each column."""
        x = tap(taps, "x", x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance = self.measured(wide, real) if self.training else (self.mean, self.variance)
        return ((wide - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)

    def measured(
        self, x: Float[Tensor, "*axes d_model"], real: Bool[Tensor, "..."] | None
    ) -> tuple[Float[Tensor, "d_model"], Float[Tensor, "d_model"]]:
        """Return mean and variance of each column over the true tokens."""
        there = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device) if real is None else real.expand(x.shape[:-1])
        rows = x[there]
        n = max(len(rows), 1)
        mean = rows.sum(0) / n
        variance = (rows - mean).square().sum(0) / n
        if torch.is_grad_enabled():
            self.passes.append(_Statistics(len(rows), mean.detach(), variance.detach()))
        return mean, variance

    @torch.no_grad()
    def end_step(self, updated: bool) -> None:
        """Move the running statistics by those of a step's tokens, unless its update was not made; the variance is the unbiased one."""
        passes, self.passes = self.passes, []
        n = sum(each.n for each in passes)
        if not updated or n < 2:
            return
        shares = [each.n / n for each in passes]
        mean = sum((share * each.mean for share, each in zip(shares, passes, strict=True)), torch.zeros_like(self.mean))
        spreads = (share * (each.variance + (each.mean - mean).square()) for share, each in zip(shares, passes, strict=True))
        variance = sum(spreads, torch.zeros_like(mean)) * n / (n - 1)
        self.mean.lerp_(mean.to(self.mean), self.momentum)
        self.variance.lerp_(variance.to(self.variance), self.momentum)


def build_norm(brick: Brick, width: int) -> Norm:
    """Build the norm that a brick describes, for vectors of ``width`` columns."""
    return build(brick, width)
