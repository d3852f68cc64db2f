"""Certify recomputed attention weights against the head outputs that the kernel computed.

Kernels store no weights, so a map that is shown was recomputed from queries and keys. It is the map that the model used if A V equals the
kernel's head output Z, element by element, within the rounding errors of both computations: |A V - Z| <= rtol |Z| + floor + c(n) eps
(|A| |V|). The last term grows with the weights of the map itself, so that neither a zero map nor one with a wrong sign passes.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transom.errors import TransomError
from transom.inspection.activations import Activations
from transom.inspection.derive_attention import AttentionInputs
from transom.layers.attention import Attention, repeat_kv

MAX_RATIO = 1.0
"""A map is certified if no element of its error exceeds this multiple of the bound."""


class CertificationError(TransomError):
    """Attention weights do not give the head output that the model computed."""


class Certificate(NamedTuple):
    """Result of comparing the weights of one attention layer with its head outputs.

    Attributes:
        address: address of the layer.
        ratio: largest error of an element of A V, as a multiple of its bound; at most 1 for certified weights.
        row_error: largest distance of a row's sum from 1, or from 0 for a query that sees no key; NaN with a sink, whose share is not in A.
        n_maps: number of maps: texts times heads.
        worst: (text, head, query) of the largest ratio.
        cause: likely cause of a ratio above 1; empty if the weights are certified.
    """

    address: str
    ratio: float
    row_error: float
    n_maps: int
    worst: tuple[int, int, int]
    cause: str = ""

    @property
    def ok(self) -> bool:
        """Whether the weights are certified."""
        return self.ratio <= MAX_RATIO

    def check(self) -> None:
        """Raise if the weights are not certified.

        Raises:
            CertificationError: an element of A V is further from the head output than rounding explains.
        """
        if not self.ok:
            text, head, query = self.worst
            raise CertificationError(
                f"{self.address}: expected weights that give the head output, found an error of {self.ratio:.3g} times the bound of"
                f" rounding (text {text}, head {head}, query {query}); {self.cause or 'no usual fault explains it'}"
            )


def error_bound(weights: Tensor, v: Tensor, z: Tensor, scores: Tensor | None, eps: float) -> Tensor:
    """Return the largest error of each element of A V that rounding explains, in float64.

    The constant c grows with the root of the number of keys, for rounding in the sums, and with the size of the scores, whose rounding
    error becomes a relative error of the weights.

    Args:
        weights: attention weights A, (batch, heads, query, key).
        v: values of each head, (batch, heads, key, d_value).
        z: head outputs of the kernel.
        scores: scores S of visible keys, 0 elsewhere; None if the layer has no scores.
        eps: relative rounding error of the dtype in which the kernel computed.
    """
    c = 8.0 + math.sqrt(weights.shape[-1])
    magnitude = 0.0 if scores is None else 4.0 * scores.abs().amax(-1, keepdim=True)
    return 2 * eps * z.abs() + (c + magnitude) * eps * (weights.abs() @ v.abs()) + torch.finfo(torch.float32).tiny


@torch.no_grad()
def certify(a: Activations, attention: str, heads: Sequence[int] | None = None, rows: Sequence[int] | None = None) -> Certificate:
    """Compare the attention weights of a layer with the head outputs of the same pass.

    Args:
        a: activations with ``q``, ``k``, ``v`` and ``z`` of the layer.
        attention: address of the layer.
        heads: heads to certify; None for all.
        rows: query positions to certify; None for all.
    """
    module, z = a.module(attention), a[f"{attention}.z"]
    v, eps = repeat_kv(a[f"{attention}.v"], z.shape[1]).double(), torch.finfo(z.dtype).eps
    z = _select(z.double(), heads, rows)
    v = v if heads is None else v[:, heads]
    scores = None
    if type(module) is Attention and module.score is None:
        inputs = AttentionInputs.of(a, attention, heads, rows)
        weights, masked = inputs.weights().double(), inputs.masked_scores().double()
        scores = masked.masked_fill(masked.isinf(), 0.0)
    else:
        weights = _select(a[f"{attention}.weights"].double(), heads, rows)
    ratios = ((weights @ v - z).abs() / error_bound(weights, v, z, scores, eps)).amax(-1).nan_to_num(nan=math.inf)
    ratio, flat = ratios.flatten().max(0)
    text, head, query = (int(index) for index in torch.unravel_index(flat, ratios.shape))
    worst = text, head if heads is None else heads[head], query if rows is None else rows[query]
    row_error = math.nan if getattr(module, "sinks", None) is not None else _row_error(weights)
    cause = "" if float(ratio) <= MAX_RATIO or scores is None else likely_cause(inputs, v, z, eps)
    return Certificate(attention, float(ratio), row_error, z.shape[0] * z.shape[1], worst, cause)


def _select(x: Tensor, heads: Sequence[int] | None, rows: Sequence[int] | None) -> Tensor:
    """Keep the given heads (axis 1) and query positions (axis 2)."""
    x = x if heads is None else x[:, heads]
    return x if rows is None else x[:, :, rows]


def _row_error(weights: Tensor) -> float:
    """Return the largest distance of a row's sum from 1; rows of a query that sees no key are 0."""
    sums = weights.sum(-1)
    return float(torch.where(sums == 0, 0.0, (sums - 1).abs()).max())


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
"""Usual faults, by the weights that a kernel with this fault would use."""


def likely_cause(inputs: AttentionInputs, v: Tensor, z: Tensor, eps: float) -> str:
    """Return the fault whose weights give the head outputs; the empty string if none does."""
    if not bool(z.any()):
        return "the head outputs are 0"
    for cause, change in FAULTS.items():
        changed = change(inputs)
        weights, masked = changed.weights().double(), changed.masked_scores().double()
        scores = masked.masked_fill(masked.isinf(), 0.0)
        if bool(((weights @ v - z).abs() <= 4 * error_bound(weights, v, z, scores, eps)).all()):
            return cause
    return ""


def _shift(mask: Tensor | None, by: int) -> Tensor | None:
    """Shift a mask by one key; the key that enters is hidden."""
    if mask is None or mask.shape[-1] == 1:
        return mask
    shifted = mask.roll(by, -1)
    shifted[..., 0 if by > 0 else -1] = False
    return shifted
