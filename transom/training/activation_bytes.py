"""Measure the activations of a block and of the rest of a model, from which those of a rank of a layout follow."""

from dataclasses import replace

import torch

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.planning.rank_memory import ActivationBytes
from transom.planning.stages import stack_names
from transom.planning.training_bytes import StepMemory
from transom.training.simulated_step import BatchShape, simulate_step

MAX_LOGITS = 256
"""Vectors of logits that are run to measure the memory of the loss."""


def measure_activations(config: ModelConfig, shape: BatchShape, dtype: torch.dtype, recompute: bool = False) -> ActivationBytes | None:
    """Measure the bytes that a row saves for the backward pass, on tensors without values; None if they cannot be measured.

    A block is the difference of two depths, and a row that of two batches. Of the logits, which a step computes in parts, at most
    ``MAX_LOGITS`` vectors are run. With ``recompute`` a block saves its input, and its activations are among the buffers.
    """
    period = config.depth.every if isinstance(config, TransformerConfig) and hasattr(config.depth, "every") else 1
    fields = [name for name in ("n_encoder_layers", "n_decoder_layers", "n_layers") if hasattr(config, name)]
    base = config.model_copy(update=dict.fromkeys(fields, period))
    labeled = min(shape.labeled, MAX_LOGITS / max(shape.source, shape.target, 1))

    def run(rows: int, **layers: int) -> StepMemory | None:
        return simulate_step(
            base.model_copy(update=layers), replace(shape, rows=rows, n_micro_batches=1, labeled=labeled), dtype, recompute
        )

    few, more = run(2), run(4)
    if few is None or more is None:
        return None
    row, copies = (more.saved - few.saved) // 2, 2 * few.saved - more.saved
    blocks, block_copies = dict[str, int](), dict[str, int]()
    for name, field in zip(stack_names(config), fields, strict=True):
        few_deep, more_deep = run(2, **{field: 2 * period}), run(4, **{field: 2 * period})
        assert few_deep is not None and more_deep is not None
        blocks[name] = ((more_deep.saved - few_deep.saved) // 2 - row) // period
        block_copies[name] = (2 * few_deep.saved - more_deep.saved - copies) // period
    buffers = [max(step.forward, step.peak - step.gradients) - step.saved for step in (few, more)]
    per_row = max(0, (buffers[1] - buffers[0]) // 2)
    return ActivationBytes(
        blocks=blocks,
        block_copies=block_copies,
        ends=row - period * sum(blocks.values()),
        end_copies=copies - period * sum(block_copies.values()),
        buffers=per_row,
        loss_buffers=buffers[0] - 2 * per_row,
    )
