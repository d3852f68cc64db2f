"""Class of data reports."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transom.data.reports.baseline import BaselineMetric


@dataclass(frozen=True)
class DataReport:
    """Statistics of the data of a run, and problems found in the data.

    Attributes:
        problems: one message for each problem that the user should check.
        statistics: all statistics by name, as JSON values.
        summary_lines: the most important statistics as lines of text.
        notes: messages about what was recognized, guessed or skipped while reading the files.
        baseline: validation metrics of a trivial predictor. A useful model must be better.
    """

    problems: list[str]
    statistics: dict[str, Any]
    summary_lines: list[str]
    notes: Sequence[str] = ()
    baseline: Sequence[BaselineMetric] = ()

    def with_baseline(self, baseline: Sequence[BaselineMetric]) -> "DataReport":
        """Return a copy of the report with the given validation metrics of a trivial predictor."""
        return replace(self, baseline=tuple(baseline))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, without ``summary_lines``. Notes and baseline are included if there are any."""
        optional = {"notes": list(self.notes), "baseline": [metric._asdict() for metric in self.baseline]}
        return {"problems": self.problems, **{name: value for name, value in optional.items() if value}, **self.statistics}

    def lines(self) -> list[str]:
        """Return the report as lines of text, with the problems as warnings at the end."""
        baseline = ", ".join(f"{metric.key} {metric.value:.4g} ({metric.predictor})" for metric in self.baseline)
        problems = [f"warning: {problem}" for problem in self.problems]
        return [*self.notes, *self.summary_lines, *([f"baseline: {baseline}"] if baseline else []), *problems]
