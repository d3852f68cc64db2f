"""The position-wise feed-forward network on a CPU, with bias and activation in one pass of C++ and without stored hidden units.

It computes what ``layers.feed_forward.transform_tokens`` does, for some tokens at a time. Only x W_1, in a gated unit also x W_g, is stored
for the backward pass, which computes the hidden units f(x W_1 + b_1) again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transom.kernels.elementwise import CODES, MIN_ELEMENTS, activate_rows, activate_rows_backward, is_supported
from transom.kernels.second_order import differentiable_gradients, needs_double_backward
from transom.layers.dispatch import REFERENCES

Activation = Callable[[Tensor], Tensor]

CHUNK_ELEMENTS = 1 << 22
"""Maximum number of hidden units at a time (16 MiB in float32): as fast as all at once, in less memory."""

PADDING = 16
"""Elements between rows of hidden units."""


def can_transform_tokens(
    x: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, down_bias: Tensor | None, gate: Tensor | None, activation: Activation
) -> bool:
    """Return whether ``transform_tokens`` applies: many tokens in bfloat16 or float32 on a CPU, and no bias beside a gate."""
    if activation not in CODES or (gate is not None and up_bias is not None) or x.numel() // x.shape[-1] * len(up) < MIN_ELEMENTS:
        return False
    dtype = _dtype_of_products(x)
    return dtype in (torch.bfloat16, torch.float32) and (dtype == up.dtype or torch.is_autocast_enabled("cpu")) and is_supported(x)


def transform_tokens(
    x: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, down_bias: Tensor | None, gate: Tensor | None, activation: Activation
) -> Tensor:
    """Compute the feed-forward network (``layers/feed_forward.py``); with autocast, products and result are in its dtype.

    Weights are cast here and not by autocast, which would keep copies without gradients for other layers that share the weights.
    """
    dtype = _dtype_of_products(x)
    x, up, down, gate = x.to(dtype).contiguous(), up.to(dtype), down.to(dtype), None if gate is None else gate.to(dtype)
    up_bias = None if up_bias is None else up_bias.float()
    if torch.is_grad_enabled():
        return _transform(x, up, down, up_bias, down_bias, gate, activation)
    return _forward(x, _Weights(up, down, up_bias, down_bias, gate), activation, keep=False)[0]


class _Weights(NamedTuple):
    up: Tensor
    down: Tensor
    up_bias: Tensor | None
    down_bias: Tensor | None
    gate: Tensor | None

    @property
    def first(self) -> Tensor:
        """The weights whose product the activation reads."""
        return self.up if self.gate is None else self.gate

    @property
    def bias_of_pass(self) -> Tensor | None:
        """The bias that is added with the activation: not in bfloat16, in which the sum, and not the product, is to be rounded."""
        return self.up_bias if self.up.dtype == torch.float32 else None

    @property
    def bias_of_product(self) -> Tensor | None:
        """The bias that is added to the first product."""
        return None if self.bias_of_pass is not None else self.up_bias


class _FeedForward(torch.autograd.Function):
    """f(x W_1 + b_1) W_2 + b_2, or (f(x W_g) * (x W_1)) W_2 + b_2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        *weights, ctx.activation = rest
        out, first, second = _forward(x, _Weights(*weights), ctx.activation, keep=True)
        ctx.save_for_backward(x, *weights, first, second)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights, first, second = ctx.saved_tensors
        if needs_double_backward():
            return differentiable_gradients(REFERENCES["feed_forward"], (x, *weights, ctx.activation), grad)
        of, wanted = _Weights(*weights), dict(zip(("x", *_Weights._fields), ctx.needs_input_grad, strict=False))
        tokens, grad, grad_x = x.flatten(0, -2), grad.flatten(0, -2), torch.empty_like(x) if wanted["x"] else None
        # sums over parts would be rounded once more in bfloat16
        parts = _parts(*first.shape) if x.dtype == torch.float32 else [slice(0, len(tokens))]
        buffers = [None if each is None else _empty_rows(x, parts[0].stop, len(of.up)) for each in (first, first, second)]
        grads = dict[str, Tensor]()
        for part in parts:
            hidden, grad_first, grad_second = (_rows(each, slice(part.stop - part.start)) for each in buffers)
            assert hidden is not None and grad_first is not None
            torch.mm(grad[part], of.down, out=grad_first)
            outputs = grad_first, grad_second, hidden
            grad_bias = activate_rows_backward(grad_first, first[part], of.bias_of_pass, _rows(second, part), ctx.activation, *outputs)
            of_up, of_gate = (grad_first, None) if grad_second is None else (grad_second, grad_first)
            for name, left, right in (("down", grad[part], hidden), ("up", of_up, tokens[part]), ("gate", of_gate, tokens[part])):
                if wanted[name] and left is not None:
                    grads[name] = grads[name].addmm_(left.T, right) if name in grads else left.T @ right
            if wanted["up_bias"]:
                grad_bias = grad_first.sum(0, dtype=torch.float32) if grad_bias is None else grad_bias
                grads["up_bias"] = grad_bias if "up_bias" not in grads else grads["up_bias"].add_(grad_bias)
            if grad_x is not None:
                grad_of_part = torch.mm(grad_first, of.first, out=grad_x.flatten(0, -2)[part])
                if grad_second is not None:
                    grad_of_part.addmm_(grad_second, of.up)
        if wanted["down_bias"]:
            grads["down_bias"] = grad.sum(0, dtype=torch.float32)
        return grad_x, *(grads.get(name) for name in _Weights._fields), None


def _forward(x: Tensor, of: _Weights, activation: Activation, keep: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the output, and the products that the backward pass reads: x W_1 and None, or x W_g and x W_1; fewer without ``keep``."""
    tokens, (d_ff, d_model) = x.flatten(0, -2), (len(of.up), len(of.down))
    parts = _parts(len(tokens), d_ff)
    first = _empty_rows(x, len(tokens) if keep else parts[0].stop, d_ff)
    second = None if of.gate is None else _empty_rows(x, len(first), d_ff)
    hidden_of_part = _empty_rows(x, parts[0].stop, d_ff) if keep else first
    out = x.new_empty(len(tokens), d_model)
    for part in parts:
        of_part = slice(part.stop - part.start)
        kept, hidden = part if keep else of_part, hidden_of_part[of_part]
        _project(tokens[part], of.first, of.bias_of_product, first[kept])
        if second is not None:
            _project(tokens[part], of.up, None, second[kept])
        activate_rows(first[kept], of.bias_of_pass, _rows(second, kept), activation, hidden)
        _project(hidden, of.down, of.down_bias, out[part])
    return out.view(*x.shape[:-1], d_model), first, second


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write x W^T + b to ``out``."""
    if bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias.to(x.dtype), x, weight.T, out=out)


def _parts(n_tokens: int, d_ff: int) -> list[slice]:
    """Divide the tokens into parts of about equal size with at most ``CHUNK_ELEMENTS`` hidden units."""
    n_parts = -(-n_tokens * d_ff // CHUNK_ELEMENTS)
    size = -(-n_tokens // n_parts)
    return [slice(start, min(start + size, n_tokens)) for start in range(0, n_tokens, size)]


def _rows(x: Tensor | None, part: slice) -> Tensor | None:
    return None if x is None else x[part]


def _empty_rows(x: Tensor, n: int, width: int) -> Tensor:
    """Return ``n`` rows that do not all begin at the same place of a memory page, which takes 1% to 4% from the time of their products."""
    return x.new_empty(n, width + PADDING)[:, :width]


def _dtype_of_products(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


_transform: Callable[..., Tensor] = _FeedForward.apply
