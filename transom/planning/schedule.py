"""The timeline of a pipeline: when each stage computes which micro-batch."""

from collections.abc import Sequence
from typing import Literal, NamedTuple


class Cell(NamedTuple):
    """A pass of one micro-batch through one stage.

    Attributes:
        stage: the stage.
        kind: the pass.
        micro_batch: the micro-batch.
        start: start of the pass in seconds.
        end: end of the pass in seconds.
    """

    stage: int
    kind: Literal["forward", "backward"]
    micro_batch: int
    start: float
    end: float


def stage_order(stage: int, n_stages: int, n_micro_batches: int) -> list[tuple[Literal["forward", "backward"], int]]:
    """Return the passes of a stage in the order of 1F1B (Narayanan et al. 2021, section 2.2.1, figure 4).

    Stage s first runs p - s - 1 forward passes, then forward and backward passes in turn, then the remaining backward passes.
    """
    warmup = min(n_stages - stage - 1, n_micro_batches)
    order: list[tuple[Literal["forward", "backward"], int]] = [("forward", i) for i in range(warmup)]
    for i in range(n_micro_batches - warmup):
        order += [("forward", warmup + i), ("backward", i)]
    return [*order, *(("backward", i) for i in range(n_micro_batches - warmup, n_micro_batches))]


def one_forward_one_backward(seconds: Sequence[float], n_micro_batches: int) -> list[Cell]:
    """Lay out 1F1B: each pass starts when its stage is free and when the stage before, or after in the backward pass, is done with it.

    Args:
        seconds: time of a micro-batch in each stage, a third for the forward and two thirds for the backward pass.
        n_micro_batches: number of micro-batches.
    """
    n_stages = len(seconds)
    orders = [stage_order(stage, n_stages, n_micro_batches) for stage in range(n_stages)]
    done, free, position, cells = dict[tuple[str, int, int], float](), [0.0] * n_stages, [0] * n_stages, list[Cell]()
    while len(cells) < 2 * n_stages * n_micro_batches:
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                kind, i = order[position[stage]]
                needs = ("forward", stage - 1, i) if kind == "forward" else ("backward", stage + 1, i)
                if not 0 <= needs[1] < n_stages:
                    needs = ("forward", stage, i)  # the first stage waits for nothing, the last one for its own forward pass
                if needs[:2] != (kind, stage) and needs not in done:
                    break
                start = max(free[stage], done.get(needs, 0.0))
                free[stage] = start + seconds[stage] * (1 if kind == "forward" else 2) / 3
                done[kind, stage, i] = free[stage]
                cells.append(Cell(stage, kind, i, start, free[stage]))
                position[stage] += 1
    return cells
