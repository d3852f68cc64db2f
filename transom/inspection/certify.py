"""Certify recomputed attention weights against the head outputs that the kernel computed.

Kernels store no weights, so a map that is shown was recomputed from queries and keys. It is certified, that is, shown to be the map that
the model used, if A V equals the kernel's head output Z, element by element, within the rounding errors of both computations:
|A V - Z| <= rtol |Z| + floor + c eps (|A| |V|). The last term contains the weights of the map itself, so that neither a zero map nor one
with a wrong sign passes. Nystrom attention has a further term (``nystrom_error``). Where PyTorch's kernel gives the logarithm of its row
sums, ln sum_j exp(S_ij), it is compared too: values that are equal hide a wrong map from A V.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from transom.errors import TransomError
from transom.files.message import phrase
from transom.inspection.activations import Activations
from transom.inspection.derive_attention import AttentionInputs, is_exact
from transom.inspection.nystrom_error import nystrom_errors
from transom.layers.attention import Attention
from transom.layers.context import Part


class CertificationError(TransomError):
    """Attention weights do not give the head output that the model computed."""


class Certificate(NamedTuple):
    """Result of comparing the weights of one attention layer with its head outputs.

    Attributes:
        address: address of the layer.
        ratio: largest error of an element of A V or of a row's logsumexp, as a multiple of its bound; at most 1 for certified weights.
        n_maps: number of maps: texts times heads.
        worst: (text, head, query) of the largest ratio.
        cause: likely cause of a ratio above 1; empty if the weights are certified, or if no usual fault explains the ratio.
        with_logsumexp: whether row sums were compared with the kernel's.
    """

    address: str
    ratio: float
    n_maps: int
    worst: tuple[int, int, int]
    cause: str = ""
    with_logsumexp: bool = False

    @property
    def ok(self) -> bool:
        """Whether the weights are certified."""
        return self.ratio <= 1.0

    def check(self) -> None:
        """Raise if the weights are not certified.

        Raises:
            CertificationError: an element of A V is further from the head output than rounding explains.
        """
        if not self.ok:
            text, head, query = self.worst
            english = (
                "{address}: expected weights that give the head output, found an error of {ratio} times the bound of"
                " rounding (text {text}, head {head}, query {query}); {cause}"
            )
            place = {"address": self.address, "text": str(text), "head": str(head), "query": str(query)}
            cause = self.cause or phrase("errors.no_cause", "no usual fault explains it")
            raise CertificationError(phrase("errors.certification", english, ratio=f"{self.ratio:.3g}", cause=cause, **place))


def error_bound(weights: Tensor, v: Tensor, z: Tensor, magnitude: Tensor | None, eps: float) -> Tensor:
    """Return the largest error of each element of A V that rounding explains.

    c grows with the root of the number of keys, for rounding in the sums, and with the size of the terms of the scores, whose rounding
    errors become relative errors of the weights.

    Args:
        weights: attention weights A, (batch, heads, query, key).
        v: values of each head, (batch, heads, key, d_value).
        z: head outputs of the kernel.
        magnitude: sum of the absolute values of the terms of the largest score of each query, (batch, heads, query, 1); None if the layer
            has no scores.
        eps: relative rounding error of the dtype in which the kernel computed.
    """
    c = _roundings(weights.shape[-1], magnitude)
    return 2 * eps * z.abs() + c * eps * (weights.abs() @ v.abs()) + torch.finfo(torch.float32).tiny


def _roundings(n_keys: int, magnitude: Tensor | None) -> Tensor | float:
    """Return c, the number of roundings that the weights of a row contain."""
    return 8.0 + math.sqrt(n_keys) + (0.0 if magnitude is None else 4.0 * magnitude)


def kernel_logsumexp(inputs: AttentionInputs, v: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return head outputs and ln sum_j exp(S_ij) from the kernel of ``F.scaled_dot_product_attention``; None where it gives no logsumexp.

    The function runs this kernel on a CPU, but does not return its second result, which is 0 for a query that attends to nothing.
    """
    q, k, args = inputs
    kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)  # private
    special = args.softcap is not None or args.sinks is not None or args.score is not None
    if kernel is None or special or q.device.type != "cpu" or q.shape[3] != v.shape[3]:
        return None
    mask = None
    if args.mask is not None or args.bias is not None:
        mask = q.new_zeros(len(q), q.shape[1], q.shape[2], k.shape[2]) + (0 if args.bias is None else args.bias.to(q.dtype))
        mask = mask if args.mask is None else mask.masked_fill_(~args.mask, -torch.inf)
    z, logsumexp = kernel(q, k, v.to(q.dtype), 0.0, False, attn_mask=mask)
    return z, logsumexp


def logsumexp_ratios(inputs: AttentionInputs, v: Tensor, z: Tensor, bound: Tensor, magnitude: Tensor, eps: float) -> Tensor | None:
    """Return the difference from the kernel's logsumexp as multiples of c eps (1 + |logsumexp|), (batch, heads, query).

    The kernel runs once more. Its logsumexp counts if it also gives the head outputs ``z``, within ``bound``; None otherwise, or if the
    kernel gives none.
    """
    found = kernel_logsumexp(inputs, v)
    if found is None or not bool(((found[0].double() - z).abs() <= bound).all()):
        return None
    lse = found[1].double()
    ours = inputs.logsumexp().double().masked_fill(~inputs.visible_rows(), 0.0)
    c = _roundings(inputs.k.shape[2], magnitude[..., 0])
    return (ours - lse.masked_fill(~inputs.visible_rows(), 0.0)).abs() / (c * eps * (1 + lse.abs()))


