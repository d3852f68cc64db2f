"""Build attention contexts from positions, segments and mask rules: once per pass, for all blocks of a stack."""

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
"""A decoding step gathers its visible keys if they are at most this fraction of all keys; otherwise it masks."""


def build_contexts(
    position: Position, queries: Places, keys: Places, rules: Sequence[Rule], dense: bool = False, n_rows: int = 1
) -> list[AttentionContext]:
    """Build the self-attention contexts of a pass over whole rows: mask, position bias and rotary tables.

    Args:
        position: position encoding of the stack.
        queries: positions and segments of the queries.
        keys: positions and segments of the keys.
        rules: mask rules; block i uses ``rules[i % len(rules)]``.
        dense: build masks and biases as matrices, also where block-sparse tiles would be faster.
        n_rows: batch size where ``queries`` and ``keys`` have a single row for all.

    Returns:
        One context per rule.
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
    """Build the self-attention contexts of a decoding step, whose tokens follow ``n_read`` cached ones.

    Args:
        position: position encoding of the decoder.
        rules: mask rules; block i uses ``rules[i % len(rules)]``.
        n_read: number of cached tokens.
        tokens: new tokens.
        n_prefix: number of leading tokens that form the prefix of a prefix-LM.
        dense: build masks and biases as matrices, also where block-sparse tiles would be faster.

    Returns:
        One context per rule.
    """
    n_rows, n_new = tokens.shape
    positions = torch.arange(n_read + n_new, device=tokens.device)[None]
    every = Places(positions, torch.ones_like(positions), positions < n_prefix)
    new = every.each(lambda x: x[:, n_read:])
    if n_new > 1 or isinstance(rules[0], Unwritten):
        contexts = build_contexts(position, new, every, rules, dense, n_rows)
        return [replace(ctx, token_mask=None) for ctx in contexts]  # no row has padding
    rotation = position.rotation(new.positions)
    return [_of_last(position, rule, new, every, rotation) for rule in rules]


def _of_last(position: Position, rule: Rule, new: Places, every: Places, rotation: Rotation | None) -> AttentionContext:
    """Build the context of a single new token; gather the keys that the rule allows where they are few."""
    mask, keys, visible = None, every.positions, None
    if rule not in (LOOKING_BACK, BOTH_WAYS_IN_PREFIX):
        mask = rule.matrix(new, every)
        places = mask.flatten().nonzero()[:, 0]
        if 0 < len(places) <= RARE * mask.numel():
            mask, keys, visible = None, keys[:, places], places
    bias = position.bias(new.positions, keys, *position.learned)
    return AttentionContext(mask=mask, bias=bias, rotation=rotation, visible_keys=visible)


def of_block(contexts: Sequence[AttentionContext], attention: str) -> AttentionContext:
    """Return the context of an attention layer by its address, such as ``decoder.blocks.3.attn``."""
    return contexts[int(attention.split(".blocks.")[1].split(".")[0]) % len(contexts)]
