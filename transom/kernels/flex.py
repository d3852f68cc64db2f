"""Attention over the visible blocks of a mask on a GPU, by FlexAttention (Dong et al. 2024): exact, forward and back.

What ``tiles`` does on a processor by gathering, PyTorch's kernel does in place: it is told which blocks of keys each block of queries sees
some or all of, from the rule's verdicts and without the matrix, and asks the rule again only inside those that are seen in part.
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
"""Tokens of a block: the kernel's own tiles divide it."""

NARROWEST = 16
"""Least width of a head that the kernel takes."""


class BlockPart(NamedTuple):
    """A part of a mask: its tokens in the order in which they are laid, and the blocks that are seen."""

    queries: Side
    keys: Side
    mask: BlockMask
    pairs: int


class Blocks(VisibleTiles):
    """A mask by its visible blocks, for a GPU; its parts are of ``BlockPart``."""


def available(device: torch.device) -> bool:
    """Tell whether the kernel can be compiled for a device."""
    return device.type == "cuda" and find_spec("triton") is not None


def plan_blocks(rule: Rule, queries: Places, keys: Places, position: Position | None = None) -> Blocks:
    """Find the visible blocks of a mask; parts of it that see nothing are left out.

    Args:
        rule: the mask.
        queries: where the queries stand.
        keys: where the keys stand.
        position: the brick whose bias is added to the scores.
    """
    parts = [_part(each, side_of(queries, order, BLOCK), side_of(keys, order, BLOCK)) for each, order in parts_of(rule)]
    return Blocks([part for part in parts if part.pairs], rule, queries, keys, position)


def _part(rule: Rule, queries: Side, keys: Side) -> BlockPart:
    some, every = (x.clone() for x in torch.broadcast_tensors(*rule.judge(queries.places, keys.places)))
    every &= some
    for side, last in ((queries, (slice(None), -1)), (keys, (slice(None), slice(None), -1))):
        if side.length % BLOCK:  # the kernel asks again where a block is not full
            every[last] = False
    partly = (some & ~every)[:, None]
    listed = (*_listed(partly), *_listed(every[:, None]))
    sees = _asked(rule, *(side.places.each(lambda x: x.flatten(1).contiguous()) for side in (queries, keys)))
    mask = BlockMask.from_kv_blocks(*listed, BLOCK, sees, (queries.length, keys.length))
    return BlockPart(queries, keys, mask, int(some.sum()) * BLOCK**2)


def _listed(blocks: Bool[Tensor, "batch 1 query_tiles key_tiles"]) -> tuple[Tensor, Tensor]:
    """Say for each block of queries how many blocks of keys there are, and which, those first."""
    return blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(dim=-1, descending=True, stable=True).int()


def _asked(rule: Rule, queries: Places, keys: Places) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Ask the rule of one query and one key by their numbers; places that all rows share are one row's."""
    shared = len(queries.positions) == 1

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = batch * 0 if shared else batch
        return rule.allows(queries.each(lambda x: x[row, query]), keys.each(lambda x: x[row, key]))

    return sees


def planned_on_gpu(rule: Rule, queries: Places, keys: Places, position: Position | None) -> bool:
    """Return whether ``plan_blocks`` serves."""
    return available(queries.segments.device)


def over_blocks(q: Tensor, k: Tensor, v: Tensor, tiles: VisibleTiles, terms: Terms = PLAIN) -> bool:
    """Return whether ``attend_blocks`` serves."""
    fits = not terms.dropout and terms.score is None and min(q.shape[3], v.shape[3]) >= NARROWEST and q.dtype != torch.float64
    return fits and isinstance(tiles, Blocks)


def attend_blocks(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    blocks: VisibleTiles,
    terms: Terms = PLAIN,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend over the visible blocks of a mask; parts and sinks are joined as those of tiles are."""
    assert blocks.parts, "something is seen"
    alone = len(blocks.parts) == 1 and terms.sinks is None
    kernel = flex_attention if q.device.type == "cpu" else _compiled()  # uncompiled, it writes all scores out: for tests
    found = []
    for part in blocks.parts:
        z, aux = kernel(
            *(side.arrange(x) for side, x in ((part.queries, q), (part.keys, k), (part.keys, v))),
            score_mod=_score(part, blocks.position, terms.softcap),
            block_mask=part.mask,
            enable_gqa=k.shape[1] < q.shape[1],
            return_aux=AuxRequest(lse=not alone),
        )
        log = () if alone else (aux.lse[..., None].clamp(min=torch.finfo(aux.lse.dtype).min),)  # minus infinity where nothing is seen
        found.append(tuple(part.queries.put_back(x) for x in (z, *log)))
    return joined(found, terms.sinks).to(v.dtype)


def _score(part: BlockPart, position: Position | None, softcap: float | None) -> Callable[..., Tensor] | None:
    """Give what becomes of a score: c tanh(s / c), then the bias."""
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
    """Give the compiled kernel, a variant of which is made for each rule, bias and width."""
    compile_kernel: Any = torch.compile  # its overloads lack the limit
    return compile_kernel(flex_attention, recompile_limit=64, isolate_recompiles=True)
