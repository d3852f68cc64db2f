"""Training losses: cross-entropy with label smoothing, cross-entropy for mixup, and the divergence of R-Drop.

``kernels/loss.py`` has a faster implementation of ``linear_cross_entropy``.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from transom.layers.dispatch import operation
from transom.layers.output_projection import soft_cap


def cross_entropy(
    logits: Float[Tensor, "tokens vocab"], labels: Int[Tensor, "tokens"], label_smoothing: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute cross-entropy with label smoothing from logits.

    Loss = sum_i [-(1 - e) log f_i,y_i - e / |V| sum_j log f_ij], with f_i = softmax(z_i) of the logits z_i, labels y_i and smoothing e
    (Szegedy et al. 2016, section 7).

    Returns:
        The smoothed loss and the plain negative log-likelihood, each in nats, summed over tokens.
    """
    log_f = F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    nll = -log_f.gather(-1, labels[:, None]).sum()
    return (1 - label_smoothing) * nll - label_smoothing * log_f.mean(-1).sum(), nll


def mixup_cross_entropy(
    logits: Float[Tensor, "images classes"],
    labels: tuple[Int[Tensor, "images"], Int[Tensor, "images"]],
    lam: Float[Tensor, "images"],
    label_smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute ``cross_entropy`` of images with mixed labels (mixup, Zhang et al. 2018, section 2).

    Loss = sum_i lam_i loss(z_i, y_i) + (1 - lam_i) loss(z_i, y'_i), where ``labels`` are (y, y').

    Returns:
        The smoothed loss and the plain negative log-likelihood, each in nats, summed over images.
    """
    log_f = F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    own, other = (log_f.gather(-1, of[:, None])[:, 0] for of in labels)
    nll = -torch.lerp(other, own, lam.to(own)).sum()
    return (1 - label_smoothing) * nll - label_smoothing * log_f.mean(-1).sum(), nll


def binary_cross_entropy(
    logits: Float[Tensor, "rows classes"], labels: Float[Tensor, "rows classes"], label_smoothing: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute the binary cross-entropy of every class, for rows with any number of labels.

    Loss = -sum_ij [y_ij log p_ij + (1 - y_ij) log(1 - p_ij)], with p_ij the sigmoid of the logits and y_ij 1 if row i has label j, else 0:
    the negative log-likelihood of independent labels. With smoothing e, y is replaced by (1 - e) y + e / 2.

    Returns:
        The smoothed loss and the plain negative log-likelihood, each in nats, summed over rows and classes.
    """
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nll = F.binary_cross_entropy_with_logits(z, labels.to(z), reduction="sum")
    if not label_smoothing:
        return nll, nll
    return F.binary_cross_entropy_with_logits(z, torch.lerp(labels.to(z), torch.full_like(z, 0.5), label_smoothing), reduction="sum"), nll


def symmetric_kl(logits: Float[Tensor, "rows vocab"]) -> Float[Tensor, ""]:
    """Compute the symmetric Kullback-Leibler divergence between two predictions per token, from logits.

    Sum over pairs of rows 2i and 2i + 1 of [KL(p || q) + KL(q || p)] / 2, p and q the softmax of the two rows (Liang et al. 2021, eq. 2).
    """
    log_p, log_q = F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32)).unflatten(0, (-1, 2)).unbind(1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum() / 2


@operation("linear_cross_entropy")
def linear_cross_entropy(
    hidden: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocab d_model"],
    labels: Int[Tensor, "tokens"],
    label_smoothing: float,
    r_drop: float = 0.0,
    softcap: float | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute ``cross_entropy(soft_cap(hidden @ weight.T, softcap), labels, label_smoothing)``.

    The kernel that replaces this function without a soft-cap never materializes all logits. With ``r_drop``, rows 2i and 2i + 1 of
    ``hidden`` come from two forward passes of one token, and ``r_drop * symmetric_kl`` of the logits is added to the loss. Matrix products
    use autocast's dtype. Softmax and losses are computed in at least float32.

    Args:
        hidden: last hidden states, one per target token, without padding.
        weight: weight of the output projection.
        labels: the token to predict from each hidden state.
        label_smoothing: probability spread evenly over the vocabulary.
        r_drop: weight alpha of the R-Drop divergence; 0 computes plain cross-entropy.
        softcap: bound c of the logits c tanh(hidden @ weight.T / c); None for no cap.

    Returns:
        The smoothed loss, through which gradients flow, and the negative log-likelihood, each in nats, summed over tokens.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    with torch.autocast(device, enabled=False):
        logits = soft_cap(hidden.to(dtype) @ weight.to(dtype).T, softcap)
        loss, nll = cross_entropy(logits, labels, label_smoothing)
        return loss + r_drop * symmetric_kl(logits) if r_drop else loss, nll.detach()
