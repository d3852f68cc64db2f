"""What the forward pass does not store, derived again from tapped tensors by the layers' own functions."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from transom.inputs.batch import Batch
from transom.layers.attention import Attends
from transom.models.network import Network


def attention_pattern(model: Network, attention: str, kept: Mapping[str, Tensor], batch: Batch) -> Float[Tensor, "batch n_heads query key"]:
    """Derive attention weights from the tapped queries and keys, by the attention's own equation.

    Args:
        model: what was run; its own rules of attention hold (position biases, bounded scores, sinks).
        attention: address of the attention, as ``encoder.blocks.3.attn``.
        kept: tapped tensors, those at its sites ``q`` and ``k`` among them.
        batch: what the model read.
    """
    module = model.get_submodule(attention)
    assert isinstance(module, Attends)
    return module.weights(kept[f"{attention}.q"], kept[f"{attention}.k"], model.sight(attention, batch))
