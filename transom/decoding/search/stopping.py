"""Stop strings: end generation when a given string occurs in the generated text."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.search.roles import NEVER, Progress


class StopAt:
    """Logits processor that allows only the end token once the generated text contains a stop string."""

    def __init__(self, stops: Sequence[str], tokenizer: Tokenizer, end: int, said: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Store the stop strings and the tokens generated before this search.

        Args:
            stops: non-empty stop strings.
            tokenizer: the tokenizer of the generated text.
            end: the end token.
            said: for each source, the last token of its prompt and the tokens generated before this search.
        """
        self.stops, self._tokenizer, self._end, self._said = tuple(stops), tokenizer, end, said
        self._most = max((len(stop.encode()) for stop in self.stops), default=0)  # a token is at least one byte

    def __call__(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        """Suppress all tokens but the end token in rows whose text contains a stop string."""
        for row, (source, tokens) in enumerate(zip(progress.sources.tolist(), progress.prefixes[:, 1:].tolist(), strict=True)):
            prompt_end, earlier = self._said[source]
            tail = [prompt_end, *earlier, *tokens][-self._most - 1 :]
            if first_stop(self._tokenizer.decode_behind(tail[:1], tail[1:]), self.stops) is not None:
                end = log_p[row, self._end].clone()
                log_p[row] = NEVER
                log_p[row, self._end] = end
        return log_p


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return the index of the first occurrence of a stop string in a text, or None.

    >>> first_stop("so it ends. And", [". ", "!"]), first_stop("so", ["!"])
    (10, None)
    """
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)
