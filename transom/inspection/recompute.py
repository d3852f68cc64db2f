"""What the forward pass does not store, derived again from tapped tensors by the layers' own functions."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from transom.inputs.batch import TextBatch, TranslationBatch
from transom.layers.attention import Attention, pattern, scores
from transom.layers.sight import Sight
from transom.models.decoder import DecoderTransformer
from transom.models.seq2seq import Seq2SeqTransformer
from transom.models.text import TextModel


def sight_of(model: TextModel, attention: str, batch: TextBatch) -> Sight:
    """Return what an attention's queries may see of a batch.

    Args:
        model: of any family.
        attention: its address in the model, as ``decoder.blocks.0.cross``.
        batch: what the model reads.
    """
    if isinstance(model, DecoderTransformer):
        return model.target_sight(batch.target)
    assert isinstance(model, Seq2SeqTransformer) and isinstance(batch, TranslationBatch)
    if attention.endswith(".cross"):
        return model.memory_sight(batch.target, batch.source.segments)
    return model.source_sight(batch.source) if attention.startswith("encoder.") else model.target_sight(batch.target)


def attention_pattern(
    model: TextModel, attention: str, kept: Mapping[str, Tensor], batch: TextBatch
) -> Float[Tensor, "batch n_heads query key"]:
    """Derive attention weights from the tapped queries and keys: softmax(Q K^T / sqrt(d_k)) under the mask (Vaswani et al. 2017, eq. 1).

    Args:
        model: what was run; its own rules of attention hold (position biases, bounded scores, sinks).
        attention: address of the attention, as ``encoder.blocks.3.attn``.
        kept: tapped tensors, those at its sites ``q`` and ``k`` among them.
        batch: what the model read.
    """
    module = model.get_submodule(attention)
    assert isinstance(module, Attention)
    terms = module.terms(sight_of(model, attention, batch))
    return pattern(scores(kept[f"{attention}.q"], kept[f"{attention}.k"], terms), terms)
