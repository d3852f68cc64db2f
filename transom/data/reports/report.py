"""The form of all reports on data."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Report:
    """What is known of the data of a run.

    Attributes:
        problems: sentences that name what a person should look at.
        facts: all figures by name, as JSON values.
        summary_lines: the most important of them, for people.
    """

    problems: list[str]
    facts: dict[str, Any]
    summary_lines: list[str]

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON values."""
        return {"problems": self.problems, **self.facts}

    def lines(self) -> list[str]:
        """Give the report for people, the problems last."""
        return [*self.summary_lines, *(f"look at this: {problem}" for problem in self.problems)]
