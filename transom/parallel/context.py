"""Context parallelism: the tokens of long sequences are split over the ranks of the mesh axis ``context``.

Between the first and the last block of a stack each rank holds the residual stream of its chunk of tokens. Norms, residual sums and
feed-forward networks need no other tokens. Attention needs keys and values of all tokens: they move around a ring of the ranks
(``ring_attention``), or, where the ring does not support the attention, they are gathered. All parameters have partial gradients: their sum
over the ranks is the gradient.
"""

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from transom.layers.approximations.approximate_attention import ApproximateAttention
from transom.layers.attention import Attention
from transom.layers.cache import KeyValues, ProjectedMemory
from transom.layers.context import AttentionContext, StackContext
from transom.layers.masks.block_sparse_mask import BlockSparseMask
from transom.layers.masks.mask_rules import FULL, DeferredMask, ImplicitMask, MaskRule, TokenPositions
from transom.layers.position_encoding import RotaryCosSin
from transom.layers.stack import Stack
from transom.models.base import Network
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.encoder import EncoderOnlyTransformer
from transom.models.seq2seq import Seq2SeqTransformer
from transom.models.vision import VisionTransformer
from transom.parallel.ring_attention import ChunkMask, RingOptions, ring_attention
from transom.parallel.sequence import chunk_range, gather_sequence, split_sequence


def apply_context_parallel(model: Network, mesh: DeviceMesh, ring: bool = True) -> None:
    """Split the tokens of every pass over the ranks of the mesh axis ``context``, in place; passes with a cache stay whole.

    Apply tensor parallelism before, and ``fully_shard`` afterwards: a stack's tokens are then split into chunks of ``context`` first.
    ``model.token_masks`` returns the masks of this rank's tokens, as the sites of the blocks have the activations of these.

    Args:
        model: a Transformer whose blocks compute each token from itself, except in attention: no batch norm, mixture of depths, experts
            with a capacity or attention of a plugin.
        mesh: mesh with an axis ``context``.
        ring: pass keys and values around a ring, where the attention allows; False to gather them everywhere, the reference.
    """
    group = mesh["context"].get_group()
    if group.size() == 1:
        return
    for module in list(model.modules()):
        if isinstance(module, Stack):
            # The whole sequence is split before other hooks split it further, and gathered after they have gathered its parts.
            module.register_forward_pre_hook(_SplitTokens(group), prepend=True)
            module.register_forward_hook(_GatherTokens(group))
        elif isinstance(module, Attention):
            module.__class__ = {Attention: ContextParallelAttention, ApproximateAttention: ContextParallelApproximation}[type(module)]
            vars(module).update(group=group, ring=ring)
    _defer_masks(model)
    whole_masks = model.token_masks
    vars(model)["token_masks"] = lambda site, batch: [split_sequence(mask, 1, group) for mask in whole_masks(site, batch)]


def _defer_masks(model: Network) -> None:
    """Let attention build the masks of its queries: those of whole sequences would take too much memory."""

    def deferred(rules: list[MaskRule]) -> list[MaskRule]:
        return [rule if isinstance(rule, ImplicitMask) else DeferredMask(rule) for rule in rules]

    if isinstance(model, Seq2SeqTransformer):
        model.source_mask_rules, model.target_mask_rules = deferred(model.source_mask_rules), deferred(model.target_mask_rules)
        (model.cross_mask_rule,) = deferred([model.cross_mask_rule])
    else:
        assert isinstance(model, DecoderOnlyTransformer | EncoderOnlyTransformer | VisionTransformer), "the layout fits the model"
        model.mask_rules = deferred(model.mask_rules)


@dataclass(frozen=True, eq=False)
class _ChunkContext(StackContext):
    """Context of a rank's tokens; ``length`` is the number of tokens of all ranks."""

    length: int = 0


