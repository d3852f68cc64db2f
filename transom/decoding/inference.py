"""A model made ready to answer."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def prepare(model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Freeze a model for answering: weights in the type of the matrix products, no dropout, no gradients."""
    model.to(device=device, dtype=dtype).eval().requires_grad_(False)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Turn dropout off for a while; a model in training goes back to it."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
