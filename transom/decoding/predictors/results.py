"""Results of predictors: small typed records that print well and draw themselves in a notebook."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, TypeVar

from jaxtyping import Float
from torch import Tensor

Item = TypeVar("Item")


def inspection(module: Literal["alignment", "notebook"]) -> ModuleType:
    """Import a module of ``inspection/`` on first use.

    Only drawings and alignments need that package, which is above ``decoding/``. This is the only import from above, and
    ``tests/test_architecture.py`` lists it.
    """
    return import_module(f"transom.inspection.{module}")


class Record:
    """Base of results, which are frozen dataclasses."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data, without those that are not shown in ``repr``."""
        shown = (each.name for each in fields(self) if each.repr)  # type: ignore[arg-type]
        return {name: _plain(getattr(self, name)) for name in shown}

    def _repr_html_(self) -> str:
        drawn: str = inspection("notebook").to_notebook(self)
        return drawn


class Results(list[Item]):
    """A list of results, one per input, that prints one per line and draws itself in a notebook."""

    def __str__(self) -> str:
        """Return each result as text, in order."""
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        drawn: str = inspection("notebook").to_notebook(self)
        return drawn


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _lines(results: Iterable[Any]) -> Iterable[str]:
    for each in results:
        if isinstance(each, list):
            yield from _lines(each)
        else:
            yield str(each)


@dataclass(frozen=True)
class Alignment(Record):
    """Attention of a decoder over the source for one sentence pair.

    Attributes:
        source: source symbols, including the end symbol unless it was omitted.
        target: the target's symbols; a row's weights are those with which its symbol was predicted.
        weights: attention from each target symbol to each source symbol; a full row sums to 1, or to 0 where the
            symbol's token passed the block by.
        origin: where the weights come from, in words.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Float[Tensor, "target source"]
    origin: str

    @property
    def pairs(self) -> list[tuple[str, str, float]]:
        """Each target symbol with the source symbol that it attends to most, and the weight."""
        weights, columns = self.weights.max(-1)
        rows = zip(self.target, columns.tolist(), weights.tolist(), strict=True)
        return [(target, self.source[column], weight) for target, column, weight in rows]

    def __str__(self) -> str:
        """Draw the weights in lines of text: one row per target symbol."""
        return str(inspection("notebook").alignment_text(self))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {"source": list(self.source), "target": list(self.target), "weights": self.weights.tolist(), "origin": self.origin}


def described(name: str, parts: Sequence[str], n_parameters: int, precision: str | None, origin: str | None) -> str:
    """Return the ``repr`` of a loaded model on one line.

    >>> described("Translator", ["to de, fr"], 1234567, "bf16", "runs/en-de")
    '<Translator: to de, fr, 1,234,567 parameters, bf16, from runs/en-de>'
    """
    known = [*parts, f"{n_parameters:,} parameters", *([precision] if precision else []), *([f"from {origin}"] if origin else [])]
    return f"<{name}: {', '.join(known)}>"
