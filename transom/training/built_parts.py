"""Build the part of a model that each rank of a layout holds, and compare its size with the prediction."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from transom.config.architecture import ModelConfig
from transom.config.parallel import ParallelConfig
from transom.errors import ConfigError, TransomError
from transom.parallel.rank_part import count_built_parameters
from transom.planning.layout import describe_rank
from transom.planning.stages import count_stage_parameters, divide_stages

MAX_BUILT = 32
"""Most parts that are built; of more, the first and the last along each axis are."""

BUILD_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of code that does not support the sizes of a part."""


@dataclass(frozen=True)
class BuiltParts:
    """The parts of a model that were built on the meta device, with their real sizes.

    Attributes:
        built: number of parts that were built.
        distinct: number of parts that differ; ranks that differ in ``data`` or ``context`` only hold equal parts.
        seconds: duration.
    """

    built: int
    distinct: int
    seconds: float


def build_parts(config: ModelConfig, layout: ParallelConfig, notify: Callable[[str], None] = lambda line: None) -> BuiltParts:
    """Build the part of each rank, as a run does, and check that it has as many parameters as predicted.

    Args:
        config: model configuration with known vocabulary sizes.
        layout: the layout, which fits the model.
        notify: called with a line that says what is done.

    Raises:
        ConfigError: the part of a rank cannot be built, or has another size; the message names the rank.
    """
    begin, stages = time.monotonic(), divide_stages(config, layout.pipeline)
    fewer = layout.model_copy(update={"data": 1, "context": min(layout.context, 2)})
    distinct, ranks = fewer.n_processes // fewer.context, _choose_ranks(fewer)
    notify(f"building the parts of {len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'}, without values")
    for rank in ranks:
        position = fewer.coordinates(rank)
        name = describe_rank(layout, layout.rank_at(position))
        try:
            found = count_built_parameters(config, fewer, rank)
        except TransomError:
            raise
        except BUILD_ERRORS as error:
            raise ConfigError(
                f"{name}: expected its part of the model, found {type(error).__name__}: {error}; choose another --mesh"
            ) from error
        expected = count_stage_parameters(config, layout, stages[position["pipeline"]], position["shard"]).sharded
        if found != expected:
            raise ConfigError(f"{name}: expected {expected:,} parameters, which are predicted, found {found:,} in its part; report this")
    return BuiltParts(len(ranks), distinct, time.monotonic() - begin)


def _choose_ranks(layout: ParallelConfig) -> list[int]:
    """Return the ranks whose parts are built: all that differ, or those at the ends of the axes, first those at the ends of all."""
    axes, ends = ("shard", "expert", "tensor"), list[tuple[bool, int]]()
    stage_size = layout.n_processes // layout.pipeline
    stage = [rank for rank in range(stage_size) if layout.coordinates(rank)["context"] == 0]
    if len(stage) * layout.pipeline <= MAX_BUILT:
        return [first * stage_size + rank for first in range(layout.pipeline) for rank in stage]
    for rank in stage:
        position = layout.coordinates(rank)
        lasts = [position[axis] == getattr(layout, axis) - 1 for axis in axes]
        if all(last or position[axis] == 0 for axis, last in zip(axes, lasts, strict=True)):
            ends.append((not (all(lasts) or rank == 0), rank))
    found = [(mixed, first * stage_size + rank) for first in range(layout.pipeline) for mixed, rank in ends]
    return [rank for _, rank in sorted(found)[:MAX_BUILT]]
