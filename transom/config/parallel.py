"""Schema of a run's layout: how many processes share its model and its batches."""

import math
from typing import ClassVar

from pydantic import Field

from transom.config.schema import Schema


class ParallelConfig(Schema):
    """Layout of a run over processes. The run has as many processes as the product of these numbers; on GPUs each process has one GPU.

    Attributes:
        AXES: the axes of the mesh of processes, slowest first: ranks that differ only in the last axis are neighbors on one machine.
    """

    AXES: ClassVar[tuple[str, ...]] = ("pipeline", "data", "shard", "expert", "context", "tensor")

    data: int = Field(1, ge=1, description="copies of the model, each of which computes a part of each batch (data parallelism)")
    shard: int = Field(
        1, ge=1, description="parts into which weights, gradients and optimizer state are sharded (FSDP); batches are split too"
    )
    tensor: int = Field(
        1, ge=1, description="parts into which heads and feed-forward hidden units are split (tensor and sequence parallelism)"
    )
    pipeline: int = Field(1, ge=1, description="stages of consecutive blocks (pipeline parallelism)")
    context: int = Field(1, ge=1, description="parts into which each text is split, for long texts (context parallelism)")
    expert: int = Field(
        1, ge=1, description="parts into which the experts of a mixture are split (expert parallelism); batches are split too"
    )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of processes along each axis of ``AXES``."""
        return tuple(getattr(self, axis) for axis in self.AXES)

    @property
    def n_processes(self) -> int:
        """Number of processes of the run."""
        return math.prod(self.sizes)

    @property
    def n_batch_parts(self) -> int:
        """Number of parts into which each batch is split: data * shard * expert."""
        return self.data * self.shard * self.expert
