"""Trace which kernel of the dispatch table computes each operation of each layer."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from transom.config.architecture import Architecture, TextNetwork
from transom.config.vision import ImageClassifier
from transom.data.batch import Batch, ImageBatch, translation_batch
from transom.data.tokenizer.special import EOS
from transom.layers.dispatch import REFERENCES, ROWS, Row, rows_of
from transom.models.network import Network

ROWS_OF_BATCH, LENGTH = 8, 64
"""Rows and tokens per row of a typical batch; the tokens are limited by the context window."""


class Taken(NamedTuple):
    """The kernel that computed an operation of a layer.

    Attributes:
        layer: address of the module.
        operation: name of the operation in the dispatch table.
        path: name of the kernel.
        why: reason for its use.
        calls: calls per forward pass.
    """

    layer: str
    operation: str
    path: str
    why: str
    calls: int


def reference_row(operation: str) -> Row:
    """Return the table row of the reference, used where no kernel applies."""
    why = "; ".join(f"{row.path} serves {row.when}" for row in rows_of(operation)) or "there are no kernels in this process"
    return Row(operation, "reference", "everywhere else", lambda *_: True, REFERENCES[operation], 0.0, why)


def typical_batch(config: Architecture, dtype: torch.dtype) -> Batch:
    """Build a batch for a model family, pixels in ``dtype``; a translation batch has the inputs of every text model."""
    if isinstance(config, ImageClassifier):
        pixels = torch.zeros(ROWS_OF_BATCH, config.channels, config.image_size, config.image_size, dtype=dtype)
        return ImageBatch(pixels, torch.zeros(ROWS_OF_BATCH, dtype=torch.long), tuple(range(ROWS_OF_BATCH)))
    assert isinstance(config, TextNetwork)
    row = [EOS] * min(LENGTH, config.max_seq_len - 1)
    return translation_batch([row] * ROWS_OF_BATCH, [row] * ROWS_OF_BATCH, range(ROWS_OF_BATCH))


def paths_taken(model: Network, batch: Batch, training: bool = False) -> list[Taken]:
    """Run a model on a batch and return the kernel of each operation, in order of first use.

    Args:
        model: the model; its weights and the caller's random state are unchanged.
        batch: input of the model.
        training: run with gradients and dropout.
    """
    found = Counter[tuple[str, Row]]()
    was_training = model.training
    with torch.random.fork_rng([]), torch.set_grad_enabled(training), _noting(model, found):
        model.train(training)(batch)
    model.train(was_training)
    return [Taken(layer, row.operation, row.path, row.why, calls) for (layer, row), calls in found.items()]


@contextmanager
def _noting(model: Network, found: Counter[tuple[str, Row]]) -> Iterator[None]:
    """Count the calls of each table row per calling module."""
    open_modules, kept = [""], {name: rows_of(name) for name in REFERENCES}

    def enter(name: str, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        open_modules.append(name)
        try:
            return forward(*args, **named)
        finally:
            open_modules.pop()

    def note(row: Row, *args: Any) -> Any:
        found[open_modules[-1], row] += 1
        return row.implementation(*args)

    modules = dict(model.named_modules())
    try:
        for name, rows in kept.items():
            ROWS[name] = [row._replace(implementation=partial(note, row)) for row in (*rows, reference_row(name))]
        for name, module in modules.items():
            module.forward = partial(enter, name, module.forward)
        yield
    finally:
        ROWS.update(kept)
        for module in modules.values():
            del module.forward
