"""The facts of one training run, as plain data: what the report and the model card are written from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from transom.config.recipe import Recipe
from transom.inspection.alignment import Alignment

Record = Mapping[str, Any]
"""A line of ``metrics.jsonl``."""


@dataclass(frozen=True)
class Sample:
    """A validation sentence, what a person made of it and what the model made of it."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Score:
    """A measured figure of the kept model: what, how much, on which data, and the signature that lets others repeat it."""

    metric: str
    value: float
    data: str
    signature: str


@dataclass(frozen=True)
class Facts:
    """One training run.

    Attributes:
        name: the run folder's name.
        recipe: as resolved.
        recipe_toml: the same as text.
        metrics: the lines of ``metrics.jsonl``.
        n_parameters: numbers that the model learned, tied ones counted once.
        seconds: training time, validation included, over all resumed parts.
        data: the data report as JSON.
        samples: validation sentences and their translations by the kept model.
        alignments: of some of them.
        scores: figures of the kept model.
        machine: lines on the machine and the choices made for it (precision and threads with their reasons).
        version: of transom.
    """

    name: str
    recipe: Recipe
    recipe_toml: str
    metrics: Sequence[Record]
    n_parameters: int
    seconds: float
    data: Record
    samples: Sequence[Sample] = ()
    alignments: Sequence[Alignment] = ()
    scores: Sequence[Score] = ()
    machine: Sequence[str] = ()
    version: str = ""

    @cached_property
    def steps(self) -> int:
        """Optimizer steps made."""
        return max((int(record["step"]) for record in self.metrics), default=0)

    @cached_property
    def validations(self) -> list[tuple[int, Record]]:
        """Each validation's step and figures."""
        return [(int(record["step"]), record["validation"]) for record in self.metrics if record.get("validation")]

    @cached_property
    def best(self) -> tuple[int, Record] | None:
        """The validation that the recipe's ``select_by`` prefers; the first of equals."""
        if self.recipe.training.select_by == "bleu":
            return max(self.validations, key=lambda found: _or(found[1].get("bleu"), -math.inf), default=None)
        return min(self.validations, key=lambda found: _or(found[1].get("loss"), math.inf), default=None)

    @cached_property
    def throughput(self) -> float | None:
        """Median of the logged target tokens a second."""
        return _median(self.series("target_tokens_per_second"))

    @cached_property
    def peak_share(self) -> float | None:
        """Median share of the machine's measured matrix-product peak."""
        return _median(self.series("peak_share"))

    def series(self, key: str) -> list[tuple[float, float]]:
        """Return (step, value) of a field of the training lines, or of their validations as ``validation.key``."""
        first, _, rest = key.partition(".")
        values = [(record["step"], record.get(first)) for record in self.metrics]
        if rest:
            values = [(step, value.get(rest)) for step, value in values if isinstance(value, Mapping)]
        return [(float(step), float(value)) for step, value in values if value is not None]


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None or math.isnan(value) else value


def _median(points: Sequence[tuple[float, float]]) -> float | None:
    values = [value for _, value in points if math.isfinite(value)]
    return median(values) if values else None
