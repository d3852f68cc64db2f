"""Context parallelism: the tokens of long sequences are split over the ranks of the mesh axis ``context``.

Between the first and the last block of a stack each rank holds the residual stream of its chunk of tokens. Norms, residual sums and
feed-forward networks need no other tokens. Attention needs keys and values of all tokens: they move around a ring of the ranks
(``ring_attention``), or, where the ring does not support the attention, they are gathered. All parameters have partial gradients: their sum
over the ranks is the gradient.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from transom.layers.approximations.approximate_attention import ApproximateAttention
from transom.layers.attention import Attention
from transom.layers.cache import KeyValues, ProjectedMemory
from transom.layers.context import AttentionContext, StackContext
from transom.layers.dropout import DropoutSite, round_probability
from transom.layers.masks.block_sparse_mask import BlockSparseMask
from transom.layers.masks.mask_rules import FULL, DeferredMask, ImplicitMask, MaskRule, TokenPositions
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.position_encoding import RotaryCosSin
from transom.layers.stack import Stack
from transom.models.base import Network
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.encoder import EncoderOnlyTransformer
from transom.models.seq2seq import Seq2SeqTransformer
from transom.models.vision import VisionTransformer
from transom.parallel.axes.chunk_mask import ChunkMask
from transom.parallel.axes.ring_attention import RingOptions, ring_attention
from transom.parallel.axes.sequence import chunk_range, gather_sequence, split_sequence, split_token_masks


def apply_context_parallel(model: Network, mesh: DeviceMesh, ring: bool = True) -> None:
    """Split the tokens of every pass over the ranks of the mesh axis ``context``, in place; passes with a cache stay whole.

    Apply tensor parallelism and ``fully_shard`` afterwards: tokens are split into chunks of ``context`` first.

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
            module.register_forward_pre_hook(_SplitTokens(module, group), prepend=True)
            module.register_forward_hook(_GatherTokens(group))
        elif isinstance(module, ApproximateAttention):
            vars(module)["attend"] = partial(_approximate, module, group)
        elif isinstance(module, Attention):
            vars(module)["attend"] = partial(_attend, module, group, ring)
    _defer_masks(model)
    split_token_masks(model, group)


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
class ChunkContext(StackContext):
    """Context of a rank's tokens.

    Attributes:
        length: number of tokens of all ranks.
        first_token: index of the rank's first token.
    """

    length: int = 0
    first_token: int = 0


class _SplitTokens:
    """Hook before a stack: passes on this rank's tokens, and its tokens of the encoder output, with their context."""

    def __init__(self, stack: Stack, group: ProcessGroup) -> None:
        self.group = group
        experts = [m for mixture in stack.modules() if isinstance(mixture, MixtureOfExperts) for m in mixture.modules() if m is not mixture]
        self.dropout_sites = [m for m in stack.modules() if isinstance(m, DropoutSite) and m not in experts]

    def __call__(self, stack: Stack, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the arguments of ``Stack.forward`` for this rank's tokens; None, for no change, in a pass with a cache."""
        x, ctx, *memory = [each for each in args if each is not None]  # a stack without cross-attention may be given no memory
        assert isinstance(ctx, StackContext)
        first_token = 0 if ctx.caches is not None else chunk_range(x.shape[1], self.group.rank(), self.group.size())[0]
        for site in self.dropout_sites:
            site.offsets = (0, first_token) if isinstance(site, Attention) else (first_token,)
        if ctx.caches is not None:
            return None
        masks: dict[tuple[int, int], ChunkMask] = {}
        contexts = [self.local(each, x, x, masks) for each in ctx.attention_contexts]
        cross = self.local(ctx.cross, x, memory[0], masks) if memory else ctx.cross
        token_mask = None if ctx.token_mask is None else split_sequence(ctx.token_mask, 1, self.group)
        local = ChunkContext(token_mask, ctx.observer, contexts, cross, None, x.shape[1], first_token)
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
        return gather_sequence(output, ctx.length, 1, self.group) if isinstance(ctx, ChunkContext) else output


def _attend(
    attention: Attention,
    group: ProcessGroup,
    ring: bool,
    q: Float[Tensor, "batch n_heads query d_head"],
    memory: ProjectedMemory,
    ctx: AttentionContext,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute ``Attention.attend``, softmax(Q K^T / sqrt(d_head)) V, where ``memory`` has the keys and values of this rank's tokens.

    A learned bias, scores of a plugin and dropout without keys need gathered keys.
    """
    mask, attend = ctx.block_mask, type(attention).attend
    if not isinstance(mask, ChunkMask):
        return attend(attention, q, memory, ctx)  # a step with a cache
    assert isinstance(memory, KeyValues)
    args = attention.attention_args(ctx)
    learned_bias = mask.position is not None and bool(mask.position.bias_parameters)
    if ring and args.score is None and not learned_bias:
        masks = attention.dropout_masks(q) if args.dropout else None
        if masks is not None or not args.dropout:
            options = RingOptions(mask, group, args.softcap, round_probability(args.dropout), masks)
            return ring_attention(q, *memory, args.sinks, options)
    k, v = (gather_sequence(x, mask.n_keys, 2, group) for x in memory)
    return attend(attention, q, KeyValues(k, v), mask.gathered)


def _approximate(
    attention: ApproximateAttention,
    group: ProcessGroup,
    q: Float[Tensor, "batch n_heads query d_head"],
    memory: ProjectedMemory,
    ctx: AttentionContext,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute ``ApproximateAttention.attend`` for all tokens, because an approximation may mix queries too; return this rank's part.

    Time and memory of approximations are proportional to the length, so projections and feed-forward networks, which are split, dominate.
    """
    mask, attend = ctx.block_mask, type(attention).attend
    if not isinstance(mask, ChunkMask):
        return attend(attention, q, memory, ctx)
    assert isinstance(memory, KeyValues)
    q = gather_sequence(q, mask.n_queries, 2, group)
    k, v = (gather_sequence(x, mask.n_keys, 2, group) for x in memory)
    return split_sequence(attend(attention, q, KeyValues(k, v), replace(ctx, block_mask=None)), 2, group)
