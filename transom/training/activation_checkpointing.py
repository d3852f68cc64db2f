"""Activation checkpointing: each block keeps its input only, and computes its activations again in its backward pass (Chen et al. 2016).

A step then holds the activations of one block and the inputs of all blocks, for one more forward pass of the blocks. Loss and gradients are
the same bit for bit: the second pass has the dropout masks, the dtypes and the random numbers of the first one, and records nothing.
"""

from contextvars import Context, copy_context
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from transom.config.parallel import ParallelConfig
from transom.layers.block import Block
from transom.layers.dropout import DropoutSite, keep_call_numbers

ONE_PROCESS = ParallelConfig()


def checkpoint_activations(model: nn.Module, layout: ParallelConfig = ONE_PROCESS, preserve_rng_state: bool = True) -> None:
    """Let every block of a model compute its forward pass again in its backward pass, in place.

    Only passes in training mode with gradients change. Call this function before a layout is applied: ``fully_shard`` then gathers the
    weights of a block once for its second forward pass and its backward pass.

    Args:
        model: the model; one without blocks stays as it is.
        layout: the layout of the run. If ranks communicate within a block, the second pass runs to its end on all of them.
        preserve_rng_state: whether the second pass draws the numbers that the first one drew from PyTorch's generators.
    """
    early_stop = layout.tensor * layout.context * layout.expert == 1
    for module in model.modules():
        if isinstance(module, Block):
            module.__class__ = _checkpointed(type(module), early_stop, preserve_rng_state)


@lru_cache
def _checkpointed(kind: type[Block], early_stop: bool, preserve_rng_state: bool) -> type[Block]:
    """Return a subclass of a block's class that computes its forward pass again in its backward pass."""

    def forward(self: Block, *args: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return kind.forward(self, *args)
        passes = _Passes(self, kind)
        return checkpoint(passes, *args, use_reentrant=False, early_stop=early_stop, preserve_rng_state=preserve_rng_state)

    return type(f"Checkpointed{kind.__name__}", (kind,), {"forward": forward, "__module__": kind.__module__})


class _Passes:
    """The forward passes of one call of a block: the first one, and those of the backward pass, in the same context.

    The context variables hold the keys of the dropout masks and the length of the rows. The backward pass runs after they were reset, on a
    GPU in another thread, and in a pipeline after the first pass of other micro-batches, for which layouts have set other ``offsets``.
    """

    def __init__(self, block: Block, kind: type[Block]) -> None:
        self._block, self._kind = block, kind
        self._context: Context | None = None
        self._offsets: dict[DropoutSite, tuple[int, ...]] = {
            module: module.offsets for module in block.modules() if isinstance(module, DropoutSite)
        }

    def __call__(self, *args: Any) -> Any:
        if self._context is None:
            self._context = copy_context()
            self._context.run(keep_call_numbers)
            return self._kind.forward(self._block, *args)
        return self._context.copy().run(self._again, *args)

    def _again(self, *args: Any) -> Any:
        keep_call_numbers()  # of the call, which may be computed more than twice
        present: dict[DropoutSite, tuple[int, ...]] = {site: site.offsets for site in self._offsets}
        _set_offsets(self._offsets)
        try:
            return self._kind.forward(self._block, *args)
        finally:
            _set_offsets(present)


def _set_offsets(offsets: dict[DropoutSite, tuple[int, ...]]) -> None:
    for site, first in offsets.items():
        site.offsets = first
