"""Block-sparse attention on a GPU with FlexAttention (Dong et al. 2024): exact, forward and backward.

Unlike the CPU kernel in ``kernels/block_sparse.py``, PyTorch's FlexAttention kernel does not gather tiles. It reads a block mask, which
lists the fully and the partially visible key blocks of each query block. The block mask is built from the tile status of the mask rule,
without the dense mask. The kernel evaluates the rule only in partially visible blocks.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from transom.kernels.block_sparse import TileLayout, build_layout, combine_parts, split_rule
from transom.layers.attention import DEFAULT_ARGS, AttentionArgs
from transom.layers.masks.block_sparse_mask import BlockSparseMask
from transom.layers.masks.mask_rules import MaskRule, TokenPositions
from transom.layers.position_encoding import PositionEncoding

BLOCK_SIZE = 128
"""Tokens per block, a multiple of the tile sizes of FlexAttention."""

MIN_HEAD_WIDTH = 16
"""Minimum width of a head that FlexAttention supports."""


class FlexMaskPart(NamedTuple):
    """A part of a mask.

    Attributes:
        queries: how the queries are ordered and split into tiles.
        keys: how the keys are ordered and split into tiles.
        mask: FlexAttention's block mask.
        pairs: number of query-key pairs in visible blocks.
    """

    queries: TileLayout
    keys: TileLayout
    mask: BlockMask
    pairs: int


class FlexMask(BlockSparseMask):
    """A block-sparse mask for a GPU; its parts are of type ``FlexMaskPart``."""


def is_available(device: torch.device) -> bool:
    """Return whether FlexAttention can be compiled for a device: a GPU, with Triton installed."""
    return device.type == "cuda" and find_spec("triton") is not None


def plan_flex_mask(rule: MaskRule, queries: TokenPositions, keys: TokenPositions, position: PositionEncoding | None = None) -> FlexMask:
    """Split a mask into parts and find the visible blocks of each, for attention on a GPU; parts without visible blocks are dropped.

    Args:
        rule: mask rule.
        queries: positions of the queries.
        keys: positions of the keys.
        position: position encoding whose bias is added to the scores; None for no bias.
    """
    parts = [
        _plan_part(each, build_layout(queries, order, BLOCK_SIZE), build_layout(keys, order, BLOCK_SIZE))
        for each, order in split_rule(rule)
    ]
    return FlexMask([part for part in parts if part.pairs], rule, queries, keys, position)


def _plan_part(rule: MaskRule, queries: TileLayout, keys: TileLayout) -> FlexMaskPart:
    any_visible, all_visible = (
        x.clone() for x in torch.broadcast_tensors(*rule.classify_tile(queries.token_positions, keys.token_positions))
    )
    all_visible &= any_visible
    for layout, last in ((queries, (slice(None), -1)), (keys, (slice(None), slice(None), -1))):
        if layout.length % BLOCK_SIZE:  # the kernel evaluates the rule in incomplete blocks
            all_visible[last] = False
    partial_blocks = (any_visible & ~all_visible)[:, None]
    block_lists = (*_block_counts_and_indices(partial_blocks), *_block_counts_and_indices(all_visible[:, None]))
    mask_mod = _build_mask_mod(rule, *(layout.token_positions.map(lambda x: x.flatten(1).contiguous()) for layout in (queries, keys)))
    mask = BlockMask.from_kv_blocks(*block_lists, BLOCK_SIZE, mask_mod, (queries.length, keys.length))
    return FlexMaskPart(queries, keys, mask, int(any_visible.sum()) * BLOCK_SIZE**2)


def _block_counts_and_indices(blocks: Bool[Tensor, "batch 1 query_tiles key_tiles"]) -> tuple[Tensor, Tensor]:
    """Return the number of True key blocks per query block, and the indices of all key blocks, True ones first."""
    return blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(dim=-1, descending=True, stable=True).int()


def _build_mask_mod(rule: MaskRule, queries: TokenPositions, keys: TokenPositions) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the ``mask_mod`` of FlexAttention: evaluate the rule for one query index and one key index.

    If all sequences of the batch share their positions, ``queries`` and ``keys`` have a batch size of 1.
    """
    shared = len(queries.positions) == 1

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = batch * 0 if shared else batch
        return rule.mask_mod(queries.map(lambda x: x[row, query]), keys.map(lambda x: x[row, key]))

    return mask_mod


def can_plan_on_gpu(rule: MaskRule, queries: TokenPositions, keys: TokenPositions, position: PositionEncoding | None) -> bool:
    """Return whether ``plan_flex_mask`` applies: the tokens are on a GPU for which FlexAttention can be compiled."""
    return is_available(queries.segments.device)


def can_use_block_attention(q: Tensor, k: Tensor, v: Tensor, tiles: BlockSparseMask, args: AttentionArgs = DEFAULT_ARGS) -> bool:
    """Return whether ``flex_block_attention`` applies: a ``FlexMask``, no dropout or scores by a plugin, wide heads, not float64."""
    fits = not args.dropout and args.score is None and min(q.shape[3], v.shape[3]) >= MIN_HEAD_WIDTH and q.dtype != torch.float64
    return fits and isinstance(tiles, FlexMask)


def flex_block_attention(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    blocks: BlockSparseMask,
    args: AttentionArgs = DEFAULT_ARGS,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute attention over the visible blocks of a mask; parts and sinks are combined by ``combine_parts``."""
    assert blocks.parts, "at least one block is visible"
    single_part = len(blocks.parts) == 1 and args.sinks is None
    kernel = flex_attention if q.device.type == "cpu" else _compiled_flex_attention()  # uncompiled, it stores all scores: for tests
    found = []
    for part in blocks.parts:
        z, aux = kernel(
            *(layout.to_order(x) for layout, x in ((part.queries, q), (part.keys, k), (part.keys, v))),
            score_mod=_build_score_mod(part, blocks.position, args.softcap),
            block_mask=part.mask,
            enable_gqa=k.shape[1] < q.shape[1],
            return_aux=AuxRequest(lse=not single_part),
        )
        lse = (
            () if single_part else (aux.lse[..., None].clamp(min=torch.finfo(aux.lse.dtype).min),)
        )  # minus infinity for fully masked queries
        found.append(tuple(part.queries.from_order(x) for x in (z, *lse)))
    return combine_parts(found, args.sinks).to(v.dtype)


def _build_score_mod(part: FlexMaskPart, position: PositionEncoding | None, softcap: float | None) -> Callable[..., Tensor] | None:
    """Return the ``score_mod`` of FlexAttention: the softcap c tanh(s / c), then the bias; None without either."""
    bias = None if position is None else position.bias_mod()
    if softcap is None and bias is None:
        return None
    queries, keys = (layout.token_positions.positions.flatten(1).contiguous() for layout in (part.queries, part.keys))
    shared = len(queries) == 1

    def score(s: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if bias is None:
            return s
        row = batch * 0 if shared else batch
        return s + bias(head, queries[row, query], keys[row, key])

    return score


@cache
def _compiled_flex_attention() -> Any:
    """Return the compiled FlexAttention kernel, which PyTorch specializes for each rule, bias and head width."""
    compile_kernel: Any = torch.compile  # its overloads lack recompile_limit
    return compile_kernel(flex_attention, recompile_limit=64, isolate_recompiles=True)
