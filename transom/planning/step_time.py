"""Predict the time of a training step of a layout: computation, collectives that it waits for, and the pipeline's bubble."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from transom.config.architecture import ModelConfig
from transom.config.parallel import ParallelConfig
from transom.planning.cluster import Cluster, collective_seconds, rank_group
from transom.planning.communication import Collective
from transom.planning.schedule import one_forward_one_backward
from transom.planning.stages import Stage, stack_names

FIRST_PARTS, LAST_PARTS = ("stem", "patches"), ("transform", "pooler", "unembedding")
"""Parts of ``flops.Flops`` that the first and the last stage compute; all others are divided evenly among the blocks of their stack."""


def bubble_fraction(n_stages: int, n_micro_batches: int) -> float:
    """Return the fraction of a step in which a device waits for the pipeline to fill and to drain: (p - 1) / (m + p - 1).

    Narayanan et al. 2021, section 2.2.1, divide by the ideal time instead: (p - 1) / m.

    >>> bubble_fraction(4, 8)
    0.2727272727272727
    """
    return (n_stages - 1) / (n_micro_batches + n_stages - 1)


@dataclass(frozen=True)
class StageSeconds:
    """Times of one rank of a stage in seconds.

    Attributes:
        compute: forward and backward computation of a micro-batch.
        waiting: collectives of a micro-batch during which the device does not compute.
        sharding: collectives of a micro-batch that gather weights and reduce gradients of shards.
        per_step: collectives after the last micro-batch.
        overlaps: whether ``sharding`` runs beside the computation, and adds only what it takes longer.
    """

    compute: float
    waiting: float
    sharding: float
    per_step: float
    overlaps: bool = True

    @property
    def micro_batch(self) -> float:
        """Seconds of one micro-batch, forward and backward."""
        return (max(self.compute, self.sharding) if self.overlaps else self.compute + self.sharding) + self.waiting


@dataclass(frozen=True)
class StepSeconds:
    """Time of a training step.

    Attributes:
        stages: times of each stage.
        n_micro_batches: micro-batches per step.
    """

    stages: tuple[StageSeconds, ...]
    n_micro_batches: int

    @property
    def slowest(self) -> StageSeconds:
        """The stage with the longest micro-batch, which sets the pace."""
        return max(self.stages, key=lambda stage: stage.micro_batch)

    @property
    def bubble(self) -> float:
        """Fraction of the time of the micro-batches in which a stage waits for the others, if all stages are equally slow."""
        return bubble_fraction(len(self.stages), self.n_micro_batches)

    @cached_property
    def passes(self) -> float:
        """Seconds of all micro-batches in the pipeline: (m + p - 1) of them if all stages are equally slow, less otherwise."""
        return max(cell.end for cell in one_forward_one_backward([stage.micro_batch for stage in self.stages], self.n_micro_batches))

    @property
    def idle(self) -> float:
        """Fraction of this time in which a stage waits, on average; the bubble, and waiting for slower stages."""
        return 1 - self.n_micro_batches * fmean(stage.micro_batch for stage in self.stages) / self.passes

    @property
    def total(self) -> float:
        """Seconds per step: all micro-batches, then the sums of gradients."""
        return self.passes + max(stage.per_step for stage in self.stages)


def stage_flops(config: ModelConfig, forward: dict[str, float], layout: ParallelConfig, stage: Stage) -> float:
    """Return the FLOPs of a forward pass on one rank of a stage; ``context`` and ``tensor`` divide all of it.

    Args:
        config: model configuration.
        forward: FLOPs of a forward pass of a micro-batch through the whole model, by part.
        layout: the layout.
        stage: the stage of the rank.
    """
    n_blocks, total = dict(zip(stack_names(config), config.stacks, strict=True)), 0.0
    for part, flops in forward.items():
        stack = part.split(".")[0]
        if stack in n_blocks:
            total += flops * stage.blocks.get(stack, 0) / n_blocks[stack]
        elif part in FIRST_PARTS:
            total += flops * stage.is_first
        elif part in LAST_PARTS:
            total += flops * stage.is_last
        else:
            total += flops  # a model without blocks has one stage
    return total / (layout.tensor * layout.context)


def predict_stage_seconds(
    flops: float, collectives: Sequence[Collective], layout: ParallelConfig, cluster: Cluster, recompute: bool = False
) -> StageSeconds:
    """Predict the times of one rank of a stage.

    Args:
        flops: FLOPs of the forward pass of a micro-batch; the backward pass has twice as many.
        collectives: collectives of the rank.
        layout: the layout.
        cluster: devices and links.
        recompute: whether the backward pass runs the forward pass again.
    """
    waiting, sharding, per_step = 0.0, 0.0, 0.0
    for each in collectives:
        group = rank_group(layout, each.axis, cluster.devices_per_node)
        seconds = each.count * collective_seconds(each.kind, each.n_bytes, group, cluster)
        if each.per_step:
            per_step += seconds
        elif each.can_overlap:
            sharding += seconds
        else:
            waiting += seconds
    compute = (4 if recompute else 3) * flops / (cluster.flops * cluster.utilization)
    return StageSeconds(compute, waiting, sharding, per_step, cluster.overlaps)
