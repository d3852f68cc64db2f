"""What the forward pass does not store, derived again from tapped tensors by the layers' own functions."""

from collections.abc import Mapping

from jaxtyping import Bool, Float
from torch import Tensor

from transom.inputs.batch import TranslationBatch
from transom.layers import mask as masks
from transom.layers.attention import pattern, scores


def mask_of(attention: str, batch: TranslationBatch) -> Bool[Tensor, "batch 1 query key"]:
    """Return the mask that an attention of the encoder-decoder works under.

    Args:
        attention: its address, as ``decoder.blocks.0.cross``.
        batch: what the model reads.
    """
    source, target = batch.source.segments, batch.target.segments
    if attention.endswith(".cross"):
        return masks.same_segment(target, source)
    if attention.startswith("encoder."):
        return masks.same_segment(source, source)
    length = target.shape[1]
    return masks.same_segment(target, target) & masks.causal(length, length, target.device)


def attention_pattern(attention: str, kept: Mapping[str, Tensor], batch: TranslationBatch) -> Float[Tensor, "batch n_heads query key"]:
    """Derive attention weights from the tapped queries and keys: softmax(Q K^T / sqrt(d_k)) under the mask (Vaswani et al. 2017, eq. 1).

    Args:
        attention: address of the attention, as ``encoder.blocks.3.attn``.
        kept: tapped tensors, those at its sites ``q`` and ``k`` among them.
        batch: what the model read.
    """
    return pattern(scores(kept[f"{attention}.q"], kept[f"{attention}.k"]), mask_of(attention, batch))
