"""Render the training report: one self-contained HTML page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from transom import __version__
from transom.config.recipe import Metric, dump_recipe
from transom.files.message import as_sentence, joined
from transom.inspection.messages.tables import message, message_or
from transom.inspection.pages.alignment_pictures import alignment_svg
from transom.inspection.pages.attention_section import attention_section
from transom.inspection.pages.classification_section import classification_section
from transom.inspection.pages.data_section import data_section
from transom.inspection.pages.describe import (
    describe_initialization,
    describe_layers,
    describe_model_kind,
    paths_note,
    unit,
    without_local_paths,
)
from transom.inspection.pages.html_tables import html_table, key_value_table, scrollable
from transom.inspection.pages.line_chart import Line, line_chart
from transom.inspection.pages.markup import node, preformatted
from transom.inspection.pages.number_format import format_compact, format_count, format_duration, format_percent
from transom.inspection.pages.page import Section, render_page
from transom.inspection.pages.pattern_pictures import pattern_svg, views_to_draw
from transom.inspection.pages.run_summary import MetricsRecord, RunSummary
from transom.inspection.pages.sample_sections import SECTIONS as SAMPLES
from transom.training.validation_metrics import all_metrics, language_tags

ChartMark = tuple[float, str] | None
ChartSpec = tuple[str, list[tuple[str, str, str]], ChartMark, bool]
"""A chart: title, lines as (name, kind of record, field), marker, and whether the y axis starts at zero."""

_SCALE_FACTORS = {"matmul_utilization": 100.0}
"""Factor by which the values of a field are multiplied in charts, here to percent."""


def render_report(run: RunSummary, sections: Iterable[Section] = ()) -> str:
    """Render the training report as one HTML page.

    Text from data is escaped, control characters are replaced by visible symbols, and the content security policy forbids all scripts
    but the one that shows the page in another language.

    Args:
        run: summary of the run.
        sections: further sections that the run's task defines.
    """
    notes = (node("div", as_sentence(problem), class_="note") for problem in run.problems)
    return render_page(
        message("title", name=run.name),
        run.name,
        ((section.anchor, section.title, section.render(run)) for section in (*RESULTS, *SAMPLES, *sections, *BACKGROUND)),
        lead=_lead(run),
        above=[_metric_cards(run), *notes, *_skipped_steps(run)],
        footer=message("footer", version=__version__),
    )


def _lead(run: RunSummary) -> str:
    return message(
        "lead",
        model=describe_model_kind(run.recipe),
        start=describe_initialization(run.recipe),
        layers=describe_layers(run.recipe),
        width=str(run.recipe.model.d_model),
        parameters=format_compact(run.n_parameters),
    )


def _per_second(run: RunSummary) -> str:
    """Return the heading of the throughput."""
    return message("per_second", unit=unit(run.recipe, "title"))


def metric_name(metric: Metric) -> str:
    """Return the name of a validation metric; that of a plugin's metric is its own."""
    return message_or(f"metrics.{metric.key}", metric.name)


def _metric_card(name: str, value: str, *below: str) -> Element:
    return node("div", node("dt", name), node("dd", value, class_="value"), *(node("dd", line) for line in below))


def _metric_cards(run: RunSummary) -> Element:
    cards = node("dl", class_="tiles")
    cards.extend(_metric_card(score.metric, f"{score.value:.2f}", score.data) for score in run.test_scores)
    if run.best_validation is not None:
        if "bleu" in run.best_validation:
            each = [f"{tag} {_format_metric(run.best_validation, f'bleu/{tag}', 1)}" for tag in language_tags(run.best_validation)]
            chrf = joined(" ", [message("metrics.chrf"), _format_metric(run.best_validation, "chrf", 1)])
            cards.append(_metric_card(message("cards.bleu"), _format_metric(run.best_validation, "bleu", 1), *each, chrf))
        if "accuracy" in run.best_validation:
            accuracy = f"{_format_metric(run.best_validation, 'accuracy', 2)}%"
            cards.append(_metric_card(message("cards.accuracy"), accuracy, unit(run.recipe, "of_the")))
        cards.append(_loss_card(run, run.best_validation))
    cards.append(_metric_card(message("time.training"), format_duration(run.seconds), message("cards.steps", n=run.n_steps)))
    if run.throughput is not None:
        utilization = run.matmul_utilization
        fraction = () if utilization is None else (message("cards.of_peak", fraction=format_percent(utilization, 1)),)
        cards.append(_metric_card(_per_second(run), format_count(run.throughput), *fraction))
    return cards


