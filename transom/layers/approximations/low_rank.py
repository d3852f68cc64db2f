"""Attention by matrices of low rank: queries meet a few mixtures of keys in place of all keys."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transom.config import approximations
from transom.config.components import implements
from transom.layers.approximations.approximation import Approximation
from transom.layers.attention import Terms, pattern, per_query_head, scores


@implements(approximations.Linformer)
class Linformer(Approximation):
    """softmax(Q (E K)^T / sqrt(d_k)) F V (Wang et al. 2020, eq. 7); E and F, of all heads, are ``e`` and ``f``, a column a position."""

    def __init__(self, brick: approximations.Linformer, d_head: int, n_positions: int) -> None:
        """Make E and F."""
        super().__init__()
        self.e, self.f = (nn.Linear(n_positions, brick.rank, bias=False) for _ in range(2))

    def gather(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        v: Float[Tensor, "batch kv_heads key d_value"],
        asked: Bool[Tensor, "#batch key"] | None = None,
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Mix keys and values, and attend to the mixtures."""
        if asked is not None:
            k, v = (x.masked_fill(~asked[:, None, :, None], 0.0) for x in (k, v))
        return pattern(scores(q, self._columns(self.e, k) @ k)) @ per_query_head(self._columns(self.f, v) @ v, q.shape[1])

    def weights_of_text(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"]
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Write out softmax(Q (E K)^T / sqrt(d_k)) F; a row need not sum to 1."""
        return pattern(scores(q, self._columns(self.e, k) @ k)) @ self._columns(self.f, k)

    def _columns(self, mixing: nn.Linear, of: Tensor) -> Tensor:
        """Take the columns of the places that there are."""
        return mixing.weight[:, : of.shape[2]].to(of)


@implements(approximations.Nystrom)
class Nystrom(Approximation):
    """softmax(Q K'^T) softmax(Q' K'^T)^+ softmax(Q' K^T) V, all over sqrt(d_k) (Xiong et al. 2021, eq. 13 and 14).

    Landmarks are means of runs of tokens as even as can be (eq. 12 wants them of equal length); a text of no more tokens than landmarks
    has each token as its own, and is then attended to exactly but for the pseudo-inverse.
    """

    def __init__(self, brick: approximations.Nystrom, d_head: int, n_positions: int) -> None:
        """Take note of how many landmarks there are."""
        super().__init__()
        self.n_landmarks, self.n_iterations = brick.n_landmarks, brick.n_iterations

    def gather(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        v: Float[Tensor, "batch kv_heads key d_value"],
        asked: Bool[Tensor, "#batch key"] | None = None,
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Let queries ask the landmarks, and landmarks the keys."""
        real = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device) if asked is None else asked
        means = runs(real, self.n_landmarks, q.dtype)[:, None]  # (batch, 1, landmarks, key)
        there = real.sum(1)[:, None] > torch.arange(means.shape[2], device=k.device)  # a short text has fewer
        of_landmarks, of_keys = Terms(there[:, None, None]), Terms(real[:, None, None])
        k_, q_, rows = means @ k, means @ q, there[:, None, :, None]
        asks = pattern(scores(q, k_, of_landmarks), of_landmarks)
        among = pattern(scores(q_, k_, of_landmarks), of_landmarks).masked_fill(~rows, 0.0)
        answers = pattern(scores(q_, k, of_keys), of_keys).masked_fill(~rows, 0.0) @ per_query_head(v, q.shape[1])
        return asks @ (pseudo_inverse(among, self.n_iterations) @ answers)

    def weights_of_text(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"]
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Write out softmax(Q K'^T) softmax(Q' K'^T)^+ softmax(Q' K^T)."""
        length = k.shape[2]
        run = [token * min(self.n_landmarks, length) // length for token in range(length)]
        sizes = [run.count(number) for number in sorted(set(run))]
        q_, k_ = (torch.stack([part.mean(2) for part in x.split(sizes, 2)], 2) for x in (q, k))
        among = pseudo_inverse(pattern(scores(q_, k_)), self.n_iterations)
        return pattern(scores(q, k_)) @ among @ pattern(scores(q_, k))


def runs(real: Bool[Tensor, "batch length"], n: int, dtype: torch.dtype) -> Float[Tensor, "batch landmarks length"]:
    """Give the matrix that takes the means of ``n`` runs of tokens, as even as can be; of a text of fewer tokens, of each alone."""
    length = real.shape[1]
    n = min(n, length)
    tokens = real.sum(1, keepdim=True)
    run = torch.arange(length, device=real.device) * tokens.clamp(max=n) // tokens.clamp(min=1)
    inside = (run[:, None] == torch.arange(n, device=real.device)[:, None]) & real[:, None]
    return inside.to(dtype) / inside.sum(-1, keepdim=True).clamp(min=1)


def pseudo_inverse(a: Float[Tensor, "*axes landmarks landmarks"], n_iterations: int) -> Float[Tensor, "*axes landmarks landmarks"]:
    """Approach the pseudo-inverse of matrices (Xiong et al. 2021, section 3.3, after Razavi et al. 2014).

    Z_0 = A^T / (|A|_1 |A|_inf), Z' = Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4. The norms are each matrix's own.
    """
    size = a.abs()
    z = a.transpose(-2, -1) / (size.sum(-1).amax(-1) * size.sum(-2).amax(-1)).clamp(min=torch.finfo(a.dtype).tiny)[..., None, None]
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(n_iterations):
        az = a @ z
        z = z @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
    return z
