"""Stop strings: end generation when a given string occurs in the generated text."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.search.interfaces import NEG_INF, SearchState


class StopStrings:
    """Logits processor that allows only the end token once the generated text contains a stop string."""

    def __init__(self, stop_strings: Sequence[str], tokenizer: Tokenizer, end: int, context: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Store the stop strings and the tokens generated before this search.

        Args:
            stop_strings: strings that end a text; none is empty.
            tokenizer: the tokenizer of the generated text.
            end: the end token.
            context: for each source, the last token of its prompt and the tokens generated before this search.
        """
        self.stop_strings, self._tokenizer, self._end, self._context = tuple(stop_strings), tokenizer, end, context
        self._most = max((len(stop.encode()) for stop in self.stop_strings), default=0)  # a token is at least one byte

    def __call__(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> Float[Tensor, "rows vocab"]:
        """Suppress all tokens but the end token in rows whose text contains a stop string."""
        for row, (source, tokens) in enumerate(zip(state.sources.tolist(), state.tokens_so_far[:, 1:].tolist(), strict=True)):
            prompt_end, earlier = self._context[source]
            tail = [prompt_end, *earlier, *tokens][-self._most - 1 :]
            if find_stop_string(self._tokenizer.decode_continuation(tail[:1], tail[1:]), self.stop_strings) is not None:
                end = log_p[row, self._end].clone()
                log_p[row] = NEG_INF
                log_p[row, self._end] = end
        return log_p


def find_stop_string(text: str, stop_strings: Sequence[str]) -> int | None:
    """Return the index of the first occurrence of a stop string in a text, or None.

    >>> find_stop_string("so it ends. And", [". ", "!"]), find_stop_string("so", ["!"])
    (10, None)
    """
    return min((index for stop in stop_strings if (index := text.find(stop)) >= 0), default=None)
