"""Cut a model's blocks into pipeline stages whose slowest stage has the fewest FLOPs."""

from collections.abc import Sequence
from itertools import pairwise

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.planning.flops import count_flops

STACK_FIELDS = {"encoder": "n_encoder_layers", "decoder": "n_decoder_layers"}
"""Number of layers of a stack in an encoder-decoder; models with one stack have ``n_layers``."""

TYPICAL_LENGTH = 64
"""Tokens per text by which the stages of a pipeline are balanced."""


def count_block_flops(config: TransformerConfig, source: int, target: int) -> list[int]:
    """Count the FLOPs of a forward pass over one sequence by block, encoder first; what precedes and follows counts with its neighbor.

    Args:
        config: model configuration with known vocabulary sizes.
        source: tokens per source, as for ``count_flops``.
        target: tokens per target, as for ``count_flops``.
    """
    parts = count_flops(config, 1, source, target).parts
    flops = list[int]()
    for stack in ("encoder", "decoder"):
        if f"{stack}.attn" in parts:
            field = STACK_FIELDS[stack] if hasattr(config, STACK_FIELDS[stack]) else "n_layers"
            totals = [0] + [
                sum(n for part, n in count_flops(shorter, 1, source, target).parts.items() if part.startswith(f"{stack}."))
                for shorter in (config.model_copy(update={field: i + 1}) for i in range(getattr(config, field)))
            ]
            flops += [after - before for before, after in pairwise(totals)]
    flops[0] += sum(parts.get(part, 0) for part in ("stem", "patches"))
    flops[-1] += sum(parts.get(part, 0) for part in ("transform", "pooler", "unembedding"))
    return flops


def stage_blocks(config: ModelConfig, n_stages: int) -> list[range]:
    """Return the numbers of the blocks of each pipeline stage, balanced for texts of typical length, or for an image."""
    assert isinstance(config, TransformerConfig)
    length = min(config.n_positions, TYPICAL_LENGTH) if hasattr(config, "max_seq_len") else config.n_positions
    source, target = {"a decoder": (0, length), "an encoder": (length, 0)}.get(config.STACK, (length, length))
    return balance_stages(count_block_flops(config, source, target), n_stages)


def balance_stages(flops: Sequence[int], n_stages: int) -> list[range]:
    """Cut blocks into consecutive stages such that the largest sum of ``flops`` in a stage is least; no stage is empty.

    Among equals, the earlier stages have fewer blocks, since under 1F1B they keep the activations of more micro-batches (Narayanan et al.
    2021, section 2.2).

    >>> balance_stages([1, 1, 1, 3], 2), balance_stages([1, 1, 1, 1, 1], 3)
    ([range(0, 3), range(3, 4)], [range(0, 1), range(1, 3), range(3, 5)])

    Args:
        flops: FLOPs of each block, as ``count_block_flops`` returns them.
        n_stages: number of stages, at most the number of blocks.
    """
    assert 1 <= n_stages <= len(flops), "a stage has at least one block"
    low, high = max(flops), sum(flops)
    while low < high:  # the least limit under which the blocks fit into the stages
        limit = (low + high) // 2
        low, high = (low, limit) if _fill_stages(flops, n_stages, limit)[0].start == 0 else (limit + 1, high)
    return _fill_stages(flops, n_stages, low)


def _fill_stages(flops: Sequence[int], n_stages: int, limit: int) -> list[range]:
    """Fill the stages from the last one with as many blocks as fit; the first starts after 0 if not all blocks fit."""
    stages, end = list[range](), len(flops)
    for n_before in reversed(range(n_stages)):
        start, total = end - 1, flops[end - 1]
        while start > n_before and total + flops[start - 1] <= limit:
            start -= 1
            total += flops[start]
        stages.insert(0, range(start, end))
        end = start
    return stages
