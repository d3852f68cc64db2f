"""Nystromformer: softmax attention through landmarks (Xiong et al. 2021)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transom.config import approximations
from transom.config.component_registry import implements
from transom.layers.approximations.approximation import Approximation
from transom.layers.attention import AttentionArgs, attention_scores, attention_weights, repeat_kv


@implements(approximations.NystromConfig)
class Nystrom(Approximation):
    """Nystromformer: softmax(Q K'^T) softmax(Q' K'^T)^+ softmax(Q' K^T) V, scores over sqrt(d_k) (Xiong et al. 2021, eq. 13 and 14).

    The landmarks Q' and K' are the means of queries and keys over runs of tokens of nearly equal length (eq. 12 requires equal length). In
    a sequence of at most ``n_landmarks`` tokens each token is a landmark; attention is then exact up to the error of the pseudo-inverse.
    """

    def __init__(self, config: approximations.NystromConfig, d_head: int, n_positions: int) -> None:
        """Set the number of landmarks, and the number of iterations of the pseudo-inverse."""
        super().__init__()
        self.n_landmarks, self.n_iterations = config.n_landmarks, config.n_iterations

    def attend(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        v: Float[Tensor, "batch kv_heads key d_value"],
        key_mask: Bool[Tensor, "#batch key"] | None = None,
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Attend from queries to landmarks and from landmarks to keys."""
        token_mask = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device) if key_mask is None else key_mask
        means = segment_means(token_mask, self.n_landmarks, q.dtype)[:, None]  # (batch, 1, landmarks, key)
        landmark_mask = token_mask.sum(1)[:, None] > torch.arange(means.shape[2], device=k.device)  # short sequences have fewer
        of_landmarks, of_keys = AttentionArgs(landmark_mask[:, None, None]), AttentionArgs(token_mask[:, None, None])
        k_, q_, rows = means @ k, means @ q, landmark_mask[:, None, :, None]
        query_to_landmark = attention_weights(attention_scores(q, k_, of_landmarks), of_landmarks)
        landmark_to_landmark = attention_weights(attention_scores(q_, k_, of_landmarks), of_landmarks).masked_fill(~rows, 0.0)
        landmark_values = attention_weights(attention_scores(q_, k, of_keys), of_keys).masked_fill(~rows, 0.0) @ repeat_kv(v, q.shape[1])
        return query_to_landmark @ (pseudo_inverse(landmark_to_landmark, self.n_iterations) @ landmark_values)

    def unmasked_weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"]
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return softmax(Q K'^T) softmax(Q' K'^T)^+ softmax(Q' K^T)."""
        length = k.shape[2]
        run = [token * min(self.n_landmarks, length) // length for token in range(length)]
        sizes = [run.count(number) for number in sorted(set(run))]
        q_, k_ = (torch.stack([part.mean(2) for part in x.split(sizes, 2)], 2) for x in (q, k))
        landmark_to_landmark = pseudo_inverse(attention_weights(attention_scores(q_, k_)), self.n_iterations)
        return attention_weights(attention_scores(q, k_)) @ landmark_to_landmark @ attention_weights(attention_scores(q_, k))


def segment_means(token_mask: Bool[Tensor, "batch length"], n: int, dtype: torch.dtype) -> Float[Tensor, "batch landmarks length"]:
    """Return the matrix that averages ``n`` runs of tokens of nearly equal length; with fewer than ``n`` tokens, each token is a run."""
    length = token_mask.shape[1]
    n = min(n, length)
    tokens = token_mask.sum(1, keepdim=True)
    run = torch.arange(length, device=token_mask.device) * tokens.clamp(max=n) // tokens.clamp(min=1)
    inside = (run[:, None] == torch.arange(n, device=token_mask.device)[:, None]) & token_mask[:, None]
    return inside.to(dtype) / inside.sum(-1, keepdim=True).clamp(min=1)


def pseudo_inverse(a: Float[Tensor, "*axes landmarks landmarks"], n_iterations: int) -> Float[Tensor, "*axes landmarks landmarks"]:
    """Compute the Moore-Penrose pseudo-inverse of each matrix iteratively (Xiong et al. 2021, section 3.3, after Razavi et al. 2014).

    Z_0 = A^T / (|A|_1 |A|_inf), Z' = Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4.
    """
    size = a.abs()
    z = a.transpose(-2, -1) / (size.sum(-1).amax(-1) * size.sum(-2).amax(-1)).clamp(min=torch.finfo(a.dtype).tiny)[..., None, None]
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(n_iterations):
        az = a @ z
        z = z @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
    return z