def _loss_card(run: RunSummary, best: MetricsRecord) -> Element:
    measures = [message("cards.perplexity", value=_format_metric(best, "perplexity", 2))] if "perplexity" in best else []
    if "bits_per_byte" in best:
        measures.append(message("cards.bits_per_byte", value=_format_metric(best, "bits_per_byte", 3)))
    chosen_by = run.recipe.training.best_checkpoint_metric
    kept = message("cards.best_weights", step=int(best["step"]), metric=message_or(f"metrics.{chosen_by}", chosen_by))
    weights = [] if run.best_weights_note is None else [run.best_weights_note]
    return _metric_card(message("cards.loss"), _format_metric(best, "loss", 3), *measures, kept, *weights)


def _format_metric(record: Mapping[str, Any], key: str, digits: int) -> str:
    value = record.get(key)
    return "–" if value is None else f"{value:.{digits}f}"


def _skipped_steps(run: RunSummary) -> list[Element]:
    records = run.records_of_kind("skipped")
    if not records:
        return []
    shown = [
        node("li", message("skipped.step", step=int(record["step"]), samples=_join_limited(record["samples"]))) for record in records[:20]
    ]
    more = [node("li", message("skipped.more", n=len(records) - 20))] if len(records) > 20 else []
    return [node("div", message("skipped.steps", n=len(records)), node("ul", *shown, *more), class_="note")]


def _join_limited(lines: Iterable[object], most: int = 12) -> str:
    every = list(lines)
    first = ", ".join(map(str, every[:most]))
    return message("skipped.samples", samples=first, n=len(every) - most) if len(every) > most else first


def _scores(run: RunSummary) -> list[Element]:
    rows = [[score.metric, f"{score.value:.2f}", score.data, score.signature] for score in run.test_scores]
    return [html_table([message(f"scores.{column}") for column in ("metric", "score", "data", "signature")], rows)] if rows else []


def _curves(run: RunSummary) -> list[Element]:
    mark = None if run.best_validation is None else (float(run.best_validation["step"]), message("charts.best"))
    charts: list[ChartSpec] = [
        (
            message("charts.loss", unit=unit(run.recipe, "one")),
            [(message("charts.training"), "train", "nll"), (message("charts.validation"), "validation", "loss")],
            mark,
            False,
        ),
        (message("charts.bits_per_byte"), [(message("charts.validation"), "validation", "bits_per_byte")], mark, False),
        (message("charts.accuracy"), [(message("charts.validation"), "validation", "accuracy")], mark, False),
        *_task_charts(run, mark),
        (
            message("charts.bleu_and_chrf"),
            [(message("metrics.bleu"), "validation", "bleu"), (message("metrics.chrf"), "validation", "chrf")],
            mark,
            True,
        ),
        *_language_charts(run, mark),
        (message("charts.expert_load"), [(message("charts.load"), "train", "max_expert_load")], None, False),
        (message("charts.learning_rate"), [(message("charts.rate"), "train", "learning_rate")], None, True),
        (message("charts.gradient_norm"), [(message("charts.norm"), "train", "grad_norm")], None, False),
        (_per_second(run), [(message("per_second", unit=unit(run.recipe, "many")), "train", "target_tokens_per_second")], None, True),
        (message("charts.matmul_utilization"), [(message("charts.utilization"), "train", "matmul_utilization")], None, True),
    ]
    figures = []
    for title, fields, at, from_zero in charts:
        lines = [Line(name, [(x, y * _SCALE_FACTORS.get(key, 1)) for x, y in run.series(kind, key)]) for name, kind, key in fields]
        if drawn := [line for line in lines if any(math.isfinite(y) for _, y in line.points)]:
            figures.append(node("figure", node("h3", title), _chart_or_number(title, drawn, at, from_zero, run.n_steps)))
    return [node("div", *figures, class_="curves"), *_validations(run)] if figures else []


def _chart_or_number(title: str, lines: Sequence[Line], mark: ChartMark, from_zero: bool, n_steps: int) -> Element:
    """Draw a chart from step 0 to the last step; if there is nothing to connect, write the values as numbers."""
    found = {line.name: [(x, y) for x, y in line.points if math.isfinite(y)] for line in lines}
    if any(len(points) > 1 for points in found.values()):
        return line_chart(title, lines, mark=mark, from_zero=from_zero, x_range=(0, n_steps))
    numbers = [(joined("", [name, " "]) if len(found) > 1 else "", format_compact(y), x) for name, ((x, y),) in found.items()]
    return node(
        "div",
        *(node("p", name, node("b", y), joined("", [" ", message("charts.at_step", step=format_count(x))])) for name, y, x in numbers),
    )


