"""Texts at which an answer ends."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from transom.decoding.hypothesis import NEVER
from transom.decoding.roles import Progress
from transom.inputs.tokenizer import Tokenizer


class StopAt:
    """End a row as soon as one of some texts stands in what it said: a filter that leaves only the end symbol then."""

    def __init__(self, stops: Sequence[str], tokenizer: Tokenizer, end: int) -> None:
        """Hold the texts.

        Args:
            stops: none of them empty.
            tokenizer: of what is said.
            end: the end symbol.
        """
        self.stops, self._tokenizer, self._end = tuple(stops), tokenizer, end
        self._most = 1 + max((len(stop.encode()) for stop in self.stops), default=0)  # a token is a byte at least

    def __call__(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        """Leave only the end symbol to the rows that have said one of the texts."""
        for row, tokens in enumerate(progress.prefixes[:, 1:][:, -self._most :].tolist()):
            if first_stop(self._tokenizer.decode(tokens), self.stops) is not None:
                end = log_p[row, self._end].clone()
                log_p[row] = NEVER
                log_p[row, self._end] = end
        return log_p


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Give the place of the first of some texts in a text, or None where none of them is.

    >>> first_stop("so it ends. And", [". ", "!"]), first_stop("so", ["!"])
    (10, None)
    """
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)
