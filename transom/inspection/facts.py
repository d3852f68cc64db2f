"""The facts of one training run, as plain data: what the report and the model card are written from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from transom.config.recipe import Recipe
from transom.decoding.predictors.results import Alignment

Record = Mapping[str, Any]
"""A line of ``metrics.jsonl``."""


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
        recipe: as resolved, vocabulary sizes filled in.
        metrics: the lines of ``metrics.jsonl``.
        n_parameters: numbers that the model learned, tied ones counted once.
        n_active: how many of them a token uses.
        seconds: training time, validation included, over all sittings.
        data: the data report as JSON.
        alignments: of some translations.
        scores: figures of the kept model.
        machine: lines on the machine and the choices made for it (precision and threads with their reasons).
    """

    name: str
    recipe: Recipe
    metrics: Sequence[Record]
    n_parameters: int
    n_active: int
    seconds: float
    data: Record
    alignments: Sequence[Alignment] = ()
    scores: Sequence[Score] = ()
    machine: Sequence[str] = ()

    @cached_property
    def steps(self) -> int:
        """Optimizer steps made."""
        return max((int(record["step"]) for record in self.metrics), default=0)

    @cached_property
    def validations(self) -> list[Record]:
        """The records of validations."""
        return self.of_kind("validation")

    @cached_property
    def kept(self) -> Record | None:
        """The validation whose weights the run kept."""
        return next((record for record in reversed(self.validations) if record["best"]), None)

    @cached_property
    def kept_weights(self) -> str | None:
        """Which weights were kept, those of the optimizer or their average, with the loss of the others; None where a run averages none."""
        names = {"raw": "raw weights", "averaged": "averaged weights"}
        chosen = self.kept.get("weights") if self.kept else None
        if self.kept is None or chosen not in names:
            return None
        (other,) = names.keys() - {chosen}
        loss = self.kept.get(f"{other}_loss")
        return names[chosen] + (f" (the {names[other]} have loss {loss:.4f})" if loss is not None else "")

    @cached_property
    def problems(self) -> list[str]:
        """Sentences that name what a person should look at in the training itself."""
        if self.kept is None:
            return []
        loss = _number(self.kept["loss"])
        if math.isnan(loss):
            return ["the validation loss of the kept weights is not a number; lower training.learning_rate"]
        if (choices := _choices(self.recipe)) is None or loss <= math.log(choices[0]):
            return []
        return [
            f"the validation loss of the kept weights is {loss:.2f} nats, worse than guessing: a uniform choice among {choices[0]:,}"
            f" {choices[1]} has ln {choices[0]:,} = {math.log(choices[0]):.2f}; train longer, change training.learning_rate, or look at the"
            " data"
        ]

    @cached_property
    def samples(self) -> Sequence[Mapping[str, str]]:
        """What the kept weights answered to some of the validation data, with what they answered to."""
        return self.kept.get("samples", ()) if self.kept else ()

    @cached_property
    def throughput(self) -> float | None:
        """Median of the logged target tokens a second, validation not included."""
        return _median(self.series("train", "target_tokens_per_second"))

    @cached_property
    def peak_share(self) -> float | None:
        """Median share of the machine's measured matrix-product peak, from 0 to 1."""
        return _median(self.series("train", "peak_share"))

    def of_kind(self, kind: str) -> list[Record]:
        """Return the records of one kind: "train", "validation" or "skipped"."""
        return [record for record in self.metrics if record.get("kind") == kind]

    def series(self, kind: str, key: str) -> list[tuple[float, float]]:
        """Return (step, value) of a field; a value that was not finite is NaN, a record without the field is left out."""
        return [(float(record["step"]), _number(record[key])) for record in self.of_kind(kind) if key in record]


def gather(name: str, recipe: Recipe, known: Mapping[str, Any], metrics: Sequence[Record], seconds: float) -> Facts:
    """Gather the facts of a run from what it told its observers and wrote.

    Args:
        name: the run folder's name.
        recipe: as the run settled it.
        known: the facts that the run's first event tells.
        metrics: the lines of ``metrics.jsonl``.
        seconds: training time that its last event tells.
    """
    measured = f"measured peak: matrix products {known['peak_flops'] / 1e9:,.0f} GFLOP/s, memory {known['bandwidth'] / 1e9:,.0f} GB/s"
    return Facts(
        name=name,
        recipe=recipe,
        metrics=metrics,
        n_parameters=known["parameters"],
        n_active=known["active_parameters"],
        seconds=seconds,
        data=known["data"],
        machine=(*(known[name] for name in ("precision", "threads", "processes") if known[name]), measured, f"torch {known['torch']}"),
    )


def _choices(recipe: Recipe) -> tuple[int, str] | None:
    """Return among how many a model's answer is a choice, and what they are.

    None where that is not known, and for pairs of texts: each is told from the others of its batch, however many these are.
    """
    if not recipe.GUESSES:
        return None
    if classes := getattr(recipe.model, "classes", ()):
        return len(classes), "classes"
    n_tokens = getattr(recipe.model, "target_vocab_size", None) or getattr(recipe.model, "vocab_size", None)
    return None if n_tokens is None else (n_tokens, "tokens")


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _median(points: Sequence[tuple[float, float]]) -> float | None:
    values = [value for _, value in points if math.isfinite(value)]
    return median(values) if values else None
