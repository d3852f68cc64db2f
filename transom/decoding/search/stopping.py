"""Texts at which an answer ends."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.search.roles import NEVER, Progress


class StopAt:
    """End a text as soon as one of some stop texts stands in what was said: a filter that leaves only the end symbol then."""

    def __init__(self, stops: Sequence[str], tokenizer: Tokenizer, end: int, said: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Hold the stop texts and what was said before.

        Args:
            stops: none of them empty.
            tokenizer: of what is said.
            end: the end symbol.
            said: for each source the last token of its prompt, and what was said before this search.
        """
        self.stops, self._tokenizer, self._end, self._said = tuple(stops), tokenizer, end, said
        self._most = max((len(stop.encode()) for stop in self.stops), default=0)  # a token is a byte at least

    def __call__(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        """Leave only the end symbol to the rows that have said a stop text."""
        for row, (source, tokens) in enumerate(zip(progress.sources.tolist(), progress.prefixes[:, 1:].tolist(), strict=True)):
            prompt_end, earlier = self._said[source]
            tail = [prompt_end, *earlier, *tokens][-self._most - 1 :]
            if first_stop(self._tokenizer.decode_behind(tail[:1], tail[1:]), self.stops) is not None:
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
