"""FLOPs of attention approximations: 2 per multiply-add, matrix products only."""

from transom.config.approximations import Linear, Linformer, Nystrom, Performer
from transom.config.architecture import Transformer
from transom.layers.approximations.linear_attention import CHUNK


def approximate(c: Transformer, batch: int, n_queries: int, n_keys: int, causal: bool) -> int:
    """Count the FLOPs of one layer between the input projections and the output projection.

    Args:
        c: configuration of a model with approximated attention.
        batch: sequences.
        n_queries: queries per sequence.
        n_keys: keys per sequence.
        causal: whether tokens attend only to earlier tokens.
    """
    h, g, d, d_value = c.n_heads, c.key_heads, c.width_of_head, c.width_of_value
    match c.attention.approximation:
        case Linear() | Performer() as brick:
            features = d if isinstance(brick, Linear) else brick.n_features
            drawn = 0 if isinstance(brick, Linear) else d * features * (h * n_queries + g * n_keys)
            passes = _in_chunks(h, g, features, d_value + 1, n_keys) if causal else features * (d_value + 1) * (h * n_queries + g * n_keys)
            products = drawn + passes
        case Linformer(rank=rank):
            products = rank * (d + d_value) * (g * n_keys + h * n_queries)
        case Nystrom(n_landmarks=most, n_iterations=n_iterations):
            m = min(most, n_keys)
            landmarks = m * n_keys * d * (h + g)
            scores = h * d * m * (n_queries + m + n_keys)
            inverse = 4 * n_iterations * h * m**3
            products = landmarks + scores + inverse + h * d_value * m * (n_keys + m + n_queries)
        case brick:
            raise AssertionError(brick.kind)
    return 2 * batch * products


def _in_chunks(h: int, g: int, features: int, width: int, length: int) -> int:
    """Count the multiply-adds of a causal pass: the pairs within each chunk and, with several chunks, updating and reading the state."""
    chunk = min(CHUNK, length)
    filled = -(-length // chunk) * chunk
    inside = h * filled * chunk * (features + width)
    return inside + (features * width * filled * (h + g) if filled > chunk else 0)
