"""A hand calculation as an HTML page, and as a fragment for notebooks."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from transom.inspection.explain.notation import Typeset
from transom.inspection.explain.render_text import grouped
from transom.inspection.explain.steps import Calculation, Note, Section, Step, Values
from transom.inspection.messages.tables import message
from transom.inspection.pages.markup import node
from transom.inspection.pages.notebook import framed
from transom.inspection.pages.page import render_page

N_OPEN = 3
"""Sections of a fragment that are open at first; on a page all are open."""


def render_html(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return a page with a collapsible part per section; every calculation is an element of class ``step``."""
    parts = [(f"part-{number}", section.title, [_collapsible(section)]) for number, section in enumerate(sections, 1)]
    return render_page(title, title, parts, lead, styles=("explain",))


def render_fragment(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return an HTML fragment with its own styles."""
    parts = (
        node("details", node("summary", section.title), *_steps(section), open="" if number < N_OPEN else None)
        for number, section in enumerate(sections)
    )
    return framed([node("p", title, class_="lead text"), *parts], [lead])


def _collapsible(section: Section) -> Element:
    """Return the steps of a section below a summary."""
    n = sum(isinstance(step, Calculation) for step in section.steps)
    return node("details", node("summary", message("explain.steps", n=n)), *_steps(section), open="")


def _steps(section: Section) -> list[Element]:
    """Return the elements of the steps, each formula once."""
    elements = list[Element]()
    for formula, step in grouped(section.steps):
        if formula:
            elements.append(node("p", formula, class_="formula"))
        elements.append(_step(step))
    return elements


def _step(step: Step) -> Element:
    """Return the element of a step."""
    if isinstance(step, Note):
        return node("p", step.text, class_="check good" if step.kind == "check" else "soft")
    if isinstance(step, Values):
        return node("p", node("code", step.label), ", ", step.formula, ": ", node("code", step.write(Typeset())), class_="given")
    expression, result = step.typeset()
    parts = node("span", step.label, class_="label"), " = ", node("span", expression, class_="expression"), " = ", node("b", result)
    return node("p", *parts, class_="step")