def _task_charts(run: RunSummary, mark: ChartMark) -> list[ChartSpec]:
    """Return the charts of task-specific validation metrics."""
    named = [(each, metric_name(each)) for each in run.recipe.METRICS]
    return [
        (
            message("charts.metric_in", metric=name, unit=each.unit) if each.unit else message("charts.metric", metric=name),
            [(name, "validation", each.key)],
            mark,
            False,
        )
        for each, name in named
    ]


def _language_charts(run: RunSummary, mark: ChartMark) -> list[ChartSpec]:
    """Return the charts of loss and BLEU per target language, if there are several."""
    found = language_tags(run.validations[0]) if run.validations else []
    titles = {"loss": message("charts.loss_by_language"), "bleu": message("charts.bleu_by_language")}
    return [(title, [(tag, "validation", f"{key}/{tag}") for tag in found], mark, key == "bleu") for key, title in titles.items() if found]


def _validations(run: RunSummary) -> list[Element]:
    if not run.validations:
        return []
    every = [
        (joined(" ", [metric_name(figure), tag]) if tag else metric_name(figure), f"{figure.key}/{tag}".strip("/"), figure.digits)
        for tag in ("", *language_tags(run.validations[0]))
        for figure in all_metrics()
    ]
    columns = [column for column in every if any(column[1] in record for record in run.validations)]
    rows = [
        [
            format_count(record["step"]),
            format_duration(record["seconds"]),
            *(_format_metric(record, key, digits) for _, key, digits in columns),
        ]
        for record in run.validations
    ]
    summary = node("summary", message("validations.title", n=len(rows)))
    head = [message("validations.step"), message("validations.time"), *(name for name, _, _ in columns)]
    return [node("details", summary, html_table(head, rows))]


def _alignments(run: RunSummary) -> list[Element]:
    drawn = ((each.origin, alignment_svg(each)) for each in run.alignments)
    return _pictures(message("alignment.note"), drawn)


def _patterns(run: RunSummary) -> list[Element]:
    """Draw the attention masks of layers that restrict attention."""
    return _pictures(message("patterns.note"), ((view.title, pattern_svg(view)) for view in views_to_draw(run.recipe.model)))


def _pictures(note: str, drawn: Iterable[tuple[str, Element]]) -> list[Element]:
    """Render captioned figures after a note; empty without pictures."""
    figures = [node("figure", node("figcaption", caption, class_="soft"), scrollable(picture)) for caption, picture in drawn]
    return [node("p", note, class_="soft"), node("div", *figures, class_="pictures")] if figures else []


def _data(run: RunSummary) -> list[Element]:
    return data_section(run.data, training_is_ok=not run.problems)


def _time(run: RunSummary) -> list[Element]:
    speeds = sorted(speed for _, speed in run.series("train", "target_tokens_per_second") if math.isfinite(speed))
    rows = [(message("time.training"), format_duration(run.seconds)), (message("time.steps"), format_count(run.n_steps))]
    if run.n_steps:
        rows.append((message("time.per_step"), f"{1000 * run.seconds / run.n_steps:,.0f} ms"))
    if run.throughput is not None:
        low, high = (speeds[round(fraction * (len(speeds) - 1))] for fraction in (0.1, 0.9))
        rows.append((message("time.median_per_second", unit=unit(run.recipe, "title")), format_count(run.throughput)))
        rows.append((message("time.percentiles"), f"{format_count(low)}, {format_count(high)}"))
    if run.matmul_utilization is not None:
        rows.append((message("time.utilization"), format_percent(run.matmul_utilization, 1)))
    rows.append((message("time.skipped"), format_count(len(run.records_of_kind("skipped")))))
    rows += [
        (message("time.halved"), message("time.halved_step", step=int(record["step"]), parts=int(record["n_splits"])))
        for record in run.records_of_kind("halved")
    ]
    machine: Sequence[Element] = [node("ul", *(node("li", line) for line in run.machine_notes))] if run.machine_notes else []
    return [node("div", node("div", key_value_table(rows)), node("div", *machine), class_="columns")]


def _recipe(run: RunSummary) -> list[Element]:
    return [node("p", as_sentence(paths_note())), preformatted(dump_recipe(without_local_paths(run.recipe)))]


RESULTS = (Section("scores", message("sections.scores"), _scores), Section("curves", message("sections.curves"), _curves))
BACKGROUND = (
    Section("classification", message("sections.classification"), classification_section),
    Section("alignment", message("sections.alignment"), _alignments),
    Section("attention", message("sections.attention"), attention_section),
    Section("patterns", message("sections.patterns"), _patterns),
    Section("data", message("sections.data"), _data),
    Section("time", message("sections.time"), _time),
    Section("recipe", message("sections.recipe"), _recipe),
)
"""Sections of every report: ``RESULTS`` before the sample predictions, ``BACKGROUND`` after them."""
