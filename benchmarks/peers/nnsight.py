"""A recording pass of nnsight, which reads the source of the block that it runs: it cannot be a lambda."""

from collections.abc import Callable
from typing import Any

import nnsight
from torch import Tensor


def traced_pass(model: Any, x: Tensor, n_layers: int) -> Callable[[], object]:
    """Return a pass that saves the projections and the residual stream of every block."""
    wrapped = nnsight.NNsight(model)

    def run() -> object:
        with wrapped.trace(x):
            saved = list().save()  # type: ignore[attr-defined]  # noqa: C408
            for i in range(n_layers):
                saved.append(wrapped.transformer.h[i].attn.c_attn.output)
                saved.append(wrapped.transformer.h[i].output)
        return saved

    return run
