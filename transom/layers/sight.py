"""What the queries of a pass may see, and from where: computed once a stack, used by all its blocks."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.layers.position import Position, Rotation


class Sight(NamedTuple):
    """What each query may see and how it stands to it.

    Attributes:
        mask: True where a query may attend to a key, broadcastable to (batch, n_heads, query, key); None for everywhere.
        bias: added to the scores.
        rotation: how the queries, and those keys that are new in this pass, are turned.
        real: True at queries that are tokens, False at padding; None where all are tokens.
    """

    mask: Bool[Tensor, "..."] | None = None
    bias: Float[Tensor, "..."] | None = None
    rotation: Rotation | None = None
    real: Bool[Tensor, "#batch query"] | None = None


EVERYTHING = Sight()
"""All of it, without order."""


def look(
    position: Position,
    queries: Int[Tensor, "#batch query"],
    keys: Int[Tensor, "#batch key"],
    mask: Bool[Tensor, "..."] | None,
    real: Bool[Tensor, "#batch query"] | None = None,
) -> Sight:
    """Let tokens at ``queries`` see their own sequence's tokens at ``keys`` as the position brick has it."""
    return Sight(mask, position.bias(queries, keys), position.rotation(queries), real)
