"""Results of predictors: records that print as text and are drawn in notebooks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, TypeVar

from jaxtyping import Float
from torch import Tensor

Item = TypeVar("Item")


def inspection(module: Literal["alignment", "pages.notebook"]) -> ModuleType:
    """Import a module of ``inspection/`` on first use.

    Drawings and alignments need ``inspection/``, which itself imports ``decoding/``. A late import avoids the cycle;
    ``tests/test_architecture.py`` lists this exception.
    """
    return import_module(f"transom.inspection.{module}")


class Record:
    """Base class of results, all of which are frozen dataclasses."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields that ``repr`` shows, as data for JSON."""
        shown = (each.name for each in fields(self) if each.repr)  # type: ignore[arg-type]
        return {name: _plain(getattr(self, name)) for name in shown}

    def _repr_html_(self) -> str:
        drawn: str = inspection("pages.notebook").to_notebook(self)
        return drawn


class Results(list[Item]):
    """List of results, one per input; ``str`` gives one line per result, and notebooks draw the results."""

    def __str__(self) -> str:
        """Return the results as text, one after another."""
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        drawn: str = inspection("pages.notebook").to_notebook(self)
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
        target: target symbols, one per row of ``weights``.
        weights: attention weights with which each target symbol was predicted, over the source symbols. A row sums to 1 if no source symbol
            was omitted, or to 0 if the token skipped the block (mixture of depths).
        origin: layer and heads of the weights, such as "decoder.blocks.3.cross, mean of 8 heads".
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Float[Tensor, "target source"]
    origin: str

    @property
    def pairs(self) -> list[tuple[str, str, float]]:
        """(target symbol, source symbol with the highest weight, this weight) for each target symbol."""
        weights, columns = self.weights.max(-1)
        rows = zip(self.target, columns.tolist(), weights.tolist(), strict=True)
        return [(target, self.source[column], weight) for target, column, weight in rows]

    def __str__(self) -> str:
        """Draw the weights in lines of text: one row per target symbol."""
        return str(inspection("pages.notebook").alignment_text(self))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as data for JSON."""
        return {"source": list(self.source), "target": list(self.target), "weights": self.weights.tolist(), "origin": self.origin}


def described(name: str, parts: Sequence[str], n_parameters: int, precision: str | None, origin: str | None) -> str:
    """Return the ``repr`` of a loaded model on one line.

    >>> described("Translator", ["to de, fr"], 1234567, "bf16", "runs/en-de")
    '<Translator: to de, fr, 1,234,567 parameters, bf16, from runs/en-de>'
    """
    known = [*parts, f"{n_parameters:,} parameters", *([precision] if precision else []), *([f"from {origin}"] if origin else [])]
    return f"<{name}: {', '.join(known)}>"
