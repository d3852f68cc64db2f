"""A hand calculation of a model on one input, and the formats in which it is written."""

from dataclasses import dataclass
from typing import Any

from transom.files.message import as_sentence, joined
from transom.inspection.explain.render_html import render_fragment, render_html
from transom.inspection.explain.render_json import render_data, render_json
from transom.inspection.explain.render_text import render_latex, render_markdown, render_text
from transom.inspection.explain.steps import Section


@dataclass(frozen=True)
class Explanation:
    """The hand calculation of one token: sections of steps, each an equation whose printed operands give its printed result.

    Attributes:
        title: what is calculated.
        settings: block, head, query and the other choices, as JSON-serializable data.
        sections: the steps.
        summary: how many steps were compared with the numbers of the model, and the largest difference.
        notes: sentences on input that was dropped or added.
    """

    title: str
    settings: dict[str, Any]
    sections: tuple[Section, ...]
    summary: str
    notes: tuple[str, ...] = ()

    def text(self, color: bool = False, width: int | None = None) -> str:
        """Return plain text.

        Args:
            color: give headings and results the colors of a terminal.
            width: number of columns to which long lines are wrapped; None for whole lines.
        """
        return render_text(self.title, self.lead, self.sections, color, width)

    def markdown(self) -> str:
        """Return a Markdown document."""
        return render_markdown(self.title, self.lead, self.sections)

    def latex(self) -> str:
        """Return a LaTeX document."""
        return render_latex(self.title, self.lead, self.sections)

    def html(self) -> str:
        """Return an HTML page, which loads no resources; its one script chooses the language."""
        return render_html(self.title, self.lead, self.sections)

    def json(self) -> str:
        """Return JSON with all operands, also those that the other formats shorten."""
        return render_json(self.data())

    def data(self) -> dict[str, Any]:
        """Return the content of ``json`` as Python data."""
        return render_data(self.title, self.settings, self.sections, self.summary, self.notes)

    @property
    def lead(self) -> str:
        """Sentences below the title."""
        return joined(" ", [*map(as_sentence, self.notes), self.summary])

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return an HTML fragment, which notebooks show."""
        return render_fragment(self.title, self.lead, self.sections)
