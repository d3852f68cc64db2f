"""Contexts of attention from positions, segments and mask rules: built once a pass, used by all blocks of a stack."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from transom.layers.context import AttentionContext, SegmentMask
from transom.layers.masks.rule import BOTH_WAYS_IN_PREFIX, LOOKING_BACK, Places, Rule, Unwritten
from transom.layers.masks.visible_tiles import visible_tiles
from transom.layers.position import Position, Rotation

RARE = 0.5
"""Most keys of a step, as a share of all, with which to gather them pays."""


def build_contexts(
    position: Position, queries: Places, keys: Places, rules: Sequence[Rule], dense: bool = False, n_rows: int = 1
) -> list[AttentionContext]:
    """Build what attention needs to let tokens see those of their own sequence that rules allow, with the position component's say.

    Args:
        position: the component.
        queries: where the tokens stand.
        keys: where those stand that they may see.
        rules: of the first, second, ... block, and again from the first.
        dense: give masks and biases as matrices, however long.
        n_rows: sequences that share the places of one row.

    Returns:
        The contexts of the first, second, ... block, and again from the first.
    """
    rotation = position.rotation(queries.positions)
    token_mask = queries.segments > 0
    if isinstance(rules[0], Unwritten) and not dense:
        segments = SegmentMask(queries.segments, keys.segments, rules[0].rule == LOOKING_BACK)
        return [AttentionContext(token_mask, rotation=rotation, segments=segments)]
    found = [None if dense else visible_tiles(rule, queries, keys, position, n_rows) for rule in rules]
    bias = None if all(found) else position.bias(queries.positions, keys.positions, *position.learned)
    return [
        AttentionContext(token_mask, rotation=rotation, tiles=tiles)
        if tiles
        else AttentionContext(token_mask, mask=rule.matrix(queries, keys), bias=bias, rotation=rotation)
        for rule, tiles in zip(rules, found, strict=True)
    ]


def build_decode_contexts(
    position: Position,
    rules: Sequence[Rule],
    n_read: int,
    tokens: Int[Tensor, "rows new"],
    n_prefix: int = 0,
    dense: bool = False,
) -> list[AttentionContext]:
    """Build the same for the next tokens of sequences that are read step by step, which see those before them.

    Args:
        position: the component.
        rules: of the first, second, ... block, and again from the first.
        n_read: tokens that were read before.
        tokens: read now.
        n_prefix: tokens at the start that are the sequences' prefix.
        dense: give masks and biases as matrices, however long.

    Returns:
        The contexts of the first, second, ... block, and again from the first.
    """
    n_rows, n_new = tokens.shape
    positions = torch.arange(n_read + n_new, device=tokens.device)[None]
    every = Places(positions, torch.ones_like(positions), positions < n_prefix)
    new = every.each(lambda x: x[:, n_read:])
    if n_new > 1 or isinstance(rules[0], Unwritten):
        contexts = build_contexts(position, new, every, rules, dense, n_rows)
        return [replace(ctx, token_mask=None) for ctx in contexts]  # all are tokens, in every row
    rotation = position.rotation(new.positions)
    return [_of_last(position, rule, new, every, rotation) for rule in rules]


def _of_last(position: Position, rule: Rule, new: Places, every: Places, rotation: Rotation | None) -> AttentionContext:
    """Let the last token see the keys that the rule allows: only those, where they are few."""
    mask, keys, visible = None, every.positions, None
    if rule not in (LOOKING_BACK, BOTH_WAYS_IN_PREFIX):
        mask = rule.matrix(new, every)
        places = mask.flatten().nonzero()[:, 0]
        if 0 < len(places) <= RARE * mask.numel():
            mask, keys, visible = None, keys[:, places], places
    bias = position.bias(new.positions, keys, *position.learned)
    return AttentionContext(mask=mask, bias=bias, rotation=rotation, visible_keys=visible)


def of_block(contexts: Sequence[AttentionContext], attention: str) -> AttentionContext:
    """Choose the context of an attention by its address, as ``decoder.blocks.3.attn``."""
    return contexts[int(attention.split(".blocks.")[1].split(".")[0]) % len(contexts)]
