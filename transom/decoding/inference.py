"""A model made ready to answer, and what it is asked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from transom.errors import DataError

Tell = Callable[[int, int], None]
"""Is told how many are done, of how many, from batch to batch."""


def unheard(done: int, total: int) -> None:
    """Tell nobody."""


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


def refuse_one(given: object, what: str) -> None:
    """Refuse one text, or one file's name, in place of a list of them.

    Raises:
        DataError: it is one.
    """
    if isinstance(given, str | Path):
        raise DataError(f"expected a list of {what}s, found one {what}; put it in brackets: [{what}]")
