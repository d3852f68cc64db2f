"""What the forward pass does not store, derived again from recorded tensors by the layers' own functions."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from transom.data.batch import Batch
from transom.layers.attention import Attends
from transom.layers.depth import DepthRouter
from transom.models.network import Network


def attention_pattern(
    model: Network, attention: str, recorded: Mapping[str, Tensor], batch: Batch
) -> Float[Tensor, "batch n_heads query key"]:
    """Derive attention weights from recorded queries and keys, by the attention's own equation.

    Args:
        model: what was run; its own rules of attention hold (position biases, bounded scores, sinks).
        attention: address of the attention, as ``encoder.blocks.3.attn``.
        recorded: activations by address, among them those at its sites ``q`` and ``k``, and the ``depth.score`` of its block, if any.
        batch: what the model read.
    """
    module = model.get_submodule(attention)
    assert isinstance(module, Attends)
    block, ctx = attention.rpartition(".")[0], model.attention_context(attention, batch)
    if isinstance(router := getattr(model.get_submodule(block), "depth", None), DepthRouter):
        token_mask = model.tokens(f"{block}.attn", batch)[0]  # of pairs of texts the left sides, which alone are observed
        ctx = router.attention_context(recorded[f"{block}.depth.score"], token_mask, ctx, cross=attention.endswith(".cross"))
    return module.weights(recorded[f"{attention}.q"], recorded[f"{attention}.k"], ctx)
