"""What the forward pass does not store, derived again from tapped tensors by the layers' own functions."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from transom.data.batch import Batch
from transom.layers.attention import Attends
from transom.layers.depth import DepthRouter
from transom.models.network import Network


def attention_pattern(model: Network, attention: str, kept: Mapping[str, Tensor], batch: Batch) -> Float[Tensor, "batch n_heads query key"]:
    """Derive attention weights from the tapped queries and keys, by the attention's own equation.

    Args:
        model: what was run; its own rules of attention hold (position biases, bounded scores, sinks).
        attention: address of the attention, as ``encoder.blocks.3.attn``.
        kept: tapped tensors, those at its sites ``q`` and ``k`` among them, and the ``depth.score`` of its block, where it has one.
        batch: what the model read.
    """
    module = model.get_submodule(attention)
    assert isinstance(module, Attends)
    block, sight = attention.rpartition(".")[0], model.sight(attention, batch)
    if isinstance(router := getattr(model.get_submodule(block), "depth", None), DepthRouter):
        real = model.tokens(f"{block}.attn", batch)[0]  # of pairs of texts the left sides, which alone are tapped
        sight = router.sight(kept[f"{block}.depth.score"], real, sight, cross=attention.endswith(".cross"))
    return module.weights(kept[f"{attention}.q"], kept[f"{attention}.k"], sight)
