"""The training loss: cross-entropy with label smoothing, over true target tokens, without ever holding all logits."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

CHUNK_ELEMENTS = 1 << 21
"""Logits held at a time: enough for the matrix units, few enough for the cache."""


def cross_entropy(
    logits: Float[Tensor, "tokens vocab"], labels: Int[Tensor, "tokens"], smoothing: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute the loss from whole logits; the readable reference of ``linear_cross_entropy``.

    Loss = sum_i [-(1 - e) log f_i,y_i - e / |V| sum_j log f_ij], f_i = softmax(z_i), with e the smoothing (Szegedy et al. 2016, section 7).

    Returns:
        The smoothed loss and the plain negative log-likelihood, each in nats, summed over tokens.
    """
    log_f = F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    nll = -log_f.gather(-1, labels[:, None]).sum()
    return (1 - smoothing) * nll - smoothing * log_f.mean(-1).sum(), nll


def linear_cross_entropy(
    hidden: Float[Tensor, "tokens d_model"], weight: Float[Tensor, "vocab d_model"], labels: Int[Tensor, "tokens"], smoothing: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute ``cross_entropy(hidden @ weight.T, labels, smoothing)`` a few rows at a time, gradients included.

    The logits of a chunk live only while their loss and their gradient, softmax minus target, are computed. Products are taken
    in autocast's type where it is on, the softmax and its sums in float32 at least.

    Args:
        hidden: the model's last vectors, one a true target token (no padding).
        weight: the output map.
        labels: the tokens to predict.
        smoothing: probability spread evenly over the vocabulary.

    Returns:
        The smoothed loss, which carries the gradient, and the plain negative log-likelihood, in nats, summed over tokens.
    """
    loss: Tensor
    nll: Tensor
    loss, nll = _LinearCrossEntropy.apply(hidden, weight, labels, smoothing)  # type: ignore[no-untyped-call]
    return loss, nll


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        wanted = any(ctx.needs_input_grad[:2])
        with torch.autocast(device, enabled=False):
            loss, nll, *gradients = _chunked(hidden, weight, labels, smoothing, dtype, wanted)
        if wanted:
            ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss.to(grad_hidden.dtype), grad_weight * grad_loss.to(grad_weight.dtype), None, None


def _chunked(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, dtype: torch.dtype, wanted: bool) -> tuple[Tensor, ...]:
    exact = torch.promote_types(dtype, torch.float32)
    n_tokens, vocab = hidden.shape[0], weight.shape[0]
    loss, nll = hidden.new_zeros((), dtype=exact), hidden.new_zeros((), dtype=exact)
    w = weight.to(dtype)
    grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=exact)
    rows = max(1, CHUNK_ELEMENTS // vocab)
    for start in range(0, n_tokens, rows):
        h, y = hidden[start : start + rows].to(dtype), labels[start : start + rows]
        z = (h @ w.T).to(exact)
        log_sum = z.logsumexp(-1)
        chunk_nll = (log_sum - z.gather(-1, y[:, None])[:, 0]).sum()
        nll += chunk_nll
        loss += (1 - smoothing) * chunk_nll
        if smoothing:
            loss += smoothing * (log_sum.sum() - z.sum() / vocab)
        if wanted:
            g = z.sub_(log_sum[:, None]).exp_()  # softmax
            if smoothing:
                g -= smoothing / vocab
            g[torch.arange(len(y), device=y.device), y] -= 1 - smoothing
            g = g.to(dtype)
            grad_hidden[start : start + rows] = g @ w
            grad_weight += g.T @ h
    return loss, nll, grad_hidden, grad_weight.to(weight.dtype)