@torch.no_grad()
def certify(a: Activations, attention: str, heads: Sequence[int] | None = None, rows: Sequence[int] | None = None) -> Certificate:
    """Compare the attention weights of a layer with the head outputs of the same pass.

    The comparison runs in float64, over some query rows at a time, so that it needs little memory beside the maps themselves.

    Args:
        a: activations with ``q``, ``k``, ``v`` and ``z`` of the layer.
        attention: address of the layer.
        heads: heads to certify; None for all.
        rows: query positions to certify; None for all.
    """
    a.require_unchanged_weights()
    module, n_all = a.module(attention), _n_heads(a, attention)
    z, v = (a.of_heads(f"{attention}.{name}", n_all, heads) for name in "zv")
    places = list(range(z.shape[2])) if rows is None else list(rows)
    n_heads, eps = z.shape[1], rounding_error(z.dtype)
    v, of_landmarks = v.double(), nystrom_errors(a, attention, heads)
    step = max(MAX_ELEMENTS // max(len(z) * n_heads * v.shape[2], 1), 1)
    ratio, worst, cause, with_logsumexp = 0.0, (0, 0, 0), "", False
    for start in range(0, len(places), step):
        chunk = places[start : start + step]
        expected = z[:, :, chunk].double()
        inputs = AttentionInputs.of(a, attention, heads, Part(queries=chunk)) if is_exact(module) else None
        weights = _select(a[f"{attention}.weights"], heads, chunk).double() if inputs is None else inputs.weights().double()
        magnitude = None if inputs is None else inputs.score_magnitude()
        bound = error_bound(weights, v, expected, magnitude, eps)
        if of_landmarks is not None:
            bound = bound + eps * of_landmarks[:, :, chunk]
        ratios = ((weights @ v - expected).abs() / bound).amax(-1)
        of_sums = None if inputs is None or magnitude is None else logsumexp_ratios(inputs, v, expected, bound, magnitude, eps)
        if of_sums is not None:
            ratios, with_logsumexp = ratios.maximum(of_sums), True
        ratios = ratios.nan_to_num(nan=math.inf)
        largest, flat = ratios.flatten().max(0)
        if float(largest) > ratio:
            ratio = float(largest)
            text, head, query = (int(index) for index in np.unravel_index(int(flat), ratios.shape))  # PyTorch's imports sympy: 1 s
            worst = text, head if heads is None else heads[head], chunk[query]
            cause = "" if ratio <= 1.0 or inputs is None else likely_cause(inputs, v, expected, eps)
    return Certificate(attention, ratio, len(z) * n_heads, worst, cause, with_logsumexp)


MAX_ELEMENTS = 2**20
"""Elements of a map that are certified at a time: in float64 some ten matrices of this size are in memory."""


def _n_heads(a: Activations, attention: str) -> int:
    """Return the number of query heads of a layer; the attention of a recurrent decoder has one."""
    module = a.module(attention)
    return module.n_heads if isinstance(module, Attention) else 1


def rounding_error(dtype: torch.dtype) -> float:
    """Return the relative rounding error of kernels in a dtype; in float32 they may use TF32, if PyTorch is set to it."""
    tf32 = dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return 2.0**-10 if tf32 else torch.finfo(dtype).eps


def _select(x: Tensor, heads: Sequence[int] | None, rows: Sequence[int]) -> Tensor:
    """Keep the given heads (axis 1) and query positions (axis 2)."""
    return (x if heads is None else x[:, heads])[:, :, rows]


FAULTS: dict[str, Callable[[AttentionInputs], AttentionInputs]] = {
    "the kernel did not divide the scores by sqrt(d_head)": lambda i: i._replace(q=i.q * i.q.shape[-1] ** 0.5),
    "the kernel divided the scores by sqrt(d_head) twice": lambda i: i._replace(q=i.q * i.q.shape[-1] ** -0.5),
    "the kernel applied no mask": lambda i: i._replace(args=i.args._replace(mask=None)),
    "the kernel's mask is off by one key": lambda i: i._replace(args=i.args._replace(mask=_shift(i.args.mask, 1))),
    "the kernel's mask is off by one key to the other side": lambda i: i._replace(args=i.args._replace(mask=_shift(i.args.mask, -1))),
    "the kernel left out the softcap": lambda i: i._replace(args=i.args._replace(softcap=None)),
    "the kernel left out the position bias": lambda i: i._replace(args=i.args._replace(bias=None)),
    "the kernel left out the sink": lambda i: i._replace(args=i.args._replace(sinks=None)),
    "the kernel read the heads in another order": lambda i: i._replace(k=i.k.roll(1, 1)),
    "the queries have another sign": lambda i: i._replace(q=-i.q),
}
"""Usual faults, by the inputs that a kernel with this fault would use."""


def likely_cause(inputs: AttentionInputs, v: Tensor, z: Tensor, eps: float) -> str:
    """Return the fault whose weights give the head outputs; the empty string if none does."""
    if not bool(z.any()):
        return "the head outputs are 0"
    original = inputs.weights()
    for cause, change in FAULTS.items():
        changed = change(inputs)
        weights = changed.weights()
        if torch.equal(weights, original):  # this layer has no such feature
            continue
        wide = weights.double()
        if bool(((wide @ v - z).abs() <= error_bound(wide, v, z, changed.score_magnitude(), eps)).all()):
            return cause
    return ""


def _shift(mask: Tensor | None, by: int) -> Tensor | None:
    """Shift a mask by one key; the key that enters is hidden."""
    if mask is None or mask.shape[-1] == 1:
        return mask
    shifted = mask.roll(by, -1)
    shifted[..., 0 if by > 0 else -1] = False
    return shifted
