"""How much arithmetic approximations of attention do: 2 operations a multiply-add, matrix products only."""

from transom.config.approximations import Linear, Linformer, Nystrom, Performer
from transom.config.architecture import Transformer
from transom.layers.approximations.linear_attention import CHUNK


def approximate(c: Transformer, batch: int, n_queries: int, n_keys: int, causal: bool) -> int:
    """Count the operations between projections and output map, of one layer.

    Args:
        c: a model whose attention is approximated.
        batch: rows, one text each.
        n_queries: a row.
        n_keys: a row.
        causal: whether tokens see only what came before.
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
    """Multiply-adds of a causal pass: pairs within each chunk, and, where there are several, the sums that each adds and reads."""
    chunk = min(CHUNK, length)
    filled = -(-length // chunk) * chunk
    inside = h * filled * chunk * (features + width)
    return inside + (features * width * filled * (h + g) if filled > chunk else 0)
