"""Schema of a run's layout: how many processes share its model and its batches."""

import math
from collections.abc import Collection, Mapping
from typing import ClassVar, Self

from pydantic import Field

from transom.config.schema import Schema
from transom.errors import ConfigError


class ParallelConfig(Schema):
    """Layout of a run over processes. The run has as many processes as the product of these numbers; on GPUs each process has one GPU."""

    AXES: ClassVar[tuple[str, ...]] = ("pipeline", "data", "shard", "expert", "context", "tensor")
    """Axes of the mesh of processes. Ranks that differ in the last axis only are neighbors, as a rule on one machine."""

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

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the position of a rank along each axis."""
        position = {}
        for axis in reversed(self.AXES):
            rank, position[axis] = divmod(rank, getattr(self, axis))
        return position

    def rank_at(self, position: Mapping[str, int]) -> int:
        """Return the rank at a position along each axis."""
        rank = 0
        for axis, size in zip(self.AXES, self.sizes, strict=True):
            rank = rank * size + position[axis]
        return rank

    def batch_part(self, rank: int) -> int:
        """Return which part of each batch a rank computes, from 0; ranks that differ only in the other axes share a part."""
        position = self.coordinates(rank)
        return (position["data"] * self.shard + position["shard"]) * self.expert + position["expert"]

    def ranks_along(self, rank: int, axes: Collection[str]) -> list[int]:
        """Return, in ascending order, the ranks that differ from ``rank`` in ``axes`` only, ``rank`` included."""
        mine, ranks = self.coordinates(rank), [0]
        for axis, size in zip(self.AXES, self.sizes, strict=True):
            positions = range(size) if axis in axes else (mine[axis],)
            ranks = [first * size + position for first in ranks for position in positions]
        return ranks

    def with_processes(self, n: int, source: str) -> Self:
        """Return the layout with as many data-parallel copies as make ``n`` processes.

        Raises:
            ConfigError: the other axes do not divide ``n``; the message names its ``source``.
        """
        others = self.model_copy(update={"data": 1})
        if n % others.n_processes:
            raise ConfigError(
                f"{source}: expected a multiple of {others.n_processes} processes, since [parallel] has {others.description}, found {n};"
                " change either"
            )
        return self.model_copy(update={"data": n // others.n_processes})

    @property
    def description(self) -> str:
        """The axes that are longer than 1, as in "data 2, tensor 4"."""
        return ", ".join(f"{axis} {size}" for axis, size in zip(self.AXES, self.sizes, strict=True) if size > 1) or "1 process"
