"""Divide the parameters of a model over the ranks of a layout: by stage, by tensor and expert parallelism, and by sharding."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from transom.config.architecture import EncoderDecoderConfig, ModelConfig, TransformerConfig
from transom.config.components import MultiHeadAttentionConfig
from transom.config.parallel import ParallelConfig
from transom.planning.parameters import count_shapes
from transom.planning.pipeline_stages import stage_blocks

ATTENTION = re.compile(r"\.(attn|cross)\.(?:([qkv])\.(?:weight|bias)|(o)\.weight|(sinks))$")
FEED_FORWARD = re.compile(r"\.ff\.(?:(gate|up)\.(?:weight|bias)|(down)\.weight)$")
POSITION_BIAS = "embedding.position.table.weight"
"""Names of the parameters that tensor parallelism splits, by heads and hidden units (Shoeybi et al. 2019, section 3)."""


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
    """Numbers of parameters of one rank of a stage, before sharding unless said otherwise.

    Attributes:
        block: parameters of the stage's largest block.
        blocks: parameters of all its blocks.
        ends: parameters of embeddings, last norm and output layer.
        replicated: number of parameters, by axis, that all ranks along this axis hold whole, so that their gradients are summed over it.
        tied: parameters of an embedding whose other copy is in another stage, so that its gradient is summed over both.
        sharded: parameters that the rank holds after sharding.
    """

    block: int
    blocks: int
    ends: int
    replicated: dict[str, int]
    tied: int
    sharded: int

    @property
    def total(self) -> int:
        """All parameters of the rank, before sharding."""
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


def _local_size(shape: tuple[int, ...], dim: int | None, parts: int, shards: int = 1, shard: int = 0) -> int:
    """Return the number of elements of a parameter that a rank holds.

    Args:
        shape: shape of the whole parameter.
        dim: dimension that tensor parallelism splits; None for none.
        parts: parts along this dimension, which must divide it.
        shards: parts along the first dimension afterwards, of the sizes of ``torch.chunk`` (``fully_shard``).
        shard: the part that is counted.
    """
    sizes = [size // parts if i == dim else size for i, size in enumerate(shape)]
    if shards > 1 and sizes:
        size = -(-sizes[0] // shards)
        sizes[0] = max(0, min(size, sizes[0] - shard * size))
    return math.prod(sizes)


def count_stage_parameters(config: ModelConfig, layout: ParallelConfig, stage: Stage, shard: int = 0) -> StageParameters:
    """Count the parameters that a rank of a stage holds.

    Args:
        config: model configuration with known vocabulary sizes.
        layout: the layout.
        stage: the stage of the rank.
        shard: position of the rank along ``shard``; the first shard is the largest.
    """
    n_blocks = dict(zip(stack_names(config), config.stacks, strict=True))
    largest, blocks, ends, tied, sharded = dict.fromkeys(stage.blocks, 0), 0, 0, 0, 0
    replicated = dict.fromkeys(("data", "expert", "context", "tensor"), 0)
    for (name, shape), count in count_shapes(config).items():
        dim, stack = _tensor_dim(config, layout, name), name.split(".")[0]
        if is_expert := ".ff.experts." in name and layout.expert > 1:
            count //= layout.expert
        whole, part = (count * _local_size(shape, dim, layout.tensor, *shards) for shards in ((), (layout.shard, shard)))
        own = own_part = 0
        if ".blocks." in name:
            if stack in stage.blocks:
                largest[stack] += -(-whole // n_blocks[stack])
                own, own_part = (size * stage.blocks[stack] // n_blocks[stack] for size in (whole, part))
                blocks += own
        elif stage.index in (holders := set(_holders(config, name, layout.pipeline))):
            own, own_part = whole, part
            ends += own
            tied += own if len(holders) > 1 else 0
        sharded += own_part
        for axis in replicated:
            is_split = is_expert if axis == "expert" else axis == "tensor" and dim is not None
            replicated[axis] += 0 if is_split else own
    return StageParameters(max(largest.values(), default=0), blocks, ends, replicated, tied, sharded)


def _tensor_dim(config: ModelConfig, layout: ParallelConfig, name: str) -> int | None:
    """Return the dimension of a parameter that tensor parallelism splits, or None if ranks hold it whole, as the experts of a mixture."""
    if layout.tensor == 1 or not isinstance(config, TransformerConfig):
        return None
    if found := FEED_FORWARD.search(name):
        return 0 if found[1] else 1
    attention = config.attention
    if type(attention) is not MultiHeadAttentionConfig or not attention.output_projection or attention.score.kind != "scaled-dot":
        return None  # every rank computes all heads
    if name.endswith(POSITION_BIAS):
        return 1 if config.position.BIASES else None
    found = ATTENTION.search(name)
    if found is None or (found[2] in ("k", "v") and config.of_stack(name.split(".")[0]).n_kv_heads < layout.tensor):
        return None  # ranks share key heads
    return 1 if found[3] else 0


def _holders(config: ModelConfig, name: str, n_stages: int) -> Iterator[int]:
    """Yield the stages that need a parameter outside the blocks; a matrix that several modules share may be in several stages."""
    stages, module = divide_stages(config, n_stages), name.split(".")[0]
    decoder_start = next((stage.index for stage in stages if "decoder" in stage.blocks), 0)
    first_of = {"embedding": 0, "source_embedding": 0, "target_embedding": decoder_start}
    if module not in first_of:
        yield next((stage.index for stage in stages if module in stage.finished), n_stages - 1)
        return
    if (
        name.endswith(POSITION_BIAS) and isinstance(config, TransformerConfig) and config.position.BIASES
    ):  # the attention of every block of the stack reads it
        own = "encoder" if module == "source_embedding" or config.STACK == "an encoder" else "decoder"
        yield from (stage.index for stage in stages if own in stage.blocks)
        return
    yield first_of[module]
    if not name.endswith("embedding.tokens.weight"):
        return
    if isinstance(config, EncoderDecoderConfig):
        yield from (0, decoder_start) if config.ties_inputs else ()
        yield from (n_stages - 1,) if config.ties_output and (module == "target_embedding" or config.ties_inputs) else ()
    elif getattr(config, "tie_embeddings", False):
        yield n_stages - 1
