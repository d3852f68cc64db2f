"""The data report of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transom.data.reports.baseline import BaselineMetric


@dataclass(frozen=True)
class DataReport:
    """Statistics of a run's data and the problems found in it.

    Attributes:
        problems: one sentence per problem that the user should check.
        statistics: all statistics by name, as JSON values.
        summary_lines: the most important statistics as text.
        notes: what was recognized, guessed or skipped while reading the files, one sentence each.
        baseline: validation metrics of a trivial predictor, below which training is not worth its time.
    """

    problems: list[str]
    statistics: dict[str, Any]
    summary_lines: list[str]
    notes: Sequence[str] = ()
    baseline: Sequence[BaselineMetric] = ()

    def with_baseline(self, baseline: Sequence[BaselineMetric]) -> "DataReport":
        """Return the report with the metrics of a trivial predictor."""
        return replace(self, baseline=tuple(baseline))

    def to_json(self) -> dict[str, Any]:
        optional = {"notes": list(self.notes), "baseline": [metric._asdict() for metric in self.baseline]}
        return {"problems": self.problems, **{name: value for name, value in optional.items() if value}, **self.statistics}

    def lines(self) -> list[str]:
        """Return the report as lines of text, problems last."""
        baseline = ", ".join(f"{metric.key} {metric.value:.4g} ({metric.predictor})" for metric in self.baseline)
        problems = [f"warning: {problem}" for problem in self.problems]
        return [*self.notes, *self.summary_lines, *([f"baseline: {baseline}"] if baseline else []), *problems]
