"""Recomputation of attention weights, which the forward pass does not store, from recorded activations."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from transom.layers.attention import SupportsAttentionWeights
from transom.layers.mixture_of_depths import DepthRouter
from transom.models.base import Network


def recompute_attention_weights(
    model: Network, attention: str, recorded: Mapping[str, Tensor], batch: Any
) -> Float[Tensor, "batch n_heads query key"]:
    """Recompute attention weights from recorded queries and keys, with the attention layer's own function.

    Args:
        model: the model that ran; its position biases, softcap and sinks apply.
        attention: address of the attention layer, such as ``encoder.blocks.3.attn``.
        recorded: activations by address: ``q`` and ``k`` of the layer and, if its block has a depth router, ``depth.score`` of the block.
        batch: the input of the recorded forward pass: a batch, or token ids without padding.
    """
    batch = model.as_batch(batch)
    module = model.get_submodule(attention)
    assert isinstance(module, SupportsAttentionWeights)
    block, ctx = attention.rpartition(".")[0], model.attention_context(attention, batch)
    if isinstance(router := getattr(model.get_submodule(block), "depth", None), DepthRouter):
        token_mask = model.token_masks(f"{block}.attn", batch)[0]  # of a contrastive batch only the left side is observed
        ctx = router.attention_context(recorded[f"{block}.depth.score"], token_mask, ctx, cross=attention.endswith(".cross"))
    return module.attention_weights(recorded[f"{attention}.q"], recorded[f"{attention}.k"], ctx)
