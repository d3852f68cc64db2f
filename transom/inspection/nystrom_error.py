"""Rounding errors of Nystrom attention, whose pseudo-inverse enlarges those of the landmarks."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from transom.inspection.activations import Activations, attention_context
from transom.layers.approximations.approximate_attention import ApproximateAttention
from transom.layers.approximations.approximation import sequences_of
from transom.layers.approximations.nystrom import Nystrom, segment_means
from transom.layers.attention import attention_scores, attention_weights


def nystrom_errors(a: Activations, attention: str, heads: Sequence[int] | None) -> Float[Tensor, "batch n_heads query d_value"] | None:
    """Return ``nystrom_error`` of each sequence of a pass, 0 at padding; None if the layer is no Nystrom attention.

    Args:
        a: activations with ``q``, ``k`` and ``v`` of the layer.
        attention: address of the layer.
        heads: heads of the result; None for all.
    """
    module = a.module(attention)
    if not isinstance(module, ApproximateAttention) or not isinstance(module.approximation, Nystrom):
        return None
    q, k, v = (a.of_heads(f"{attention}.{name}", module.n_heads, heads) for name in "qkv")
    errors = v.new_zeros(len(q), q.shape[1], q.shape[2], v.shape[3], dtype=torch.float64)
    for row, queries, keys in sequences_of(q, k, attention_context(a, attention)):
        one = slice(row, row + 1)
        errors[row, :, queries] = nystrom_error(module.approximation, q[one, :, queries], k[one, :, keys], v[one, :, keys])[0]
    return errors


def nystrom_error(
    layer: Nystrom,
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch n_heads key d_head"],
    v: Float[Tensor, "batch n_heads key d_value"],
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Return the largest error of each element of Z = F P B V that rounding explains, in multiples of eps, for whole sequences.

    F, A and B are softmax(Q K'^T), softmax(Q' K'^T) and softmax(Q' K^T), and P = phi(A) the iterated pseudo-inverse. Their weights have
    relative errors of at most c eps, as in ``certify``. Those of F and B give c eps F |P| B |V|: P has negative elements, so that the sum
    of absolute values is larger than |F P B| |V|.

    The errors of A, and of the products of the iteration, give an error dP. With the singular value decomposition A = U S W^T, P is
    W phi(S) U^T. To first order dP has the Frobenius norm L |dA|_F or less, where L is the largest divided difference of phi (Noferini
    2017, theorem 3.6). So |F dP B V| <= |F_i| L |dA|_F |(B V)_d| with Euclidean norms. Where the iteration has converged, L is the square
    of the norm of P. Elsewhere it is at most (13/4)^n / (|A|_1 |A|_inf).

    Args:
        layer: the approximation.
        q: queries of sequences without padding.
        k: keys of each head.
        v: values of each head.
    """
    q, k, v = q.double(), k.double(), v.double()
    means = segment_means(torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device), layer.n_landmarks, k.dtype)[:, None]
    q_, k_ = means @ q, means @ k
    f, a, b = (attention_weights(attention_scores(*pair)) for pair in ((q, k_), (q_, k_), (q_, k)))
    u, s, wt = torch.linalg.svd(a)
    phi, largest = iterated_inverse(s, a.sum(-1).amax(-1) * a.sum(-2).amax(-1), layer.n_iterations)
    p = (wt.transpose(-2, -1) * phi[..., None, :]) @ u.transpose(-2, -1)
    n_landmarks = a.shape[-1]
    terms = (q.abs() * q.shape[-1] ** -0.5) @ k.abs().transpose(-2, -1)
    c = 8.0 + math.sqrt(k.shape[2]) + 4.0 * terms.amax((-2, -1), keepdim=True)
    of_inverse = (c + 8.0 * math.sqrt(n_landmarks)) * (largest * a.norm(dim=(-2, -1)))[..., None, None]
    landmark_values = (b @ v).norm(dim=-2, keepdim=True)
    return c * (f @ p.abs() @ b @ v.abs()) + of_inverse * f.norm(dim=-1, keepdim=True) * landmark_values


def iterated_inverse(s: Tensor, scale: Tensor, n_iterations: int) -> tuple[Tensor, Tensor]:
    """Return phi of each singular value, which ``pseudo_inverse`` computes, and the largest divided difference of phi.

    Args:
        s: singular values, (batch, heads, landmarks).
        scale: |A|_1 |A|_inf, (batch, heads).
        n_iterations: iterations of z' = z (13 - s z (15 - s z (7 - s z))) / 4, from z = s / scale.
    """
    scale = scale[..., None]
    z, slope = s / scale, torch.ones_like(s) / scale
    for _ in range(n_iterations):
        x, dx = s * z, z + s * slope
        outer = 13 - x * (15 - x * (7 - x))
        z, slope = z * outer / 4, (slope * outer - z * dx * (15 - x * (14 - 3 * x))) / 4
    across, down = s[..., :, None], s[..., None, :]
    near, tiny = (across - down).abs() <= 1e-6 * (across + down), across + down <= 1e-150  # the limits there are slopes
    of_differences = (z[..., :, None] - z[..., None, :]) / (across - down).where(~near, 1.0)
    of_sums = (z[..., :, None] + z[..., None, :]) / (across + down).where(~tiny, 1.0)  # phi is odd
    steps = of_differences.where(~near, slope[..., :, None]).abs().maximum(of_sums.where(~tiny, slope[..., :, None]).abs())
    return z, steps.amax((-2, -1))
