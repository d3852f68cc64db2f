"""The roles of a search, each one small: a model that takes steps, filters, and a selection that chooses the next tokens.

The loop joins them and knows nothing else of them, so a new role (sampling, constraints, streaming) is a new class and no
change to the loop.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.data.batch import Sequences
from transom.decoding.search.hypothesis import Hypothesis
from transom.decoding.search.limits import Limits


@runtime_checkable
class Cache(Protocol):
    """What a model remembers between steps."""

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Let row i continue from old row ``rows[i]``; fewer rows than before drop the rest."""
        ...

    def keep_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Forget the other sources; their rows leave by ``reorder``."""
        ...


MemoryT = TypeVar("MemoryT")
CacheT = TypeVar("CacheT", bound=Cache)


@runtime_checkable
class StepModel(Protocol[MemoryT, CacheT]):
    """A model that writes a target one token at a time; row ``source * n_beams + beam``."""

    def encode(self, source: Sequences) -> MemoryT:
        """Read the sources."""
        ...

    def start(self, memory: MemoryT, n_beams: int, max_length: int) -> CacheT:
        """Prepare to read at most ``max_length`` target tokens a row."""
        ...

    def step(self, tokens: Int[Tensor, "rows new"], cache: CacheT) -> Float[Tensor, "rows new vocab"]:
        """Read the rows' next tokens; return the logits of what follows each."""
        ...


@dataclass
class Progress:
    """Where a search stands: what filters and selections may look at.

    Attributes:
        prefixes: the start symbol and the tokens so far of each row.
        sources: index in the batch of each source that is still being searched.
        limits: of those sources.
        n_beams: rows a source.
    """

    prefixes: Int[Tensor, "rows prefix"]
    sources: Int[Tensor, "sources"]
    limits: Limits
    n_beams: int

    @property
    def length(self) -> int:
        """Tokens so far, the start symbol not counted."""
        return self.prefixes.shape[1] - 1


@runtime_checkable
class Filter(Protocol):
    """What may not be said next."""

    def __call__(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        """Set forbidden tokens to minus infinity, in place or not; log p of the others stays the model's own."""
        ...


class Move(NamedTuple):
    """A selection's choice at one step.

    Attributes:
        tokens: the next token of each row.
        parents: the row that each row continues, within its source; None where each continues itself.
        done: sources whose answer can no longer change.
    """

    tokens: Int[Tensor, "rows"]
    parents: Int[Tensor, "rows"] | None
    done: Bool[Tensor, "sources"]


@runtime_checkable
class Selection(Protocol):
    """A search under way: it chooses the next tokens and keeps what is finished."""

    def advance(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Move:
        """Choose each row's next token."""
        ...

    def harvest(self, places: list[int], progress: Progress) -> list[list[Hypothesis]]:
        """Return the finished hypotheses, best first, of the sources at these places."""
        ...

    def keep(self, places: Int[Tensor, "kept"]) -> None:
        """Go on with the sources at these places only."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """A way to choose: greedy, beam."""

    @property
    def n_beams(self) -> int:
        """Rows a source."""
        ...

    def begin(self, limits: Limits) -> Selection:
        """Start a search over as many sources as there are limits."""
        ...
