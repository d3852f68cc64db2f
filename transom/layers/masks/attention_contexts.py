"""Build attention contexts, which all layers of a stack share, from positions, segments and mask rules: once per forward pass."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from transom.files.limits import MAX_LAYERS
from transom.layers.context import ALL_PAIRS, AttentionContext, Part, SegmentMask
from transom.layers.masks.block_sparse_mask import build_block_sparse_mask
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, PREFIX_LM, DeferredMask, ImplicitMask, MaskRule, TokenPositions
from transom.layers.position_encoding import PositionEncoding, RotaryCosSin

MAX_GATHERED_FRACTION = 0.5
"""A decoding step gathers the visible keys if they are at most this fraction of all keys; otherwise it masks the other keys."""


def build_contexts(
    position: PositionEncoding,
    queries: TokenPositions,
    keys: TokenPositions,
    rules: Sequence[MaskRule],
    dense: bool = False,
    n_rows: int = 1,
) -> list[AttentionContext]:
    """Build the self-attention contexts of a pass over whole rows: mask, position bias and rotary tables.

    Args:
        position: position encoding of the stack.
        queries: positions and segments of the queries.
        keys: positions and segments of the keys.
        rules: mask rules; block i uses ``rules[i % len(rules)]``.
        dense: build masks and biases as matrices, also where block-sparse tiles would be faster.
        n_rows: batch size, if ``queries`` and ``keys`` have a single row that all rows of the batch share; else 1.

    Returns:
        The contexts of the first blocks, which later blocks repeat: one per rule, or more if the rotary bases have another cycle.
    """
    rotary = position.rotary_cycle(queries.positions, queries.lengths)
    token_mask = queries.segments > 0
    if isinstance(rules[0], ImplicitMask) and not dense:
        segment_mask = SegmentMask(queries.segments, keys.segments, rules[0].rule == CAUSAL_IN_SEGMENT)
        return _rotated([AttentionContext(token_mask, segment_mask=segment_mask)], rotary)
    block_masks = [None if dense else build_block_sparse_mask(rule, queries, keys, position, n_rows) for rule in rules]
    bias = None if all(block_masks) else position.bias(queries.positions, keys.positions, *position.bias_parameters)
    contexts = [
        AttentionContext(token_mask, block_mask=block_mask)
        if block_mask
        else AttentionContext(token_mask, mask=rule.dense(queries, keys), bias=bias)
        for rule, block_mask in zip(rules, block_masks, strict=True)
    ]
    return _rotated(contexts, rotary)


def _rotated(contexts: Sequence[AttentionContext], rotary: Sequence[RotaryCosSin | None]) -> list[AttentionContext]:
    """Combine the cycle of masks with the cycle of rotary cosines and sines; block i has element i of both."""
    n = min(math.lcm(len(contexts), len(rotary)), MAX_LAYERS)
    return [replace(contexts[i % len(contexts)], rotary=rotary[i % len(rotary)]) for i in range(n)]


def build_cross_context(
    rule: MaskRule, queries: Int[Tensor, "batch query"], keys: Int[Tensor, "batch key"], dense: bool = False
) -> AttentionContext:
    """Build the context of cross-attention between texts with these segment ids, by a rule that reads no positions.

    ``dense`` builds the mask as a matrix, also for approximations, which need only the segments.
    """
    token_mask = queries > 0
    if isinstance(rule, ImplicitMask) and not dense:
        return AttentionContext(token_mask, segment_mask=SegmentMask(queries, keys, causal=False))
    sides = TokenPositions(torch.zeros_like(queries), queries), TokenPositions(torch.zeros_like(keys), keys)
    block_mask = build_block_sparse_mask(rule, *sides) if isinstance(rule, DeferredMask) and not dense else None
    return AttentionContext(token_mask, block_mask=block_mask) if block_mask else AttentionContext(token_mask, mask=rule.dense(*sides))


def build_decode_contexts(
    position: PositionEncoding,
    rules: Sequence[MaskRule],
    n_cached: int,
    tokens: Int[Tensor, "rows new"],
    n_prefix: int = 0,
    dense: bool = False,
    text_length: int | None = None,
) -> list[AttentionContext]:
    """Build the self-attention contexts of a decoding step, whose tokens follow ``n_cached`` cached ones.

    Args:
        position: position encoding of the decoder.
        rules: mask rules; block i uses ``rules[i % len(rules)]``.
        n_cached: number of cached tokens.
        tokens: new tokens.
        n_prefix: number of leading tokens that form the prefix of a prefix-LM.
        dense: build masks and biases as matrices, also where block-sparse tiles would be faster.
        text_length: length of each text once it is complete, as for ``TokenPositions.lengths``; None for the context window.

    Returns:
        The contexts of the first blocks, as for ``build_contexts``.
    """
    n_rows, n_new = tokens.shape
    positions = torch.arange(n_cached + n_new, device=tokens.device)[None]
    lengths = None if text_length is None else torch.full_like(positions, text_length)
    all_tokens = TokenPositions(positions, torch.ones_like(positions), positions < n_prefix, lengths)
    new_tokens = all_tokens.map(lambda x: x[:, n_cached:])
    if n_new > 1 or isinstance(rules[0], ImplicitMask):
        contexts = build_contexts(position, new_tokens, all_tokens, rules, dense, n_rows)
        return [replace(ctx, token_mask=None) for ctx in contexts]  # no row has padding
    rotary = position.rotary_cycle(new_tokens.positions, new_tokens.lengths)
    return _rotated([_last_token_context(position, rule, new_tokens, all_tokens) for rule in rules], rotary)


def _last_token_context(
    position: PositionEncoding, rule: MaskRule, new_tokens: TokenPositions, all_tokens: TokenPositions
) -> AttentionContext:
    """Build the context of a single new token. If the rule allows few keys, the context has their indices instead of a mask."""
    mask, keys, gathered = None, all_tokens.positions, None
    if rule not in (CAUSAL_IN_SEGMENT, PREFIX_LM):
        mask = rule.dense(new_tokens, all_tokens)
        key_indices = mask.flatten().nonzero()[:, 0]
        if 0 < len(key_indices) <= MAX_GATHERED_FRACTION * mask.numel():
            mask, keys, gathered = None, keys[:, key_indices], key_indices
    bias = position.bias(new_tokens.positions, keys, *position.bias_parameters)
    return AttentionContext(mask=mask, bias=bias, key_indices=gathered)


def select_pairs(tokens: TokenPositions, part: Part) -> tuple[TokenPositions, TokenPositions]:
    """Return the queries and keys of a part of the pairs of self-attention."""
    return (tokens, tokens) if part is ALL_PAIRS else (tokens.select(part.queries), tokens.select(part.keys))


def context_of(contexts: Sequence[AttentionContext], attention: str) -> AttentionContext:
    """Return the context of the attention layer with address ``attention``, such as ``decoder.blocks.3.attn``."""
    return contexts[int(attention.split(".blocks.")[1].split(".")[0]) % len(contexts)]
