"""List the collectives of one training step of a layout: kind, axis, how often and how many bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from transom.config.architecture import EncoderDecoderConfig, ModelConfig, TransformerConfig
from transom.config.moe import MoeConfig
from transom.config.parallel import ParallelConfig
from transom.planning.cluster import CollectiveKind, sent_bytes
from transom.planning.stages import Stage, StageParameters
from transom.planning.training_bytes import FLOAT32


class MicroBatches(NamedTuple):
    """The passes of a step on each part of the batch.

    Attributes:
        n: number of micro-batches per step.
        rows: sequences or images of each.
        source: tokens per source, or per text or image of an encoder; 0 without one.
        target: tokens per target, or per text of a decoder; 0 without one.
    """

    n: int
    rows: int
    source: int
    target: int

    def tokens(self, stack: str) -> int:
        """Return the tokens of one micro-batch in a stack, "encoder" or "decoder"."""
        return self.rows * (self.target if stack == "decoder" else self.source)


class NumberBytes(NamedTuple):
    """Bytes per number that is sent.

    Attributes:
        activation: hidden states, keys and values: 2 in bfloat16.
        weight: weights that sharding gathers.
        gradient: gradients.
    """

    activation: int = FLOAT32
    weight: int = FLOAT32
    gradient: int = FLOAT32


@dataclass(frozen=True)
class Collective:
    """A kind of collective of one rank.

    Attributes:
        kind: such as "all-gather".
        axis: axis of the mesh whose ranks take part.
        what: what is sent, such as "weights of a block".
        count: number per micro-batch, or per step if ``per_step``.
        n_bytes: size of the whole tensor, as ``cluster.sent_bytes`` takes it.
        per_step: whether it runs once per step, after the last micro-batch.
        can_overlap: whether it runs while the device computes, on a cluster whose devices can do both.
    """

    kind: CollectiveKind
    axis: str
    what: str
    count: int
    n_bytes: float
    per_step: bool = False
    can_overlap: bool = False

    def per_step_count(self, n_micro_batches: int) -> int:
        """Return how many of them run in a step."""
        return self.count * (1 if self.per_step else n_micro_batches)

    def sent(self, layout: ParallelConfig, n_micro_batches: int) -> float:
        """Return the bytes that one rank sends in a step."""
        return self.per_step_count(n_micro_batches) * sent_bytes(self.kind, self.n_bytes, getattr(layout, self.axis))


def list_collectives(
    config: ModelConfig,
    layout: ParallelConfig,
    stage: Stage,
    parameters: StageParameters,
    micro: MicroBatches,
    size: NumberBytes,
    recompute: bool = False,
) -> list[Collective]:
    """List the collectives of one rank of a stage.

    Args:
        config: model configuration.
        layout: the layout.
        stage: the stage of the rank.
        parameters: parameters of the rank.
        micro: micro-batches of a step.
        size: bytes per number.
        recompute: whether the backward pass runs the forward pass of each block again, with its collectives.
    """
    found = [
        *_sharded(layout, stage, parameters, size),
        *_tensor_parallel(config, layout, stage, micro, size, recompute),
        *_context_parallel(config, layout, stage, micro, size),
        *_expert_parallel(config, layout, stage, micro, size),
        *_pipeline(config, layout, stage, micro, size),
        *_shared_negatives(config, layout, stage, micro),
        *_gradient_sums(layout, parameters, size),
    ]
    return [each for each in found if each.count and each.n_bytes]


def _sharded(layout: ParallelConfig, stage: Stage, p: StageParameters, size: NumberBytes) -> Iterator[Collective]:
    """Yield those of fully sharded data parallelism (Rajbhandari et al. 2020, section 7.2.2; Zhao et al. 2023).

    The weights of a block are gathered in the forward and again in the backward pass, and its gradients reduced to shards. Embeddings and
    output layer are gathered once: they are kept from one pass to the other.
    """
    if layout.shard > 1:
        yield Collective("all-gather", "shard", "weights of a block", 2 * stage.n_blocks, size.weight * p.block, can_overlap=True)
        yield Collective("all-gather", "shard", "weights of embeddings and output", 1, size.weight * p.ends, can_overlap=True)
        yield Collective("reduce-scatter", "shard", "gradients of a block", stage.n_blocks, size.gradient * p.block, can_overlap=True)
        yield Collective("reduce-scatter", "shard", "gradients of embeddings and output", 1, size.gradient * p.ends, can_overlap=True)


def _tensor_parallel(
    config: ModelConfig, layout: ParallelConfig, stage: Stage, micro: MicroBatches, size: NumberBytes, recompute: bool
) -> Iterator[Collective]:
    """Yield those of tensor and sequence parallelism (Korthikanti et al. 2022, section 4.2.2).

    Each half of a block gathers the tokens before its column-parallel maps and reduces them to parts after the row-parallel one. The
    backward pass of a gather is a reduction and the other way round, so both passes have one of each. After its last block a stack gathers
    all tokens.
    """
    if layout.tensor == 1 or not isinstance(config, TransformerConfig):
        return
    for stack, n_blocks in stage.blocks.items():
        halves = 3 if stack == "decoder" and isinstance(config, EncoderDecoderConfig) else 2
        halves -= isinstance(config.feed_forward, MoeConfig)  # its experts process this rank's tokens
        n_bytes = size.activation * micro.tokens(stack) * config.d_model / layout.context
        count = (3 if recompute else 2) * halves * n_blocks + (stack in stage.finished)
        yield Collective("all-gather", "tensor", f"hidden states of the {stack}", count, n_bytes)
        yield Collective("reduce-scatter", "tensor", f"hidden states of the {stack}", count, n_bytes)


def _context_parallel(
    config: ModelConfig, layout: ParallelConfig, stage: Stage, micro: MicroBatches, size: NumberBytes
) -> Iterator[Collective]:
    """Yield those of ring attention (Liu et al. 2023, section 3): keys and values pass all ranks, and in the backward pass again.

    Their gradients then travel with them in float32, and once more to the rank that they belong to. Under a causal mask queries, keys,
    values and outputs, or their gradients, are exchanged so that all ranks compute equally much (Dubey et al. 2024, section 3.3.2).
    """
    if layout.context == 1 or not isinstance(config, TransformerConfig):
        return
    n, per_rank = layout.context, 1 / (layout.context * layout.tensor)
    for stack, n_blocks in stage.blocks.items():
        c = config.of_stack(stack)
        keys = {f"the {stack}": micro.tokens(stack)}
        if stack == "decoder" and isinstance(config, EncoderDecoderConfig):
            keys["cross-attention"] = micro.tokens("encoder")
        for of, tokens in keys.items():
            numbers = tokens * c.n_kv_heads * (c.d_head + c.d_value) * per_rank
            yield Collective("send", "context", f"keys and values of {of}", 2 * (n - 1) * n_blocks, size.activation * numbers)
            yield Collective("send", "context", f"gradients of keys and values of {of}", n * n_blocks, FLOAT32 * numbers)
        if stack == "decoder":
            width = (c.n_heads + c.n_kv_heads) * (c.d_head + c.d_value) / 4
            n_bytes = size.activation * micro.tokens(stack) * width * per_rank
            yield Collective("all-to-all", "context", "tokens in the order of the ring", 8 * n_blocks, n_bytes)
        n_bytes = size.activation * micro.tokens(stack) * c.d_model * (stack in stage.finished)
        yield Collective("all-gather", "context", f"output of the {stack}", 1, n_bytes)
        yield Collective("reduce-scatter", "context", f"output of the {stack}", 1, n_bytes)


def _expert_parallel(
    config: ModelConfig, layout: ParallelConfig, stage: Stage, micro: MicroBatches, size: NumberBytes
) -> Iterator[Collective]:
    """Yield those of expert parallelism (Lepikhin et al. 2020, section 3.2): tokens go to their experts and back, in both passes."""
    if layout.expert == 1 or not isinstance(config, TransformerConfig) or not isinstance(config.feed_forward, MoeConfig):
        return
    for stack, n_blocks in stage.blocks.items():
        tokens = micro.tokens(stack) * config.feed_forward.top_k / (layout.context * layout.tensor)
        yield Collective("all-to-all", "expert", f"tokens of the {stack}", 4 * n_blocks, size.activation * tokens * config.d_model)


def _pipeline(config: ModelConfig, layout: ParallelConfig, stage: Stage, micro: MicroBatches, size: NumberBytes) -> Iterator[Collective]:
    """Yield the hidden states that a stage sends on and the gradients that it sends back (Narayanan et al. 2021, section 2.2).

    Between stages of a decoder the encoder's output travels with the hidden states.
    """
    if layout.pipeline == 1:
        return
    last_stack, parts = [*stage.blocks][-1], layout.context * layout.tensor
    has_memory = "decoder" in stage.blocks and isinstance(config, EncoderDecoderConfig)
    tokens = micro.tokens(last_stack) + (micro.tokens("encoder") if has_memory else 0)
    n_bytes = size.activation * tokens * config.d_model / parts
    if isinstance(config, TransformerConfig) and config.attention.value_residual.kind != "none":
        c = config.of_stack(last_stack)  # whose later blocks read the values of its first one
        n_bytes += size.activation * micro.tokens(last_stack) * c.n_kv_heads * c.d_value / parts
    yield Collective("send", "pipeline", "hidden states, gradients", (not stage.is_first) + (not stage.is_last), n_bytes)


def _shared_negatives(config: ModelConfig, layout: ParallelConfig, stage: Stage, micro: MicroBatches) -> Iterator[Collective]:
    """Yield the targets of a contrastive loss, which the ranks of a batch gather, and their gradients.

    One collective spans all axes that split a batch. It is listed as one per axis, neighbors first, which send as much together.
    """
    n_bytes = FLOAT32 * micro.rows * config.d_model * (stage.is_last and config.kind == "text-embedder")
    for axis in ("expert", "shard", "data"):
        if (size := getattr(layout, axis)) > 1:
            n_bytes *= size
            yield Collective("all-gather", axis, "targets of a contrastive loss", 1, n_bytes)
            yield Collective("reduce-scatter", axis, "gradients of these targets", 1, n_bytes)


def _gradient_sums(layout: ParallelConfig, p: StageParameters, size: NumberBytes) -> Iterator[Collective]:
    """Yield the sums of gradients over every axis along which parameters are replicated, after sharding.

    Along ``data`` these are all parameters. Along ``tensor`` and ``expert`` they are the parameters that these axes do not split. A tied
    embedding in two stages is summed over both.
    """
    for axis, n in p.replicated.items():
        if getattr(layout, axis) > 1:
            yield Collective("all-reduce", axis, "gradients", 1, size.gradient * n / layout.shard, per_step=True)
    if layout.pipeline > 1 and p.tied:
        yield Collective("send", "pipeline", "a shared embedding", 1, size.gradient * p.tied / layout.shard, per_step=True)
