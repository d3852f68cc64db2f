"""Cut a model's blocks into pipeline stages whose slowest stage has the fewest FLOPs."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from transom.config.architecture import TransformerConfig
from transom.planning.flops import count_flops

STACK_FIELDS = {"encoder": "n_encoder_layers", "decoder": "n_decoder_layers"}
"""Number of layers of a stack in an encoder-decoder; models with one stack have ``n_layers``."""


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
    sums = [0, *accumulate(flops)]
    # best[end]: the largest stage of the best cut of the first ``end`` blocks into the stages so far, and the ends of these stages
    best: list[tuple[int, list[int]] | None] = [(sums[end], [end]) for end in range(len(sums))]
    best[0] = None
    for n in range(2, n_stages + 1):
        best = [
            min(
                (max(before[0], sums[end] - sums[start]), [*before[1], end])
                for start in range(n - 1, end)
                if (before := best[start]) is not None
            )
            if end >= n
            else None
            for end in range(len(sums))
        ]
    found = best[-1]
    assert found is not None
    return [range(start, end) for start, end in zip([0, *found[1][:-1]], found[1], strict=True)]
