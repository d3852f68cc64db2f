"""FLOPs of attention approximations: 2 per multiply-add, matrix products only."""

from transom.config.approximations import LinearAttentionConfig, LinformerConfig, NystromConfig, PerformerConfig
from transom.config.architecture import TransformerConfig
from transom.layers.approximations.linear_attention import CHUNK


def approximate_attention_flops(c: TransformerConfig, batch: int, n_queries: int, n_keys: int, causal: bool) -> int:
    """Count the FLOPs of one layer between the input projections and the output projection.

    Args:
        c: configuration of a model with approximated attention.
        batch: number of sequences.
        n_queries: number of queries per sequence.
        n_keys: number of keys per sequence.
        causal: whether tokens attend only to earlier tokens.
    """
    h, g, d, d_value = c.n_heads, c.n_kv_heads, c.d_head, c.d_value
    match c.attention.approximation:
        case LinearAttentionConfig() | PerformerConfig() as approximation:
            features = d if isinstance(approximation, LinearAttentionConfig) else approximation.n_features
            feature_macs = 0 if isinstance(approximation, LinearAttentionConfig) else d * features * (h * n_queries + g * n_keys)
            state_macs = (
                _causal_chunk_macs(h, g, features, d_value + 1, n_keys)
                if causal
                else features * (d_value + 1) * (h * n_queries + g * n_keys)
            )
            macs = feature_macs + state_macs
        case LinformerConfig(rank=rank):
            macs = rank * (d + d_value) * (g * n_keys + h * n_queries)
        case NystromConfig(n_landmarks=max_landmarks, n_iterations=n_iterations):
            m = min(max_landmarks, n_keys)
            landmarks = m * n_keys * d * (h + g)
            scores = h * d * m * (n_queries + m + n_keys)
            inverse = 4 * n_iterations * h * m**3
            macs = landmarks + scores + inverse + h * d_value * m * (n_keys + m + n_queries)
        case approximation:
            raise AssertionError(approximation.kind)
    return 2 * batch * macs


def _causal_chunk_macs(h: int, g: int, features: int, width: int, length: int) -> int:
    """Count the multiply-adds of causal linear attention: pairs of tokens within each chunk, and the state between several chunks."""
    chunk = min(CHUNK, length)
    padded = -(-length // chunk) * chunk
    within_chunks = h * padded * chunk * (features + width)
    return within_chunks + (features * width * padded * (h + g) if padded > chunk else 0)
