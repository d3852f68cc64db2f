"""Second derivatives of hand-written autograd functions: their gradient, computed so that it can be differentiated again."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def wants_graph() -> bool:
    """Return whether the backward pass that runs is to be differentiated itself: ``create_graph=True``."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def differentiable_gradients(forward: Callable[..., Tensor], inputs: Sequence[Any], grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of ``forward(*inputs)`` with their graph; None for an input that needs none.

    A hand-written backward pass calls this where ``wants_graph()``: its own formula reads tensors that forward computed out of
    autograd's sight, so its result would have a wrong derivative.

    Args:
        forward: the same function of the same tensors, in operations that autograd records. What was drawn must be passed in, not drawn.
        inputs: the function's inputs; those saved by ``save_for_backward`` still have their own graph.
        grad: of the output.
    """
    with torch.enable_grad():
        own = [x.view_as(x) if isinstance(x, Tensor) and x.requires_grad else x for x in inputs]  # one tensor may be two inputs
        out = forward(*own)
    wanted = [x for x in own if isinstance(x, Tensor) and x.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad.to(out.dtype), create_graph=True, allow_unused=True))
    return tuple(next(found) if isinstance(x, Tensor) and x.requires_grad else None for x in own)
