"""Block-sparse attention on a GPU with FlexAttention (Dong et al. 2024): exact, forward and backward.

``block_sparse`` gathers tiles on a CPU; PyTorch's kernel computes in place. Its block mask lists the fully and partially visible key blocks
of each query block. It is built from the tile status of the rule, without the dense mask. The kernel evaluates the rule only in partially
visible blocks.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from transom.kernels.block_sparse import Side, joined, parts_of, side_of
from transom.layers.attention import PLAIN, Terms
from transom.layers.masks.rule import Places, Rule
from transom.layers.masks.visible_tiles import VisibleTiles
from transom.layers.position import Position

BLOCK = 128
"""Tokens per block; a multiple of the kernel's own tile sizes."""

NARROWEST = 16
"""Minimum head width that the kernel supports."""


class BlockPart(NamedTuple):
    """A part of a mask: the layouts of its queries and keys, and its block mask."""

    queries: Side
    keys: Side
    mask: BlockMask
    pairs: int


class Blocks(VisibleTiles):
    """A block-sparse mask for a GPU; its parts are of type ``BlockPart``."""


def available(device: torch.device) -> bool:
    """Return whether the kernel can be compiled for a device."""
    return device.type == "cuda" and find_spec("triton") is not None


def plan_blocks(rule: Rule, queries: Places, keys: Places, position: Position | None = None) -> Blocks:
    """Find the visible blocks of a mask; parts without any are dropped.

    Args:
        rule: mask rule.
        queries: positions of the queries.
        keys: positions of the keys.
        position: position encoding whose bias is added to the scores.
    """
    parts = [_part(each, side_of(queries, order, BLOCK), side_of(keys, order, BLOCK)) for each, order in parts_of(rule)]
    return Blocks([part for part in parts if part.pairs], rule, queries, keys, position)


def _part(rule: Rule, queries: Side, keys: Side) -> BlockPart:
    some, every = (x.clone() for x in torch.broadcast_tensors(*rule.judge(queries.places, keys.places)))
    every &= some
    for side, last in ((queries, (slice(None), -1)), (keys, (slice(None), slice(None), -1))):
        if side.length % BLOCK:  # the kernel evaluates the rule in incomplete blocks
            every[last] = False
    partly = (some & ~every)[:, None]
    listed = (*_listed(partly), *_listed(every[:, None]))
    sees = _asked(rule, *(side.places.each(lambda x: x.flatten(1).contiguous()) for side in (queries, keys)))
    mask = BlockMask.from_kv_blocks(*listed, BLOCK, sees, (queries.length, keys.length))
    return BlockPart(queries, keys, mask, int(some.sum()) * BLOCK**2)


def _listed(blocks: Bool[Tensor, "batch 1 query_tiles key_tiles"]) -> tuple[Tensor, Tensor]:
    """Return the number of marked key blocks per query block, and the key block indices with the marked ones first."""
    return blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(dim=-1, descending=True, stable=True).int()


def _asked(rule: Rule, queries: Places, keys: Places) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the ``mask_mod`` of FlexAttention: evaluate the rule for one query index and one key index.

    Positions shared by all sequences have a batch size of 1.
    """
    shared = len(queries.positions) == 1

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = batch * 0 if shared else batch
        return rule.allows(queries.each(lambda x: x[row, query]), keys.each(lambda x: x[row, key]))

    return sees


def planned_on_gpu(rule: Rule, queries: Places, keys: Places, position: Position | None) -> bool:
    """Return whether ``plan_blocks`` applies."""
    return available(queries.segments.device)


def over_blocks(q: Tensor, k: Tensor, v: Tensor, tiles: VisibleTiles, terms: Terms = PLAIN) -> bool:
    """Return whether ``attend_blocks`` applies."""
    fits = not terms.dropout and terms.score is None and min(q.shape[3], v.shape[3]) >= NARROWEST and q.dtype != torch.float64
    return fits and isinstance(tiles, Blocks)


def attend_blocks(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    blocks: VisibleTiles,
    terms: Terms = PLAIN,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute attention over the visible blocks of a mask; parts and sinks are combined as in ``block_sparse``."""
    assert blocks.parts, "at least one block is visible"
    alone = len(blocks.parts) == 1 and terms.sinks is None
    kernel = flex_attention if q.device.type == "cpu" else _compiled()  # uncompiled, it stores all scores: for tests
    found = []
    for part in blocks.parts:
        z, aux = kernel(
            *(side.arrange(x) for side, x in ((part.queries, q), (part.keys, k), (part.keys, v))),
            score_mod=_score(part, blocks.position, terms.softcap),
            block_mask=part.mask,
            enable_gqa=k.shape[1] < q.shape[1],
            return_aux=AuxRequest(lse=not alone),
        )
        log = () if alone else (aux.lse[..., None].clamp(min=torch.finfo(aux.lse.dtype).min),)  # minus infinity for fully masked queries
        found.append(tuple(part.queries.put_back(x) for x in (z, *log)))
    return joined(found, terms.sinks).to(v.dtype)


def _score(part: BlockPart, position: Position | None, softcap: float | None) -> Callable[..., Tensor] | None:
    """Return the ``score_mod`` of FlexAttention: the softcap c tanh(s / c), then the bias; None without either."""
    bias = None if position is None else position.one_bias()
    if softcap is None and bias is None:
        return None
    queries, keys = (side.places.positions.flatten(1).contiguous() for side in (part.queries, part.keys))
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
def _compiled() -> Any:
    """Return the compiled kernel; it is specialized for each rule, bias and head width."""
    compile_kernel: Any = torch.compile  # its overloads lack recompile_limit
    return compile_kernel(flex_attention, recompile_limit=64, isolate_recompiles=True)
