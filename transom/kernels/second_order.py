"""Double backward for hand-written autograd functions: gradients that can be differentiated again."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def differentiable_gradients(forward: Callable[..., Tensor], inputs: Sequence[Any], grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of ``forward(*inputs)``, which can be differentiated again; None for an input that requires no gradient.

    A hand-written backward pass calls this if ``layers.dispatch.needs_double_backward()``. Its usual formula reads tensors that the
    forward pass computed without autograd, so the derivative of the gradients would be wrong.

    Args:
        forward: the function of the forward pass, in operations that autograd records. Random masks must be inputs, not sampled again.
        inputs: inputs of the function; inputs saved with ``save_for_backward`` still have their autograd graph.
        grad: gradient of the output.
    """
    with torch.enable_grad():
        views = [x.view_as(x) if isinstance(x, Tensor) and x.requires_grad else x for x in inputs]  # one tensor may be two inputs
        out = forward(*views)
    differentiable = [x for x in views if isinstance(x, Tensor) and x.requires_grad]
    grads = iter(torch.autograd.grad(out, differentiable, grad.to(out.dtype), create_graph=True, allow_unused=True))
    return tuple(next(grads) if isinstance(x, Tensor) and x.requires_grad else None for x in views)
