"""Recomputation of attention weights, which the forward pass does not store, from recorded activations."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from transom.inspection.activations import Activations
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
    return Activations(model, model.as_batch(batch), recorded)[f"{attention}.weights"]
