"""Compile the training passes of a model by ``torch.compile``."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from transom.data.batch import Batch
from transom.layers.dropout import row_keys, rows_keyed_by
from transom.models.base import Network


def compile_training_passes(model: Network, **options: Any) -> None:
    """Let the forward and backward passes of a model's training steps be compiled, in place; passes with an observer are not.

    The keys of dropout masks change with each step. They are therefore an input of the compiled graph: as a context variable, which a graph
    cannot read, they would divide it at each dropout.

    Args:
        model: the model, in the layout of the run.
        options: options of ``torch.compile``.
    """
    eager = model.logit_factors

    def keyed(batch: Batch, keys: Int[Tensor, "rows"] | None) -> Any:
        with rows_keyed_by(keys):
            return eager(batch, None)

    compiled: Callable[..., Any] = torch.compile(keyed, **options)

    def logit_factors(batch: Batch, observer: Any = None) -> Any:
        if observer is not None or not (model.training and torch.is_grad_enabled()):
            return eager(batch, observer)
        return compiled(batch, row_keys())

    model.logit_factors = logit_factors  # type: ignore[method-assign]
