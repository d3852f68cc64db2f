"""Trace which kernel of the dispatch table computes each operation of each layer."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from transom.config.architecture import ModelConfig, TextModelConfig
from transom.config.vision import ImageClassifierConfig
from transom.data.batch import Batch, ImageBatch, translation_batch
from transom.data.tokenizer.special_tokens import EOS
from transom.layers.dispatch import KERNEL_TABLE, REFERENCES, Kernel, kernels_of
from transom.layers.dropout import keyed_dropout, keyed_rows, name_dropout_sites
from transom.models.base import Network

BATCH_SIZE, SEQUENCE_LENGTH = 8, 64
"""Rows, and maximum tokens per row, of ``typical_batch``."""


class KernelPath(NamedTuple):
    """The kernel that computed an operation of a layer.

    Attributes:
        layer: address of the module.
        operation: name of the operation in the dispatch table.
        path: name of the kernel.
        reason: why the kernel was chosen; for the reference, the conditions of the faster kernels, none of which was met.
        calls: calls per forward pass.
    """

    layer: str
    operation: str
    path: str
    reason: str
    calls: int


def reference_row(operation: str) -> Kernel:
    """Return a row of the dispatch table for the reference of an operation, whose reason lists the conditions of its kernels."""
    why = "; ".join(f"{row.path} serves {row.when}" for row in kernels_of(operation)) or "there are no kernels in this process"
    return Kernel(operation, "reference", "everywhere else", lambda *_: True, REFERENCES[operation], 0.0, why)


def typical_batch(config: ModelConfig, dtype: torch.dtype) -> Batch:
    """Build a batch of ``BATCH_SIZE`` rows for a model; ``dtype`` is the type of pixels. Text models get a translation batch."""
    if isinstance(config, ImageClassifierConfig):
        pixels = torch.zeros(BATCH_SIZE, config.channels, config.image_size, config.image_size, dtype=dtype)
        return ImageBatch(pixels, torch.zeros(BATCH_SIZE, dtype=torch.long), tuple(range(BATCH_SIZE)))
    assert isinstance(config, TextModelConfig)
    row = [EOS] * min(SEQUENCE_LENGTH, config.max_seq_len - 1)
    return translation_batch([row] * BATCH_SIZE, [row] * BATCH_SIZE, range(BATCH_SIZE))


def trace_kernel_paths(model: Network, batch: Batch, training: bool = False) -> list[KernelPath]:
    """Run a model on a batch and return the kernel that computed each operation of each layer, in order of first use.

    Args:
        model: the model; its weights and the caller's random state are unchanged, but for training its dropout sites get their names.
        batch: input of the model.
        training: run with gradients and dropout, as a training step does.
    """
    counts = Counter[tuple[str, Kernel]]()
    was_training = model.training
    if training:
        name_dropout_sites(model)
    with (
        torch.random.fork_rng([]),
        torch.set_grad_enabled(training),
        keyed_dropout(0, 0),
        keyed_rows(batch.sample_ids, model.device),
        _count_calls(model, counts),
    ):
        model.train(training)(batch)
    model.train(was_training)
    return [KernelPath(layer, row.operation, row.path, row.reason, calls) for (layer, row), calls in counts.items()]


@contextmanager
def _count_calls(model: Network, counts: Counter[tuple[str, Kernel]]) -> Iterator[None]:
    """Within the context, add to ``counts`` each call of a dispatch-table row by a module of the model."""
    module_stack, original_rows = [""], {name: kernels_of(name) for name in REFERENCES}

    def enter(name: str, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        module_stack.append(name)
        try:
            return forward(*args, **named)
        finally:
            module_stack.pop()

    def note(row: Kernel, *args: Any) -> Any:
        counts[module_stack[-1], row] += 1
        return row.implementation(*args)

    modules = dict(model.named_modules())
    try:
        for name, rows in original_rows.items():
            KERNEL_TABLE[name] = [row._replace(implementation=partial(note, row)) for row in (*rows, reference_row(name))]
        for name, module in modules.items():
            module.forward = partial(enter, name, module.forward)
        yield
    finally:
        KERNEL_TABLE.update(original_rows)
        for module in modules.values():
            del module.forward
