"""Fused linear cross-entropy: output projection, loss and gradients in chunks of rows, without storing all logits."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transom.kernels.elementwise import is_supported, logits_softmax_
from transom.kernels.linear import can_compute_weight_gradient, weight_gradient
from transom.kernels.second_order import differentiable_gradients
from transom.layers.dispatch import REFERENCES, needs_double_backward

CHUNK_ELEMENTS = 1 << 25
"""Logits per chunk: enough to use the matrix units fully and to accumulate the weight gradient only a few times."""

CPU_COLUMN_BYTES = 1 << 12
"""Maximum size of a column of a chunk on a CPU: 1,024 rows in float32, where more made no product faster with AVX-512, and 2,048 in
bfloat16, which on a matrix unit take 4% less time than 1,024."""

SLICE_ELEMENTS = 1 << 19
"""Logits per softmax slice in float32 on a CPU: few enough to stay in a core's cache through all passes. On a GPU, whose every slice costs
several kernel launches, a slice is a whole chunk."""

GPU_VOCAB_MULTIPLE = 64
"""The vocabulary is padded to a multiple of this number on a GPU. Rows of 50,257 16-bit logits are not aligned to 16 bytes, and their
products run in kernels without wide loads: on an H200 these took 72 of the 182 ms of a GPT-2 training step."""

PAD_MULTIPLE = 64
"""The number of rows is padded to a multiple of this number, so that batches of different sizes share a few matrix shapes. The first
product of a shape builds its kernel, which for a large vocabulary takes as long as dozens of products."""


MIN_PROBABILITY = 1e-30
"""Lower bound of probabilities whose ratio is taken, so that the ratio is finite."""


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float, r_drop: float) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        needs_gradients = any(ctx.needs_input_grad[:2])
        with torch.autocast(device, enabled=False):
            loss, nll, *gradients = _chunked_loss(
                hidden, weight, labels, label_smoothing, r_drop, dtype, needs_gradients, weight_frozen=not ctx.needs_input_grad[1]
            )
        if needs_gradients:
            ctx.save_for_backward(hidden, weight, *gradients)
            ctx.rest = labels, label_smoothing, r_drop, dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, *gradients = ctx.saved_tensors
        if needs_double_backward():
            return *differentiable_gradients(_reference_loss, (hidden, weight, *ctx.rest), grad_loss)[:2], None, None, None
        gradients = [grad * grad_loss.to(grad.dtype) for grad in gradients]
        return gradients[0], gradients[1] if len(gradients) > 1 else None, None, None, None


def _reference_loss(hidden: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float, r_drop: float, dtype: torch.dtype) -> Tensor:
    """Compute the loss with the reference implementation, in the dtype ``dtype`` of the forward pass."""
    with torch.autocast(hidden.device.type, dtype, enabled=dtype != weight.dtype):
        loss: Tensor = REFERENCES["linear_cross_entropy"](hidden, weight, labels, label_smoothing, r_drop)[0]
        return loss


def _chunked_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    label_smoothing: float,
    r_drop: float,
    dtype: torch.dtype,
    needs_gradients: bool,
    weight_frozen: bool,
) -> tuple[Tensor, ...]:
    """Return loss, negative log-likelihood and, if needed, the gradients of ``hidden`` and ``weight``, unless ``weight`` is frozen.

    All chunks share one buffer of logits. The label-smoothing term of loss and gradient is the same for every vocabulary entry, so it
    requires the sum of the weight rows, not of the logits: sum_j z_j = h . sum_j w_j. The gradient of the target term uses one weight row
    per token. Its value is the logit rounded to ``dtype``, as those of the logsumexp, so that the negative log-likelihood is never below 0.
    """
    exact = torch.promote_types(dtype, torch.float32)
    (n_tokens, d_model), vocab = hidden.shape, weight.shape[0]
    n_padding, unused = -n_tokens % PAD_MULTIPLE, -vocab % _vocab_multiple(hidden)
    w = F.pad(weight.to(dtype), (0, 0, 0, unused)) if unused else weight.to(dtype)
    h_all = F.pad(hidden.to(dtype), (0, 0, 0, n_padding))  # rows of zeros contribute nothing to z^T h
    targets = F.pad(labels, (0, n_padding))
    w_target = w[labels]
    log_sums, target_logits = hidden.new_empty(2, len(h_all), dtype=exact)
    grad_hidden = hidden.new_empty(len(h_all), d_model, dtype=dtype)
    grad_weight: Tensor | None = None
    max_rows = max_slice_rows = CHUNK_ELEMENTS // vocab
    if hidden.device.type == "cpu":
        max_rows, max_slice_rows = min(max_rows, CPU_COLUMN_BYTES // dtype.itemsize), SLICE_ELEMENTS // vocab
    rows, slice_rows = _chunk_rows(len(h_all), max_rows), _chunk_rows(len(h_all), max_slice_rows)
    divergence = hidden.new_zeros((), dtype=exact)
    product = hidden.new_empty(rows, len(w), dtype=dtype)
    buffer = None if not r_drop and is_supported(product) else hidden.new_empty(slice_rows, len(w), dtype=exact)
    for start in range(0, len(h_all), rows):
        h = h_all[start : start + rows]
        z = torch.mm(h, w.T, out=product[: len(h)])
        if unused:
            z[:, vocab:] = -torch.inf  # their probability and gradient are 0
        target_logits[start : start + rows] = z.gather(1, targets[start : start + rows, None])[:, 0]
        if buffer is None:
            logits_softmax_(z, log_sums[start : start + rows])
        else:
            divergence += _softmax_and_divergence_(z, buffer, log_sums[start : start + rows], r_drop)
        if needs_gradients:
            torch.mm(z, w, out=grad_hidden[start : start + rows])
        if needs_gradients and not weight_frozen:
            grad_weight = _add_weight_gradient(grad_weight, z, h, vocab, exact)
    h_all, log_sums, target_logits, grad_hidden = (each[:n_tokens] for each in (h_all, log_sums, target_logits, grad_hidden))
    nll = (log_sums - target_logits).sum()
    loss = (1 - label_smoothing) * nll + r_drop * divergence
    if label_smoothing:
        w_sum = w.sum(0, dtype=exact)
        loss += label_smoothing * (log_sums - h_all.to(exact) @ w_sum / vocab).sum()
    if not needs_gradients:
        return loss, nll
    grad_hidden = grad_hidden.to(exact) - (1 - label_smoothing) * w_target
    if label_smoothing:
        grad_hidden -= label_smoothing / vocab * w_sum
    if weight_frozen:
        return loss, nll, grad_hidden.to(hidden.dtype)
    if grad_weight is None:  # the batch has no tokens
        grad_weight = torch.zeros_like(weight, dtype=exact)
    grad_weight.index_add_(0, labels, h_all.to(exact), alpha=label_smoothing - 1)
    if label_smoothing:
        grad_weight -= label_smoothing / vocab * h_all.sum(0, dtype=exact)
    return loss, nll, grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype)


def _chunk_rows(n_rows: int, max_rows: int) -> int:
    """Return the rows of a chunk: a multiple of ``PAD_MULTIPLE`` if the maximum allows, else an even number, since R-Drop compares pairs.

    On a matrix unit, the logits of 666 rows took 40% more time than those of 672.
    """
    if max_rows >= PAD_MULTIPLE:
        max_rows -= max_rows % PAD_MULTIPLE
    return 2 * max(1, min(n_rows, max_rows) // 2)


def _add_weight_gradient(total: Tensor | None, z: Tensor, h: Tensor, vocab: int, exact: torch.dtype) -> Tensor:
    """Return ``total`` + Z^T H without the rows of padding, in the dtype ``exact``; None for a total of 0."""
    if can_compute_weight_gradient(z[:, :vocab], h):
        return weight_gradient(z[:, :vocab], h, add_to=total).weight
    if total is not None and z.dtype == exact and z.shape[1] == vocab:
        return total.addmm_(z.T, h)
    chunk = (z.T @ h)[:vocab].to(exact)
    return chunk if total is None else total.add_(chunk)


def _vocab_multiple(hidden: Tensor) -> int:
    """Return the number to whose multiple the vocabulary is padded on the device of ``hidden``."""
    return 1 if hidden.device.type == "cpu" else GPU_VOCAB_MULTIPLE


def _softmax_and_divergence_(z: Tensor, buffer: Tensor, log_sums: Tensor, r_drop: float) -> Tensor:
    """Replace logits by their softmax, a buffer of rows at a time; with ``r_drop`` add its gradient and return the divergence."""
    divergence = buffer.new_zeros(())
    for part, log_sum in zip(z.split(len(buffer)), log_sums.split(len(buffer)), strict=True):
        e = buffer[: len(part)]
        _softmax_(part, e, log_sum)
        if r_drop:
            divergence += _add_r_drop_gradient_(part, e, r_drop)
    return divergence


def _softmax_(z: Tensor, e: Tensor, log_sum: Tensor) -> None:
    """Replace logits ``z`` by their softmax and write their logsumexp to ``log_sum``; computed in the wider dtype of the buffer ``e``."""
    max_logit = e.copy_(z).amax(-1, keepdim=True)
    total = e.sub_(max_logit).exp_().sum(-1, keepdim=True)
    log_sum.copy_((total.log() + max_logit)[:, 0])
    z.copy_(e.mul_(total.reciprocal_()))


def _add_r_drop_gradient_(z: Tensor, e: Tensor, r_drop: float) -> Tensor:
    """Return the R-Drop divergence of the softmaxes ``e`` and add ``r_drop`` times its gradient with respect to the logits to ``z``.

    Rows 2i and 2i + 1 are the two forward passes p and q of token i (Liang et al. 2021). With r = log p - log q,
    d KL(p || q) / d logits of p = p (r - KL(p || q)) and d KL(q || p) / d logits of p = p - q.
    """
    p, q = e.unflatten(0, (-1, 2)).unbind(1)
    r = (p.clamp_min(MIN_PROBABILITY) / q.clamp_min(MIN_PROBABILITY)).log_()
    kl_p_q, kl_q_p = (p * r).sum(-1, keepdim=True), -(q * r).sum(-1, keepdim=True)
    grad_p, grad_q = p * (r - kl_p_q) + (p - q), q * (-r - kl_q_p) + (q - p)
    z.add_(torch.stack([grad_p, grad_q], 1).flatten(0, 1), alpha=r_drop / 2)
    return (kl_p_q + kl_q_p).sum() / 2


def has_no_softcap(*args: Any) -> bool:
    """Return whether the logits, whose soft-cap would be the sixth argument of ``linear_cross_entropy``, are a linear function."""
    return len(args) < 6 or args[5] is None


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float, r_drop: float = 0.0, softcap: None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss and the negative log-likelihood, both summed over tokens. Only one chunk of logits exists at a time.

    A ``softcap`` is not supported (``has_no_softcap``): the sums over the vocabulary are those of linear logits.
    """
    outputs: tuple[Tensor, Tensor] = _LinearCrossEntropy.apply(hidden, weight, labels, label_smoothing, r_drop)  # type: ignore[no-untyped-call]
    return outputs
