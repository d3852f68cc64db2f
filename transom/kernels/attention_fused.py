"""Attention by PyTorch's fused kernel."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.layers.attention import PLAIN, Terms, per_query_head


def attend_fused(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    terms: Terms = PLAIN,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend by PyTorch's fused kernel; the same function as ``attend_explicit`` where scores are neither bounded nor sunk."""
    assert terms.softcap is None and terms.sinks is None, "the fused kernel knows no softcap and no sinks"
    mask = terms.mask
    if terms.bias is not None:
        bias = terms.bias.to(q.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    if k.shape[1] < q.shape[1] and q.shape[2] == 1 and (mask is None or mask.shape[-3] == 1):  # a step: no copy of the cache
        grouped = q.view(len(q), k.shape[1], -1, q.shape[3])  # the heads of a group are queries of one key head
        z = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, dropout_p=terms.dropout)
        return z.reshape(len(q), q.shape[1], 1, -1)
    k, v = per_query_head(k, q.shape[1]), per_query_head(v, q.shape[1])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=terms.dropout)
