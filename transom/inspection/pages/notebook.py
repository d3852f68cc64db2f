"""Render results as HTML fragments for notebooks, without scripts and with styles that affect nothing else on the page."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import singledispatch
from importlib import resources
from typing import Any
from xml.etree.ElementTree import Element

from transom.decoding.predictors.classifier import ClassPrediction
from transom.decoding.predictors.fill_mask import MaskPredictions
from transom.decoding.predictors.generator import Continuation
from transom.decoding.predictors.multi_label import LabelsPrediction
from transom.decoding.predictors.results import Alignment, Results
from transom.decoding.predictors.translator import Translation
from transom.inspection.pages.alignment_pictures import alignment_svg, alignment_text
from transom.inspection.pages.markup import Child, escape_control_characters, node, to_html, without_codes
from transom.inspection.pages.number_format import format_count, format_percent
from transom.training.validation_metrics import all_metrics, language_tags

__all__ = ["alignment_text", "bars", "draw", "facts", "framed", "progress_bar", "tagged", "to_notebook", "validation_table"]

MAX_CLASSES = 10
"""Maximum number of classes whose probability is drawn; a line below states the number of other classes."""

FILLS = {"cell": "#0b4f8a", "field": "#f4f2ec"}
"""Fill colors by CSS class, for notebook viewers that drop style sheets; where style sheets work, their colors apply."""

MAX_RESULTS = 25
"""Maximum number of results of a list that are drawn; a line below states the number of other results."""


def to_notebook(result: object) -> str:
    """Return an HTML fragment, with its styles, that shows a result."""
    return framed(draw(result))


@singledispatch
def draw(result: object) -> list[Element]:
    """Return the HTML elements that show a result.

    They come from the function registered below for the type of the result, from its method ``elements``, or from its text.
    """
    elements: Callable[[], list[Element]] | None = getattr(result, "elements", None)
    return [node("p", str(result), class_="text")] if elements is None else elements()


@draw.register(Results)
def _(result: Results[Any]) -> list[Element]:
    drawn = [part for number, each in enumerate(result[:MAX_RESULTS]) for part in ([node("hr")] * bool(number) + draw(each))]
    rest = len(result) - MAX_RESULTS
    return [*drawn, node("p", f"and {format_count(rest)} more", class_="soft")] if rest > 0 else drawn


@draw.register(list)
def _(result: list[Any]) -> list[Element]:
    return [part for each in result for part in draw(each)]


@draw.register
def _(result: Alignment) -> list[Element]:
    picture = alignment_svg(result)
    for element in picture.iter():
        if (fill := FILLS.get(element.get("class", ""))) is not None:
            element.set("fill", fill)
    return [picture, node("p", f"attention weights of {result.origin}", class_="soft")]


@draw.register
def _(result: Translation) -> list[Element]:
    score = f"log-probability {result.log_p:.2f} nats, score {result.score:.2f}"
    pieces = f"; translated in {result.pieces} pieces" if result.pieces > 1 else ""
    picture = [] if result.alignment is None else draw(result.alignment)
    return [node("p", result.text, class_="lead text", dir="auto"), node("p", f"{score}{pieces}", class_="soft"), *picture]


@draw.register(ClassPrediction)
@draw.register(LabelsPrediction)
def _(result: ClassPrediction | LabelsPrediction) -> list[Element]:
    rest, dropped = len(result.probabilities) - MAX_CLASSES, result.n_dropped_tokens
    notes = [f"predicted: {result}"] if isinstance(result, LabelsPrediction) else []
    notes += [f"and {format_count(rest)} less probable classes"] if rest > 0 else []
    notes += [f"mean over {format_count(result.windows)} windows"] if result.windows > 1 else []
    notes += [f"{format_count(dropped)} tokens beyond the context window were not read"] if dropped else []
    return [bars(list(result.probabilities.items())[:MAX_CLASSES]), *(node("p", note, class_="soft") for note in notes)]


@draw.register
def _(result: MaskPredictions) -> list[Element]:
    drawn = list[Element]()
    for number, gap in enumerate(result.masks, 1):
        title = [node("p", f"mask {number}", class_="soft")] if len(result.masks) > 1 else []
        drawn += [*title, bars([(guess.text, guess.p) for guess in gap])]
    return drawn


@draw.register
def _(result: Continuation) -> list[Element]:
    details = f"{format_count(result.n_tokens)} tokens, ended by {ENDINGS[result.finish_reason]}"
    if not result.probabilities:
        return [node("p", result.text, class_="text", dir="auto"), node("p", details, class_="soft")]
    tokens = [_token(text, p) for text, p in zip(result.tokens, result.probabilities, strict=True)]
    key = [node("span", class_="token key", style=_shade(p)) for p in (0.1, 0.4, 0.7, 1.0)]
    legend = node("p", f"{details}; probability 0 ", *key, " 1", class_="soft")
    return [node("p", *tokens, class_="text", dir="auto"), legend]


ENDINGS = {"end": "the model", "stop": "a stop text", "length": "the limit of new tokens"}
"""Reasons for the end of a generated text, in words."""


def _token(text: str, p: float) -> Element:
    element = node("span", title=f"{text}: {format_percent(p, 1)}", class_="token", style=_shade(p))
    element.text = "\n".join(map(escape_control_characters, text.split("\n")))
    return element


def _shade(p: float) -> str:
    """Return the background of a token of probability ``p``: a blue that is legible on light and on dark pages."""
    return f"background: rgba(64, 132, 200, {0.55 * min(max(p, 0.0), 1.0):.3f})"


def bars(rows: Sequence[tuple[str, float]]) -> Element:
    """Draw probabilities as horizontal bars, one row each."""
    return node(
        "table",
        *(
            node(
                "tr",
                node("td", name, class_="lead" if number == 0 else None, dir="auto"),
                node("td", node("span", node("span", class_="fill", style=f"width:{100 * p:.1f}%"), class_="track")),
                node("td", format_percent(p, 1), class_="number"),
            )
            for number, (name, p) in enumerate(rows)
        ),
    )


def tagged(words: Iterable[tuple[str, str | None, str]]) -> Element:
    """Draw words in order, those with a tag highlighted.

    Args:
        words: each word with its tag (None for no highlight) and its tooltip.
    """
    parts = list[Child]()
    for word, tag, title in words:
        label = None if tag is None else node("span", tag, class_="soft")
        parts += [node("span", word, label, title=title, class_=None if tag is None else "entity"), " "]
    return node("p", *parts, dir="auto", class_="text")


def facts(rows: Iterable[tuple[str, str]]) -> Element:
    """Return an HTML table with one name and value per row."""
    return node("table", *(node("tr", node("th", name), node("td", value, class_="text", dir="auto")) for name, value in rows))


def progress_bar(fraction: float) -> Element:
    """Return a horizontal bar of which a fraction, from 0 to 1, is filled."""
    return node("span", node("span", class_="fill", style=f"width:{100 * fraction:.1f}%"), class_="track wide")


def validation_table(rows: Sequence[tuple[int, Mapping[str, float], bool]]) -> list[Element]:
    """Return a table of validation metrics and a caption; an empty list without validations.

    Args:
        rows: of each validation, the step, the metrics by key, and whether it was the best so far.
    """
    if not rows:
        return []
    keys = {key for _, figures, _ in rows for key in figures}
    endings = ["", *(f"/{tag}" for tag in language_tags(dict.fromkeys(keys)))]
    columns = [(metric, ending) for ending in endings for metric in all_metrics() if metric.key + ending in keys]
    titles = [f"{metric.name}{ending.replace('/', ' ')}{f' ({metric.unit})' if metric.unit else ''}" for metric, ending in columns]
    best = max((number for number, row in enumerate(rows) if row[2]), default=-1)
    head = node("tr", *(node("th", title, class_="number") for title in ("step", *titles)))
    body = [
        node(
            "tr",
            node("td", format_count(step), class_="number"),
            *(
                node("td", f"{value:.{metric.digits}f}" if (value := figures.get(metric.key + ending)) is not None else "", class_="number")
                for metric, ending in columns
            ),
            class_="best" if number == best else None,
        )
        for number, (step, figures, _) in enumerate(rows)
    ]
    return [node("table", head, *body), node("p", "validation; the best so far is bold", class_="soft")]


def framed(content: Iterable[Child], notes: Iterable[str] = ()) -> str:
    """Return an HTML fragment of the elements, with their styles and, in small print below, the notes."""
    fragment = node("div", scoped_style(), *content, *(node("p", line, class_="soft") for line in notes), class_="transom")
    return to_html(without_codes(fragment))


def scoped_style() -> Element:
    """Return the style sheets of colors, pictures and notebooks; no rule applies outside of ``div.transom``."""
    colors, pictures, own = (
        (resources.files(__package__) / f"{name}.css").read_text("utf-8") for name in ("colors", "pictures", "notebook")
    )
    scoped = re.sub(r"([^{}]+)\{", lambda rule: f"\n{', '.join(f'div.transom {part.strip()}' for part in rule[1].split(','))} {{", pictures)
    element = Element("style")
    element.text = f"{colors.replace(':root', 'div.transom')}{scoped}\n{own}"
    return element
