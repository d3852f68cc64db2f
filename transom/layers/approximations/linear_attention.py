"""Linear attention: feature maps replace the exponential of the scores, so that sums over keys are shared by all queries."""

from abc import abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from transom.config import approximations
from transom.config.component_registry import implements
from transom.layers.approximations.approximation import Approximation, dense_mask
from transom.layers.attention import repeat_kv
from transom.layers.cache import LinearAttentionState
from transom.layers.context import AttentionContext

CHUNK = 64
"""Tokens per chunk of a causal pass. Scores are computed within a chunk; a running state summarizes earlier chunks."""

MAX_EXPONENT = 60.0
"""Bound on the exponents of features: a million terms exp(60) can be summed in float32 without overflow, forward and backward."""


class LinearAttention(Approximation):
    """Linear attention with a feature map phi >= 0 (Katharopoulos et al. 2020, eq. 4 and 5).

    z_i = (phi(q_i)^T sum_j phi(k_j) v_j^T) / (phi(q_i)^T sum_j phi(k_j)).

    Attributes:
        features: dimension of phi.
    """

    features: int

    @abstractmethod
    def query_features(self, q: Float[Tensor, "batch heads length d_head"]) -> Float[Tensor, "batch heads length features"]:
        """Compute phi of queries, up to a factor per query, which cancels in z."""

    @abstractmethod
    def key_features(self, k: Float[Tensor, "batch heads length d_head"]) -> Float[Tensor, "batch heads length features"]:
        """Compute phi of keys, up to a factor common to all keys, which cancels in z."""

    def attend(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        v: Float[Tensor, "batch kv_heads key d_value"],
        key_mask: Bool[Tensor, "#batch key"] | None = None,
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute Z of bidirectional attention: every query reads the same state over all keys."""
        return self.read_out(q, self.compute_state(k, v, key_mask))

    def compute_state(
        self,
        k: Float[Tensor, "batch kv_heads key d_head"],
        v: Float[Tensor, "batch kv_heads key d_value"],
        key_mask: Bool[Tensor, "#batch key"] | None = None,
    ) -> LinearAttentionState:
        """Compute the state sum_j phi(k_j) [v_j, 1]^T over keys with ``key_mask`` True."""
        features = self.key_features(k)
        if key_mask is not None:
            features = features.masked_fill(~key_mask[:, None, :, None], 0.0)
        return LinearAttentionState(features.transpose(-2, -1) @ _append_ones(v))

    def read_out(
        self, q: Float[Tensor, "batch n_heads query d_head"], sums: LinearAttentionState
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute the output z of each query from a state over keys."""
        return _normalize(self.query_features(q) @ repeat_kv(sums.sums, q.shape[1]))

    def attend_causal(
        self,
        q: Float[Tensor, "batch n_heads length d_head"],
        k: Float[Tensor, "batch kv_heads length d_head"],
        v: Float[Tensor, "batch kv_heads length d_value"],
        segments: Int[Tensor, "#batch length"],
    ) -> Float[Tensor, "batch n_heads length d_value"]:
        """Compute Z, where each token attends to itself and earlier tokens of its own segment, in linear time."""
        return self.chunked_scan(q, k, v, segments)[0]

    def chunked_scan(
        self,
        q: Float[Tensor, "batch n_heads length d_head"],
        k: Float[Tensor, "batch kv_heads length d_head"],
        v: Float[Tensor, "batch kv_heads length d_value"],
        segments: Int[Tensor, "#batch length"],
        initial_state: LinearAttentionState | None = None,
    ) -> tuple[Float[Tensor, "batch n_heads length d_value"], LinearAttentionState | None]:
        """Compute causal attention within segments by a scan over chunks of tokens.

        Scores are computed for the query-key pairs within a chunk. Keys of earlier chunks contribute through a state: the sum over the keys
        of the segment in which the previous chunk ended.

        Args:
            q: queries.
            k: keys.
            v: values.
            segments: segment id per token; the tokens of a segment are contiguous.
            initial_state: state over cached tokens, which belong to the first token's segment; None without a cache.

        Returns:
            The output, and the state over the segment of the last token. The state is None for a single chunk without ``initial_state``.
        """
        length, size = q.shape[2], min(CHUNK, q.shape[2])
        n_pad = -length % size
        padded = torch.cat([segments, segments[:, -1:].expand(-1, n_pad)], 1)
        segment = padded.unflatten(1, (-1, size))  # (batch, chunks, chunk)
        q, k, v = (_in_chunks(x, n_pad, size) for x in (self.query_features(q), self.key_features(k), _append_ones(v)))
        seen = (segment[..., None] == segment[..., None, :]) & (segment > 0)[..., None]
        seen = seen & torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        within_chunk = (q @ repeat_kv(k, q.shape[1]).transpose(-2, -1)).masked_fill(~seen[:, None], 0.0)
        z, sums = within_chunk @ repeat_kv(v, q.shape[1]), None
        if segment.shape[1] > 1 or initial_state is not None:
            last = segment[:, :, -1]
            first = segment[:, :1, 0] if initial_state is not None else torch.zeros_like(last[:, :1])
            entering_segment = torch.cat([first, last[:, :-1]], 1)  # segment of the state that enters each chunk
            chunk_states = k.masked_fill((segment != last[:, :, None])[:, None, ..., None], 0.0).transpose(-2, -1) @ v
            entering_states, total = _carry_states(chunk_states, last == entering_segment, initial_state)
            sees_state = (segment == entering_segment[:, :, None]) & (segment > 0)
            z = z + q.masked_fill(~sees_state[:, None, ..., None], 0.0) @ repeat_kv(entering_states, q.shape[1])
            sums = LinearAttentionState(total)
        return _normalize(z.flatten(2, 3)[:, :, :length]), sums

    def implied_weights(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        ctx: AttentionContext = AttentionContext(),
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return the slow reference: the matrix of implied weights, phi(q_i) . phi(k_j) divided by its sum over the visible keys j."""
        wide = torch.promote_types(q.dtype, torch.float32)
        w = self.unmasked_weights(q.to(wide), k.to(wide)).masked_fill(~dense_mask(q, k, ctx)[:, None], 0.0)
        return _safe_divide(w, w.sum(-1, keepdim=True))

    def unmasked_weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"]
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return phi(q_i) . phi(k_j), not divided by their sum."""
        return self.query_features(q) @ repeat_kv(self.key_features(k), q.shape[1]).transpose(-2, -1)


def _append_ones(v: Float[Tensor, "*axes d_value"]) -> Float[Tensor, "*axes width"]:
    """Append 1 to each value vector; the weighted sum of the ones is the denominator of z."""
    return F.pad(v, (0, 1), value=1.0)


def _normalize(x: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes d_value"]:
    """Divide the numerator of z, all columns but the last, by the denominator, the last column."""
    return _safe_divide(x[..., :-1], x[..., -1:])


def _safe_divide(x: Tensor, total: Tensor) -> Tensor:
    """Divide; 0 / 0 is 0."""
    return x / total.masked_fill(total == 0, 1.0)


def _in_chunks(x: Float[Tensor, "batch heads length width"], n_pad: int, size: int) -> Float[Tensor, "batch heads chunks chunk width"]:
    """Split the tokens into chunks of ``size``, after padding the last chunk with ``n_pad`` zeros."""
    return F.pad(x, (0, 0, 0, n_pad)).unflatten(2, (-1, size))


def _carry_states(
    chunk_states: Float[Tensor, "batch kv_heads chunks features width"],
    continues: Bool[Tensor, "#batch chunks"],
    initial_state: LinearAttentionState | None,
) -> tuple[Float[Tensor, "batch kv_heads chunks features width"], Float[Tensor, "batch kv_heads features width"]]:
    """Accumulate the states of chunks; the sum restarts at each chunk where ``continues`` is False.

    Args:
        chunk_states: state over the keys of each chunk that belong to the segment in which the chunk ends.
        continues: False if a chunk ends in another segment than the previous chunk.
        initial_state: state before the first chunk; None for zeros.

    Returns:
        The state before each chunk, and the state after the last chunk.
    """
    total = torch.zeros_like(chunk_states[:, :, 0]) if initial_state is None else initial_state.sums
    entering_states = []
    for i, part in enumerate(chunk_states.unbind(2)):
        entering_states.append(total)
        total = total.masked_fill(~continues[:, i, None, None, None], 0.0) + part
    return torch.stack(entering_states, 2), total


@implements(approximations.LinearAttentionConfig)
class FeatureMapAttention(LinearAttention):
    """Linear attention with an elementwise feature map: phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, eq. 7) or max(0, x).

    So that float32 suffices, the features of a query are divided by their maximum (this factor cancels), and exponents are at least
    -``MAX_EXPONENT``.
    """

    def __init__(self, config: approximations.LinearAttentionConfig, d_head: int, n_positions: int) -> None:
        """Select the feature map, whose dimension is ``d_head``."""
        super().__init__()
        self.feature_map, self.features = config.feature_map, d_head

    def query_features(self, q: Float[Tensor, "batch heads length d_head"]) -> Float[Tensor, "batch heads length features"]:
        """Compute phi of queries, divided by the largest feature of each query."""
        features = self.phi(q)
        return _safe_divide(features, features.detach().amax(-1, keepdim=True))

    def key_features(self, k: Float[Tensor, "batch heads length d_head"]) -> Float[Tensor, "batch heads length features"]:
        """Compute phi of keys."""
        return self.phi(k)

    def phi(self, x: Tensor) -> Tensor:
        """Compute phi elementwise. For x < 0, elu(x) + 1 is computed as exp(x), which does not round to 0 for large negative x."""
        return F.relu(x) if self.feature_map == "relu" else F.relu(x) + x.clamp(-MAX_EXPONENT, 0).exp()


@implements(approximations.PerformerConfig)
class Performer(LinearAttention):
    """Performer (FAVOR+): phi(x)_r = exp(w_r . x' - |x'|^2 / 2), x' = x / d_k^(1/4) (Choromanski et al. 2021, lemma 1).

    The expectation of phi(q) . phi(k) / m over w is exp(q . k / sqrt(d_k)), with m features; the factor 1 / m cancels in z. So that float32
    suffices, the features of a query are divided by their maximum, which cancels too, and the exponents of keys are limited to
    +-``MAX_EXPONENT``. The paper's code instead subtracts the maximum over all keys, which leaks information from later tokens.

    Attributes:
        w: Gaussian random projections, (features, d_head); with ``orthogonal``, orthogonal to each other in each block of d_head rows.
    """

    w: Tensor

    def __init__(self, config: approximations.PerformerConfig, d_head: int, n_positions: int) -> None:
        """Allocate the projections; ``sample_projections`` samples them."""
        super().__init__()
        self.features, self.orthogonal = config.n_features, config.orthogonal
        self.register_buffer("w", torch.zeros(config.n_features, d_head))

    @torch.no_grad()
    def sample_projections(self) -> None:
        """Sample ``w`` from the default random generator.

        With ``orthogonal``, the directions come from QR decompositions and the norms from Gaussian vectors (Choromanski et al. 2021,
        appendix B.2).
        """
        m, d_head = self.w.shape
        w = torch.randn(m, d_head)
        if self.orthogonal:
            q, r = torch.linalg.qr(torch.randn(-(-m // d_head), d_head, d_head))
            directions = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # makes q uniform over all rotations
            w = directions.transpose(-2, -1).flatten(0, 1)[:m] * w.norm(dim=1, keepdim=True)
        self.w.copy_(w)

    def query_features(self, q: Float[Tensor, "batch heads length d_head"]) -> Float[Tensor, "batch heads length features"]:
        """Compute phi of queries, divided by the largest feature of each query."""
        log = self.log_features(q)
        return (log - log.detach().amax(-1, keepdim=True)).exp()

    def key_features(self, k: Float[Tensor, "batch heads length d_head"]) -> Float[Tensor, "batch heads length features"]:
        """Compute phi of keys."""
        return self.log_features(k).clamp(-MAX_EXPONENT, MAX_EXPONENT).exp()

    def log_features(self, x: Float[Tensor, "batch heads length d_head"]) -> Float[Tensor, "batch heads length features"]:
        """Compute log phi."""
        x = x * x.shape[-1] ** -0.25
        return F.linear(x, self.w.to(x)) - x.square().sum(-1, keepdim=True) / 2
