"""Divide the parameters of a model over the ranks of a layout: by stage, by tensor and expert parallelism, and by sharding."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from transom.config.architecture import EncoderDecoderConfig, ModelConfig
from transom.config.parallel import ParallelConfig
from transom.planning.parameters import sum_by_name
from transom.planning.pipeline_stages import stage_blocks

COLUMN_PARALLEL = re.compile(r"\.(attn|cross)\.([qkv]\.(weight|bias)|sinks)$|\.ff\.(experts\.|shared\.)?(gate|up)\.(weight|bias)$")
ROW_PARALLEL = re.compile(r"\.(attn|cross)\.o\.weight$|\.ff\.(experts\.|shared\.)?down\.weight$")
"""Names of the parameters that tensor parallelism splits by output or input dimension (Shoeybi et al. 2019, section 3)."""


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline; without pipeline parallelism the whole model.

    Attributes:
        index: position in the pipeline, from 0.
        n_stages: number of stages.
        blocks: number of blocks of each stack, "encoder" and "decoder", in this stage.
        finished: stacks whose last block is in this stage.
    """

    index: int
    n_stages: int
    blocks: dict[str, int]
    finished: tuple[str, ...]

    @property
    def is_first(self) -> bool:
        """Whether the stage embeds the first stack's tokens."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage computes the loss."""
        return self.index == self.n_stages - 1

    @property
    def n_blocks(self) -> int:
        """Number of blocks of all stacks."""
        return sum(self.blocks.values())

    def in_flight(self, n_micro_batches: int) -> int:
        """Return the most micro-batches whose activations are kept at once by 1F1B (Narayanan et al. 2021, section 2.2.1)."""
        return min(self.n_stages - self.index, n_micro_batches)


@dataclass(frozen=True)
class StageParameters:
    """Numbers of parameters of one rank of a stage, before sharding.

    Attributes:
        block: parameters of the stage's largest block.
        blocks: parameters of all its blocks.
        ends: parameters of embeddings, last norm and output layer.
        replicated: number of parameters, by axis, that all ranks along this axis hold whole, so that their gradients are summed over it.
        tied: parameters of an embedding whose other copy is in another stage, so that its gradient is summed over both.
    """

    block: int
    blocks: int
    ends: int
    replicated: dict[str, int]
    tied: int

    @property
    def total(self) -> int:
        """All parameters of the rank."""
        return self.blocks + self.ends


def stack_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the stacks of a model in the order of its forward pass."""
    if len(config.stacks) == 2:
        return ("encoder", "decoder")
    return () if not config.stacks else ("decoder",) if config.STACK == "a decoder" else ("encoder",)


def divide_stages(config: ModelConfig, n_stages: int) -> list[Stage]:
    """Divide the blocks of a model into consecutive stages, as a run does; with one stage also the layers of other models."""
    names = [name for name, n in zip(stack_names(config), config.stacks, strict=True) for _ in range(n)]
    ranges = [range(len(names))] if n_stages == 1 else stage_blocks(config, n_stages)
    stages = list[Stage]()
    for index, numbers in enumerate(ranges):
        own = names[numbers.start : numbers.stop]
        blocks = {name: own.count(name) for name in dict.fromkeys(own)}
        stages.append(Stage(index, n_stages, blocks, tuple(name for name in blocks if name not in names[numbers.stop :])))
    return stages


def count_stage_parameters(config: ModelConfig, layout: ParallelConfig, stage: Stage) -> StageParameters:
    """Count the parameters that a rank of a stage holds, before sharding."""
    n_blocks = dict(zip(stack_names(config), config.stacks, strict=True))
    largest, blocks, ends, tied = dict.fromkeys(stage.blocks, 0), 0, 0, 0
    replicated = dict.fromkeys(("data", "expert", "context", "tensor"), 0)
    for name, size in sum_by_name(config, torch.numel).items():
        split, own = _split_axes(name, layout), 0
        divisor = 1
        for axis in split:
            divisor *= getattr(layout, axis)
        stack = name.split(".")[0]
        if ".blocks." in name:
            per_block = -(-size // (n_blocks[stack] * divisor))
            if stack in stage.blocks:
                largest[stack] += per_block
                own = per_block * stage.blocks[stack]
                blocks += own
        elif stage.index in (holders := set(_holders(config, name, layout.pipeline))):
            own = -(-size // divisor)
            ends += own
            tied += own if len(holders) > 1 else 0
        for axis in replicated:
            replicated[axis] += own if axis not in split else 0
    return StageParameters(max(largest.values(), default=0), blocks, ends, replicated, tied)


def _split_axes(name: str, layout: ParallelConfig) -> tuple[str, ...]:
    """Return the axes that split a parameter. With expert parallelism whole experts are divided, to which all tokens are sent."""
    if ".ff.experts." in name and layout.expert > 1:
        return ("expert",)
    return ("tensor",) if COLUMN_PARALLEL.search(name) or ROW_PARALLEL.search(name) else ()


def _holders(config: ModelConfig, name: str, n_stages: int) -> Iterator[int]:
    """Yield the stages that need a parameter outside the blocks; a matrix that several modules share may be in several stages."""
    stages, module = divide_stages(config, n_stages), name.split(".")[0]
    decoder_start = next((stage.index for stage in stages if "decoder" in stage.blocks), 0)
    first_of = {"embedding": 0, "source_embedding": 0, "target_embedding": decoder_start}
    if module not in first_of:
        yield next((stage.index for stage in stages if module in stage.finished), n_stages - 1)
        return
    yield first_of[module]
    if not name.endswith("embedding.tokens.weight"):
        return
    if isinstance(config, EncoderDecoderConfig):
        yield from (0, decoder_start) if config.ties_inputs else ()
        yield from (n_stages - 1,) if config.ties_output and (module == "target_embedding" or config.ties_inputs) else ()
    elif getattr(config, "tie_embeddings", False):
        yield n_stages - 1
