"""Attention masks: boolean, True where a query may attend to a key, broadcastable to (batch, n_heads, query, key)."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def same_segment(queries: Int[Tensor, "batch query"], keys: Int[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 query key"]:
    """Let tokens attend within their own segment. Padding, segment 0, sees only padding, so that no row is empty."""
    return (queries[:, :, None] == keys[:, None, :])[:, None]


def not_padding(keys: Int[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 1 key"]:
    """Let every query attend to every key that is not padding."""
    return (keys > 0)[:, None, None]


def causal(n_queries: int, n_keys: int, device: torch.device | None = None) -> Bool[Tensor, "1 1 query key"]:
    """Let each query attend to itself and to what came before; the last query sits at the last key."""
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)[None, None]
