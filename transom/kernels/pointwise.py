"""ReLU, dropout with residual sum, and rotary position encoding with hand-written gradients, each in few passes over memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transom.layers.dispatch import needs_double_backward


class _Relu(torch.autograd.Function):
    """max(0, x); the gradient is a product with a 0/1 mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clamp_min(0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        if needs_double_backward():
            return grad * (y > 0)
        return torch.gt(y, 0, out=torch.empty_like(y)).mul_(grad)


class _DropoutAdd(torch.autograd.Function):
    """residual + x * mask."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return torch.addcmul(residual, x, mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad, grad * mask, None


class _Rotate(torch.autograd.Function):
    """RoPE rotation of pairs of dimensions; the backward pass rotates the gradient by the negative angles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        n_pairs = cos.shape[-1]
        exact = x.to(torch.promote_types(x.dtype, cos.dtype))
        a, b, _ = exact.split([n_pairs, n_pairs, x.shape[-1] - 2 * n_pairs], -1)
        out = exact.clone()
        out[..., :n_pairs].mul_(cos).addcmul_(b, sin, value=-1)
        out[..., n_pairs : 2 * n_pairs].mul_(cos).addcmul_(a, sin)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(grad, cos, -sin), None, None


def can_use_dropout_add(residual: Tensor, x: Tensor, mask: Tensor) -> bool:
    """Return whether ``dropout_add`` applies: on a CPU, with ``residual`` and ``x`` of the same dtype."""
    return residual.dtype == x.dtype and x.device.type == "cpu"


relu: Callable[[Tensor], Tensor] = _Relu.apply
"""Compute max(0, x)."""

dropout_add: Callable[[Tensor, Tensor, Tensor], Tensor] = _DropoutAdd.apply
"""Compute residual + x * mask; arguments (residual, x, mask)."""

rotate: Callable[[Tensor, Tensor, Tensor], Tensor] = _Rotate.apply
"""Apply RoPE as ``layers.position_encoding.rotate_pairs``; arguments (x, cos, sin), of which only ``x`` gets a gradient."""
