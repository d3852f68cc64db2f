"""Build attention contexts, which all layers of a stack share, from positions, segments and mask rules: once per forward pass."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from transom.layers.context import ALL_PAIRS, AttentionContext, Part, SegmentMask
from transom.layers.masks.block_sparse_mask import build_block_sparse_mask
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, PREFIX_LM, ImplicitMask, MaskRule, TokenPositions
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
        One context per rule.
    """
    rotary = position.rotary(queries.positions)
    token_mask = queries.segments > 0
    if isinstance(rules[0], ImplicitMask) and not dense:
        segment_mask = SegmentMask(queries.segments, keys.segments, rules[0].rule == CAUSAL_IN_SEGMENT)
        return [AttentionContext(token_mask, rotary=rotary, segment_mask=segment_mask)]
    block_masks = [None if dense else build_block_sparse_mask(rule, queries, keys, position, n_rows) for rule in rules]
    bias = None if all(block_masks) else position.bias(queries.positions, keys.positions, *position.bias_parameters)
    return [
        AttentionContext(token_mask, rotary=rotary, block_mask=block_mask)
        if block_mask
        else AttentionContext(token_mask, mask=rule.dense(queries, keys), bias=bias, rotary=rotary)
        for rule, block_mask in zip(rules, block_masks, strict=True)
    ]


def build_decode_contexts(
    position: PositionEncoding,
    rules: Sequence[MaskRule],
    n_cached: int,
    tokens: Int[Tensor, "rows new"],
    n_prefix: int = 0,
    dense: bool = False,
) -> list[AttentionContext]:
    """Build the self-attention contexts of a decoding step, whose tokens follow ``n_cached`` cached ones.

    Args:
        position: position encoding of the decoder.
        rules: mask rules; block i uses ``rules[i % len(rules)]``.
        n_cached: number of cached tokens.
        tokens: new tokens.
        n_prefix: number of leading tokens that form the prefix of a prefix-LM.
        dense: build masks and biases as matrices, also where block-sparse tiles would be faster.

    Returns:
        One context per rule.
    """
    n_rows, n_new = tokens.shape
    positions = torch.arange(n_cached + n_new, device=tokens.device)[None]
    all_tokens = TokenPositions(positions, torch.ones_like(positions), positions < n_prefix)
    new_tokens = all_tokens.map(lambda x: x[:, n_cached:])
    if n_new > 1 or isinstance(rules[0], ImplicitMask):
        contexts = build_contexts(position, new_tokens, all_tokens, rules, dense, n_rows)
        return [replace(ctx, token_mask=None) for ctx in contexts]  # no row has padding
    rotary = position.rotary(new_tokens.positions)
    return [_last_token_context(position, rule, new_tokens, all_tokens, rotary) for rule in rules]


def _last_token_context(
    position: PositionEncoding, rule: MaskRule, new_tokens: TokenPositions, all_tokens: TokenPositions, rotary: RotaryCosSin | None
) -> AttentionContext:
    """Build the context of a single new token. If the rule allows few keys, the context has their indices instead of a mask."""
    mask, keys, gathered = None, all_tokens.positions, None
    if rule not in (CAUSAL_IN_SEGMENT, PREFIX_LM):
        mask = rule.dense(new_tokens, all_tokens)
        key_indices = mask.flatten().nonzero()[:, 0]
        if 0 < len(key_indices) <= MAX_GATHERED_FRACTION * mask.numel():
            mask, keys, gathered = None, keys[:, key_indices], key_indices
    bias = position.bias(new_tokens.positions, keys, *position.bias_parameters)
    return AttentionContext(mask=mask, bias=bias, rotary=rotary, key_indices=gathered)


def select_pairs(tokens: TokenPositions, part: Part) -> tuple[TokenPositions, TokenPositions]:
    """Return the queries and keys of a part of the pairs of self-attention."""
    return (tokens, tokens) if part is ALL_PAIRS else (tokens.select(part.queries), tokens.select(part.keys))


def context_of(contexts: Sequence[AttentionContext], attention: str) -> AttentionContext:
    """Return the context of the attention layer with address ``attention``, such as ``decoder.blocks.3.attn``."""
    return contexts[int(attention.split(".blocks.")[1].split(".")[0]) % len(contexts)]
