"""Attention maps between all tokens of a text, also of layers that some tokens skip, of approximations and of recurrent decoders."""

from jaxtyping import Bool, Float
from torch import Tensor

from transom.config.vision import VisionTransformerConfig
from transom.errors import ConfigError
from transom.inspection.activations import Activations, parent, sequences_of
from transom.layers.attention import Attention, SupportsAttentionWeights
from transom.layers.mixture_of_depths import DepthRouter, all_tokens, gather_selected
from transom.models.base import Network


def n_heads_of(a: Activations, attention: str) -> int:
    """Return the number of query heads of an attention layer; the attention of a recurrent decoder has one."""
    module = a.module(attention)
    return module.n_heads if isinstance(module, Attention) else 1


def attention_addresses(network: Network) -> list[str]:
    """Return the addresses of the attention layers of a model whose weights can be computed, in order."""
    return [
        path
        for path, module in network.named_modules()
        if path.endswith((".attn", ".cross")) and isinstance(module, SupportsAttentionWeights)
    ]


def is_idle(a: Activations, attention: str) -> bool:
    """Return whether all tokens skip the block of a layer."""
    selected = _selected(a, attention)
    return selected is not None and not bool(selected.any())


def whole_map(a: Activations, attention: str) -> Float[Tensor, "batch heads query key"]:
    """Return the attention weights of a layer between all tokens; 0 in the rows and columns of tokens that skip its block.

    Args:
        a: activations from which the weights of the layer follow.
        attention: address of the layer.
    """
    if (selected := _selected(a, attention)) is None:
        return a[f"{attention}.weights"]
    keys = None if attention.endswith(".cross") else selected
    if is_idle(a, attention):
        n_keys = selected.shape[1] if keys is not None else a.batch.source.tokens.shape[1]
        return a["logits"].new_zeros(len(selected), n_heads_of(a, attention), selected.shape[1], n_keys)
    return _spread(a, attention, a[f"{attention}.weights"], selected, keys)


def visible_pairs(a: Activations, attention: str) -> Bool[Tensor, "batch heads query key"]:
    """Return True where a query sees a key, with an axis of 1 for all heads; False at padding, and at tokens that skip the block."""
    queries, keys = token_masks(a, attention)
    if (selected := _selected(a, attention)) is not None:
        queries, keys = queries & selected, keys if attention.endswith(".cross") else keys & selected
    pairs = queries[:, None, :, None] & keys[:, None, None]
    mask = a.model.attention_context(attention, a.batch).mask if isinstance(a.module(attention), Attention) else None
    return pairs if mask is None else pairs & mask


def token_masks(a: Activations, attention: str) -> tuple[Bool[Tensor, "batch query"], Bool[Tensor, "batch key"]]:
    """Return True at the query tokens and key tokens of a layer, False at padding."""
    if isinstance(a.model.config, VisionTransformerConfig):
        mask = a["logits"].new_ones(len(a.batch.pixels), a.model.config.n_positions).bool()
        return mask, mask
    queries = sequences_of(a, attention).segments > 0
    return queries, a.batch.source.segments > 0 if attention.endswith(".cross") else queries


def non_negative_map(a: Activations, attention: str) -> Float[Tensor, "batch heads query key"]:
    """Return ``whole_map`` in float64 on the CPU.

    Raises:
        ConfigError: an approximation of attention implies negative weights.
    """
    weights = whole_map(a, attention).double().cpu()
    if bool((weights < 0).any()):
        raise ConfigError(
            f"{attention}: expected weights of at least 0, found negative ones, which an approximation implies; use another run"
        )
    return weights


def _selected(a: Activations, attention: str) -> Bool[Tensor, "batch length"] | None:
    """Return True at the tokens that pass the block of a layer; None without a depth router."""
    block = parent(attention)
    return a[f"{block}.depth.selected"] if isinstance(getattr(a.module(block), "depth", None), DepthRouter) else None


def _spread(a: Activations, attention: str, x: Tensor, queries: Tensor, keys: Tensor | None) -> Tensor:
    """Put a map between the selected tokens into one between all tokens, which is 0 elsewhere; without ``keys``, all keys are there."""
    if a.module(parent(attention)).depth.path is all_tokens:
        return x * queries[:, None, :, None]
    rows = gather_selected(queries)
    if keys is not None:
        x = x.new_zeros(*x.shape[:3], keys.shape[1]).scatter(3, rows.indices[:, None, None].expand(x.shape), x * rows.valid[:, None, None])
    index = rows.indices[:, None, :, None].expand(x.shape)
    return x.new_zeros(*x.shape[:2], queries.shape[1], x.shape[3]).scatter(2, index, x * rows.valid[:, None, :, None])
