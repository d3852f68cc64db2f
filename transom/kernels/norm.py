"""Layer and RMS normalization with hand-written gradients, for CPUs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transom.kernels.second_order import differentiable_gradients
from transom.layers.dispatch import REFERENCES, needs_double_backward


class _Bfloat16LayerNorm(torch.autograd.Function):
    """Layer normalization in bfloat16 with PyTorch's kernels, except for the gradients of gamma and beta.

    PyTorch accumulates these two in bfloat16 on a CPU, with an error of 8% over 4,096 tokens. With n = (x - mean) / sigma and G the
    gradient of the output: dbeta = sum(G), dgamma = sum(G * n) = sum(G * x / sigma) - sum(G * mean / sigma), computed as products that
    accumulate in float32.
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
        if needs_double_backward():
            return *differentiable_gradients(REFERENCES["layer_norm"], (x, weight, bias, ctx.eps), grad)[:3], None
        grad_x = _layer_norm_input_gradient(grad, x, mean, r, weight)
        flat = grad.reshape(-1, x.shape[-1])
        sums = torch.stack([torch.ones_like(r).flatten(), (mean * r).flatten()]).to(x.dtype) @ flat
        grad_weight = _weighted_sum(r, grad * x) - sums[1]
        return grad_x, grad_weight.to(weight.dtype), None if bias is None else sums[0].to(bias.dtype), None


def _layer_norm_input_gradient(grad: Tensor, x: Tensor, mean: Tensor, r: Tensor, weight: Tensor) -> Tensor:
    """Return the input gradient of layer normalization, (u - mean(u) - n mean(u n)) r with u = weight * grad and n = (x - mean) r."""
    kernel = getattr(torch.ops.aten, "native_layer_norm_backward", None)  # undocumented
    if kernel is None:
        u, n = grad.to(r.dtype) * weight, (x.to(r.dtype) - mean) * r
        return ((u - u.mean(-1, keepdim=True) - n * (u * n).mean(-1, keepdim=True)) * r).to(x.dtype)
    out: Tensor = kernel(grad.contiguous(), x.contiguous(), x.shape[-1:], mean, r, weight, None, [True, False, False])[0]
    return out


def _normalize(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the layer-normalized vectors, and the mean and 1 / sigma of each input vector."""
    kernel = getattr(torch, "native_layer_norm", None)  # undocumented
    if kernel is None:
        variance, mean = torch.var_mean(x.to(torch.promote_types(x.dtype, torch.float32)), -1, correction=0, keepdim=True)
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps), mean, (variance + eps).rsqrt()
    outputs: tuple[Tensor, Tensor, Tensor] = kernel(x, x.shape[-1:], weight, bias, eps)
    return outputs


def _weighted_sum(r: Tensor, rows: Tensor) -> Tensor:
    """Return the weighted sum of vectors, sum_i r_i rows_i."""
    return (r.to(rows.dtype).reshape(1, -1) @ rows.reshape(-1, rows.shape[-1]))[0]


class _RmsNorm(torch.autograd.Function):
    """RMS normalization with a hand-written gradient; PyTorch's CPU implementation takes a dozen passes over memory for each direction.

    With n = x / r, r = sqrt(mean(x^2) + eps), u = gamma * G and G the gradient of gamma * n: dgamma = sum(G * n),
    dx = (u - n mean(u n)) / r. The gradient kernel of layer normalization with mean 0 returns dx - mean(u) / r.
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
        if needs_double_backward():
            return differentiable_gradients(REFERENCES["rms_norm"], (x, weight, ctx.eps), grad)
        mean = (grad @ weight.to(grad.dtype))[..., None].to(r.dtype) / x.shape[-1]
        grad_x = _layer_norm_input_gradient(grad, x, torch.zeros_like(r), r, weight).add_((mean * r).to(x.dtype))
        return grad_x, _weighted_sum(r, grad * x).to(weight.dtype), None


def can_use_16_bit_layer_norm(x: Tensor, *_: object) -> bool:
    """Return whether ``layer_norm_16_bit`` applies: 16-bit dtypes on a CPU, in training."""
    return x.dtype.itemsize < torch.float32.itemsize and x.device.type == "cpu" and torch.is_grad_enabled()


layer_norm_16_bit: Callable[..., Tensor] = _Bfloat16LayerNorm.apply
"""Apply layer normalization to 16-bit vectors on a CPU; arguments as in ``fused_layer_norm``."""

explicit_rms_norm: Callable[..., Tensor] = _RmsNorm.apply
"""Apply RMS normalization on a CPU; arguments as in ``fused_rms_norm``."""


def fused_layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Apply layer normalization (``layers/norm.py``) with PyTorch's kernel."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def fused_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply RMS normalization (``layers/norm.py``) with PyTorch's kernel."""
    return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)