class _SplitTokens:
    """Hook before a stack: passes on this rank's tokens, and its tokens of the encoder output, with their context."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def __call__(self, stack: Stack, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the arguments of ``Stack.forward`` for this rank's tokens; None, for no change, in a pass with a cache."""
        x, ctx, *memory = args
        assert isinstance(ctx, StackContext)
        if ctx.caches is not None:
            return None
        masks: dict[tuple[int, int], ChunkMask] = {}
        contexts = [self.local(each, x, x, masks) for each in ctx.attention_contexts]
        cross = self.local(ctx.cross, x, memory[0], masks) if memory else ctx.cross
        token_mask = None if ctx.token_mask is None else split_sequence(ctx.token_mask, 1, self.group)
        local = _ChunkContext(token_mask, ctx.observer, contexts, cross, None, x.shape[1])
        return split_sequence(x, 1, self.group), local, *(split_sequence(each, 1, self.group) for each in memory)

    def local(self, ctx: AttentionContext, x: Tensor, memory: Tensor, masks: dict[tuple[int, int], ChunkMask]) -> AttentionContext:
        """Return the context of this rank's queries; contexts that share a mask still do, by ``masks``."""
        assert ctx.mask is None and ctx.bias is None, "masks are deferred"
        token_mask = None if ctx.token_mask is None else split_sequence(ctx.token_mask, 1, self.group)
        rotary = None if ctx.rotary is None else RotaryCosSin(*(split_sequence(each, 2, self.group) for each in ctx.rotary))
        key = id(ctx.block_mask), memory.shape[1]
        if key not in masks:
            queries, keys = (TokenPositions.single_sequence(each.shape[1], each.device) for each in (x, memory))
            whole = ctx.block_mask or BlockSparseMask((), FULL, queries, keys)
            own = slice(*chunk_range(x.shape[1], self.group.rank(), self.group.size()))
            sizes = self.group.rank(), self.group.size(), x.shape[1], len(x)
            masks[key] = ChunkMask((), whole.rule, whole.queries.select(own), whole.keys, whole.position, *sizes)
        return replace(ctx, token_mask=token_mask, rotary=rotary, block_mask=masks[key])


class _GatherTokens:
    """Hook after a stack: gathers the last hidden states of the ranks' tokens."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def __call__(self, stack: Stack, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Return the hidden states of all tokens."""
        ctx = args[1]
        return gather_sequence(output, ctx.length, 1, self.group) if isinstance(ctx, _ChunkContext) else output


class ContextParallelAttention(Attention):
    """Attention of a rank's queries to the keys and values of all ranks.

    Attributes:
        group: ranks that share the sequences.
        ring: whether keys and values may move around a ring.
    """

    group: ProcessGroup
    ring: bool

    def attend(
        self, q: Float[Tensor, "batch n_heads query d_head"], memory: ProjectedMemory, ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute softmax(Q K^T / sqrt(d_head)) V, where ``memory`` has the keys and values of this rank's tokens."""
        mask = ctx.block_mask
        if not isinstance(mask, ChunkMask):
            return super().attend(q, memory, ctx)  # a step with a cache
        assert isinstance(memory, KeyValues)
        if self.ring and self.supports_ring(mask):
            return ring_attention(q, *memory, self.sinks, RingOptions(mask, self.group, self.softcap))
        k, v = (gather_sequence(x, mask.n_keys, 2, self.group) for x in memory)
        return super().attend(q, KeyValues(k, v), mask.gathered)

    def supports_ring(self, mask: ChunkMask) -> bool:
        """Return whether the ring computes this attention: no dropout of weights, learned bias or scores of a plugin."""
        learned = mask.position is not None and bool(mask.position.bias_parameters)
        return self.score is None and not learned and not (self.training and self.dropout)


class ContextParallelApproximation(ApproximateAttention):
    """An approximation of attention, which every rank computes for all tokens, because it may mix queries as well as keys.

    Time and memory of approximations are proportional to the length, so that blocks are still dominated by what is split.

    Attributes:
        group: ranks that share the sequences.
    """

    group: ProcessGroup

    def attend(
        self, q: Float[Tensor, "batch n_heads query d_head"], memory: ProjectedMemory, ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute the approximation over gathered queries, keys and values; return the result of this rank's queries."""
        mask = ctx.block_mask
        if not isinstance(mask, ChunkMask):
            return super().attend(q, memory, ctx)
        assert isinstance(memory, KeyValues)
        q = gather_sequence(q, mask.n_queries, 2, self.group)
        k, v = (gather_sequence(x, mask.n_keys, 2, self.group) for x in memory)
        return split_sequence(super().attend(q, KeyValues(k, v), replace(ctx, block_mask=None)), 2, self.group)
