"""The data report of a run."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DataReport:
    """Statistics of a run's data and the problems found in it.

    Attributes:
        problems: one sentence per problem that the user should check.
        statistics: all statistics by name, as JSON values.
        summary_lines: the most important statistics as text.
    """

    problems: list[str]
    statistics: dict[str, Any]
    summary_lines: list[str]

    def to_json(self) -> dict[str, Any]:
        return {"problems": self.problems, **self.statistics}

    def lines(self) -> list[str]:
        """Return the report as lines of text, problems last."""
        return [*self.summary_lines, *(f"warning: {problem}" for problem in self.problems)]
