"""What may not be said next. A filter takes away; it never changes the log probability of what is left."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from transom.decoding.search.hypothesis import NEVER
from transom.decoding.search.roles import Progress


class Forbid:
    """Ban tokens that no translation holds, such as padding."""

    def __init__(self, tokens: Int[Tensor, "banned"]) -> None:
        """Hold the tokens to ban, on the search's device."""
        self.tokens = tokens

    def __call__(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        """Ban them in every row."""
        return log_p.index_fill_(1, self.tokens, NEVER)


@dataclass(frozen=True)
class KeepLimits:
    """Ban the end symbol before the shortest length, and all but the end symbol at the longest.

    Args:
        end: the end symbol.
    """

    end: int

    def __call__(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        """Apply each source's limits to its rows."""
        limits, length = progress.limits, progress.length
        if length < limits.all_may_end_from:
            early = (length < limits.shortest).repeat_interleave(progress.n_beams)
            log_p[:, self.end].masked_fill_(early, NEVER)
        if length + 1 >= limits.first_must_end_at:
            last = (length + 1 >= limits.longest).repeat_interleave(progress.n_beams)
            end = log_p[:, self.end].clone()
            log_p.masked_fill_(last[:, None], NEVER)
            log_p[:, self.end] = end
        return log_p
