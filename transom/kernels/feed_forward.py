"""The position-wise feed-forward network on a CPU: activation (in float32 with the bias) in one pass of C++.

It computes what ``layers.feed_forward.transform_tokens`` does, for some tokens at a time. The backward pass recomputes the hidden units
from the stored first product: x W_1, in bfloat16 with its bias, and in a gated unit x W_g too.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transom.kernels.elementwise import CODES, MIN_ELEMENTS, activate_rows, activate_rows_backward, is_supported
from transom.kernels.linear import can_compute_weight_gradient, linear_16_bit, weight_gradients
from transom.kernels.second_order import differentiable_gradients
from transom.layers.dispatch import REFERENCES, needs_double_backward

Activation = Callable[[Tensor], Tensor]

CHUNK_BYTES = 1 << 24
"""Maximum size of the hidden units at a time: as fast as all at once, in less memory."""

PADDING = 16
"""Numbers between rows of hidden units in float32, with which products take 0.3% to 4% less time. In bfloat16 there must be none: on a
matrix unit, PyTorch's products multiply what lies after a row whose length is no multiple of 32 by 0, and NaN times 0 is NaN."""


def can_transform_tokens(
    x: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, down_bias: Tensor | None, gate: Tensor | None, activation: Activation
) -> bool:
    """Return whether ``transform_tokens`` applies: many hidden units in bfloat16 or float32 on a CPU, and no bias beside a gate."""
    if x.dim() < 2 or activation not in CODES or (gate is not None and up_bias is not None):
        return False
    if x.numel() // x.shape[-1] * len(up) < MIN_ELEMENTS:
        return False
    if (up_bias is not None and len(up_bias) != len(up)) or (gate is not None and gate.shape != up.shape):
        return False  # PyTorch broadcasts the one and explains the other
    dtype = _dtype_of_products(x)
    return dtype in (torch.bfloat16, torch.float32) and (dtype == up.dtype or torch.is_autocast_enabled("cpu")) and is_supported(x)


def transform_tokens(
    x: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, down_bias: Tensor | None, gate: Tensor | None, activation: Activation
) -> Tensor:
    """Compute the feed-forward network (``layers/feed_forward.py``); with autocast, products and result are in its dtype.

    Weights are cast here and not by autocast, which would keep copies without gradients for other layers that share the weights.
    """
    dtype = _dtype_of_products(x)
    x, weights = x.to(dtype).contiguous(), _Weights(up, down, None if up_bias is None else up_bias.float().contiguous(), down_bias, gate)
    if torch.is_grad_enabled():
        return _transform(x, *weights, activation)
    return _forward(x, weights.to(dtype), activation, keep=False)[0]


class _Weights(NamedTuple):
    up: Tensor
    down: Tensor
    up_bias: Tensor | None
    down_bias: Tensor | None
    gate: Tensor | None

    def to(self, dtype: torch.dtype) -> "_Weights":
        """Return the weights in ``dtype``, and the biases as they are."""
        gate = None if self.gate is None else self.gate.to(dtype)
        return self._replace(up=self.up.to(dtype), down=self.down.to(dtype), gate=gate)

    @property
    def first(self) -> Tensor:
        """The weights whose product the activation reads."""
        return self.up if self.gate is None else self.gate

    @property
    def activation_bias(self) -> Tensor | None:
        """Bias fused with the activation; None in bfloat16, where the product adds it, so that only the sum is rounded."""
        return self.up_bias if self.up.dtype == torch.float32 else None

    @property
    def linear_bias(self) -> Tensor | None:
        """The bias that is added to the first product."""
        return None if self.activation_bias is not None else self.up_bias


class _FeedForward(torch.autograd.Function):
    """f(x W_1 + b_1) W_2 + b_2, or (f(x W_g) * (x W_1)) W_2 + b_2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        *weights, ctx.activation = rest
        cast = _Weights(*weights).to(x.dtype)
        out, first, second = _forward(x, cast, ctx.activation, keep=True)
        ctx.save_for_backward(x, *weights, *cast, first, second)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, *weights), cast, (first, second) = (saved := ctx.saved_tensors)[:6], saved[6:11], saved[11:]
        with torch.autocast("cpu", enabled=False):
            if needs_double_backward():
                return differentiable_gradients(_reference, (x, *weights, ctx.activation), grad)
            wanted = dict(zip(("x", *_Weights._fields), ctx.needs_input_grad, strict=False))
            grads = _backward(grad, x, _Weights(*cast), first, second, ctx.activation, wanted)
        return *(grads.get(name) for name in wanted), None


def _reference(x: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, down_bias: Tensor | None, *rest: Any) -> Tensor:
    """Compute the reference in the dtype of ``x``."""
    *weights, activation = up, down, up_bias, down_bias, *rest
    out: Tensor = REFERENCES["feed_forward"](x, *(None if each is None else each.to(x.dtype) for each in weights), activation)
    return out


def _forward(x: Tensor, weights: _Weights, activation: Activation, keep: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the output, and what the backward pass reads: x W_1 and None, or x W_g and x W_1; of the last part only without ``keep``."""
    shape, x, d_ff = (*x.shape[:-1], len(weights.down)), x.flatten(0, -2), len(weights.up)
    parts = _parts(len(x), d_ff * x.element_size())
    if len(parts) == 1 and x.dtype == torch.bfloat16:
        first = _project(x, weights.first, weights.linear_bias)
        second = None if weights.gate is None else _project(x, weights.up, None)
        hidden = activate_rows(first, None, second, activation, torch.empty_like(first) if keep else first)
        return _project(hidden, weights.down, weights.down_bias).view(shape), first, second
    out = x.new_empty(shape)
    flat_out = out.flatten(0, -2)
    first = _empty_rows(x, len(x) if keep else parts[0].stop, d_ff)
    second = None if weights.gate is None else _empty_rows(x, len(first), d_ff)
    buffer = _empty_rows(x, parts[0].stop, d_ff) if keep else first
    for part in parts:
        own = slice(part.stop - part.start)
        kept, hidden = part if keep else own, buffer[own]
        _project(x[part], weights.first, weights.linear_bias, first[kept])
        if second is not None:
            _project(x[part], weights.up, None, second[kept])
        activate_rows(first[kept], weights.activation_bias, _rows(second, kept), activation, hidden)
        _project(hidden, weights.down, weights.down_bias, flat_out[part])
    return out, first, second


def _backward(
    grad: Tensor, x: Tensor, weights: _Weights, first: Tensor, second: Tensor | None, activation: Activation, wanted: dict[str, bool]
) -> dict[str, Tensor]:
    """Return the gradients of the wanted inputs by name; ``first`` and ``second`` are the products of the forward pass."""
    grads = {"x": torch.empty_like(x)} if wanted["x"] else {}
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()  # not, for example, that of a sum
    grad, x, grad_x = grad.flatten(0, -2), x.flatten(0, -2), grads["x"].flatten(0, -2) if wanted["x"] else None
    on_matrix_unit = can_compute_weight_gradient(first, x)
    exact = x.dtype == torch.float32 or on_matrix_unit  # else sums over parts would be rounded once more
    parts = _parts(len(first), first.shape[1] * x.element_size()) if exact else [slice(0, len(x))]
    buffers = [None if each is None else _rows_like(first, parts[0].stop) for each in (first, first, second)]
    for part in parts:
        hidden, grad_first, grad_second = (_rows(each, slice(part.stop - part.start)) for each in buffers)
        assert hidden is not None and grad_first is not None
        torch.mm(grad[part], weights.down, out=grad_first)
        grad_bias = None if weights.up_bias is None else torch.empty_like(weights.up_bias)
        outputs = grad_first, grad_second, hidden, grad_bias
        activate_rows_backward(grad_first, first[part], weights.activation_bias, _rows(second, part), activation, *outputs)
        grad_up, grad_gate = (grad_first, None) if grad_second is None else (grad_second, grad_first)
        for of_outputs, inputs in (({"down": grad[part]}, hidden), ({"up": grad_up, "gate": grad_gate}, x[part])):
            chosen = {name: each for name, each in of_outputs.items() if wanted[name] and each is not None}
            grads |= _add_weight_gradients(grads, chosen, inputs, on_matrix_unit, with_bias={"down"} if wanted["down_bias"] else set())
        if wanted["up_bias"] and grad_bias is not None:
            grads["up_bias"] = grad_bias if "up_bias" not in grads else grads["up_bias"].add_(grad_bias)
        if grad_x is not None:
            torch.mm(grad_first, weights.first, out=grad_x[part])
            if grad_second is not None:
                grad_x[part].addmm_(grad_second, weights.up)
    if wanted["down_bias"] and "down_bias" not in grads:
        grads["down_bias"] = grad.sum(0, dtype=torch.float32)
    return grads


def _add_weight_gradients(
    totals: dict[str, Tensor], grads: dict[str, Tensor], x: Tensor, on_matrix_unit: bool, with_bias: set[str]
) -> dict[str, Tensor]:
    """Return G^T X by name, added in place to ``totals[name]`` if present.

    With ``on_matrix_unit`` they are in float32, and sum(G) is returned as ``{name}_bias`` for the names in ``with_bias``.
    """
    if not on_matrix_unit:
        return {name: totals[name].addmm_(grad.T, x) if name in totals else grad.T @ x for name, grad in grads.items()}
    if not grads:
        return {}
    add_to = [totals[name] for name in grads if name in totals] or None
    sums = dict[str, Tensor]()
    for name, (weight, bias) in zip(
        grads, weight_gradients([*grads.values()], x, [name in with_bias for name in grads], add_to), strict=True
    ):
        sums[name] = weight
        if bias is not None:
            sums[f"{name}_bias"] = bias if add_to is None else totals[f"{name}_bias"].add_(bias)
    return sums


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Return x W^T + b, and write it to ``out`` unless that is None."""
    if bias is None:
        return torch.mm(x, weight.T, out=out)
    bias = bias.to(x.dtype)
    return linear_16_bit(x, weight, bias) if out is None else torch.addmm(bias, x, weight.T, out=out)


def _parts(n_tokens: int, token_bytes: int) -> list[slice]:
    """Divide the tokens into parts of about equal size with at most ``CHUNK_BYTES`` of hidden units."""
    n_parts = -(-n_tokens * token_bytes // CHUNK_BYTES)
    size = -(-n_tokens // n_parts)
    return [slice(start, min(start + size, n_tokens)) for start in range(0, n_tokens, size)]


def _rows(x: Tensor | None, part: slice) -> Tensor | None:
    return None if x is None else x[part]


def _empty_rows(x: Tensor, n: int, width: int) -> Tensor:
    """Return ``n`` empty rows, in float32 with padding between them."""
    padding = PADDING if x.dtype == torch.float32 else 0
    return x.new_empty(n, width + padding)[:, :width]


def _rows_like(x: Tensor, n: int) -> Tensor:
    """Return ``n`` empty rows as wide and as far apart as those of ``x``."""
    return x.new_empty(n, x.stride(0))[:, : x.shape[1]]


def _dtype_of_products(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


_transform: Callable[..., Tensor] = _FeedForward.apply
