"""Render the training report: one self-contained HTML page without scripts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from transom import __version__
from transom.config.recipe import dump_recipe
from transom.inspection.pages.alignment_pictures import alignment_svg
from transom.inspection.pages.attention_section import attention_section
from transom.inspection.pages.classification_section import classification_section
from transom.inspection.pages.data_section import data_section
from transom.inspection.pages.describe import PATHS_NOTE, describe_initialization, describe_layers, with_article, without_local_paths
from transom.inspection.pages.html_tables import html_table, key_value_table, scrollable
from transom.inspection.pages.line_chart import Line, line_chart
from transom.inspection.pages.markup import node, preformatted
from transom.inspection.pages.number_format import format_compact, format_count, format_duration, format_percent
from transom.inspection.pages.page import Section, render_page
from transom.inspection.pages.pattern_pictures import pattern_svg, views_to_draw
from transom.inspection.pages.run_summary import RunSummary
from transom.inspection.pages.sample_sections import SECTIONS as SAMPLES
from transom.training.validation_metrics import all_metrics, language_tags

ChartMark = tuple[float, str] | None
ChartSpec = tuple[str, list[tuple[str, str, str]], ChartMark, bool]
"""A chart: title, lines as (name, kind of record, field), marker, and whether the y axis starts at zero."""

_SCALE_FACTORS = {"matmul_utilization": 100.0}
"""Factor by which the values of a field are multiplied in charts, here to percent."""


def render_report(run: RunSummary, sections: Iterable[Section] = ()) -> str:
    """Render the training report as one HTML page.

    Text from data is escaped, control characters are replaced by visible symbols, and the content security policy forbids scripts.

    Args:
        run: summary of the run.
        sections: further sections that the run's task defines.
    """
    notes = (node("div", f"{problem[:1].upper()}{problem[1:]}.", class_="note") for problem in run.problems)
    return render_page(
        f"{run.name}: training report",
        run.name,
        ((section.anchor, section.title, section.render(run)) for section in (*RESULTS, *SAMPLES, *sections, *BACKGROUND)),
        lead=_lead(run),
        above=[_metric_cards(run), *notes, *_skipped_steps(run)],
        footer=f"Written by transom {__version__} from metrics.jsonl. This page loads no resources and runs no scripts.",
    )


def _lead(run: RunSummary) -> str:
    kind, start, width = with_article(run.recipe.task).capitalize(), describe_initialization(run.recipe), run.recipe.model.d_model
    return f"{kind} model trained {start}: {describe_layers(run.recipe)}, width {width}, {format_compact(run.n_parameters)} parameters."


def _unit(run: RunSummary) -> str:
    return run.recipe.UNIT.capitalize()


def _metric_card(name: str, value: str, *below: str) -> Element:
    return node("div", node("dt", name), node("dd", value, class_="value"), *(node("dd", line) for line in below))


def _metric_cards(run: RunSummary) -> Element:
    cards = node("dl", class_="tiles")
    cards.extend(_metric_card(score.metric, f"{score.value:.2f}", score.data) for score in run.test_scores)
    if run.best_validation is not None:
        if "bleu" in run.best_validation:
            each = [f"{tag} {_format_metric(run.best_validation, f'bleu/{tag}', 1)}" for tag in language_tags(run.best_validation)]
            cards.append(
                _metric_card(
                    "Validation BLEU",
                    _format_metric(run.best_validation, "bleu", 1),
                    *each,
                    f"chrF {_format_metric(run.best_validation, 'chrf', 1)}",
                )
            )
        kept = f"best weights: step {format_count(run.best_validation['step'])}, by {run.recipe.training.best_checkpoint_metric}"
        if "accuracy" in run.best_validation:
            cards.append(
                _metric_card("Validation accuracy", f"{_format_metric(run.best_validation, 'accuracy', 2)}%", f"of the {run.recipe.UNIT}")
            )
        measures = [f"perplexity {_format_metric(run.best_validation, 'perplexity', 2)}"] if "perplexity" in run.best_validation else []
        if "bits_per_byte" in run.best_validation:
            measures.append(f"{_format_metric(run.best_validation, 'bits_per_byte', 3)} bits per byte")
        weights = [] if run.best_weights_note is None else [run.best_weights_note]
        cards.append(_metric_card("Validation loss", _format_metric(run.best_validation, "loss", 3), *measures, kept, *weights))
    cards.append(_metric_card("Training time", format_duration(run.seconds), f"{format_count(run.n_steps)} steps"))
    if run.throughput is not None:
        fraction = () if run.matmul_utilization is None else (f"{format_percent(run.matmul_utilization, 1)} of measured peak FLOP/s",)
        cards.append(_metric_card(f"{_unit(run)} per second", format_count(run.throughput), *fraction))
    return cards


def _format_metric(record: Mapping[str, Any], key: str, digits: int) -> str:
    value = record.get(key)
    return "–" if value is None else f"{value:.{digits}f}"


def _skipped_steps(run: RunSummary) -> list[Element]:
    records = run.records_of_kind("skipped")
    if not records:
        return []
    shown = [node("li", f"step {format_count(record['step'])}: {_join_limited(record['samples'])}") for record in records[:20]]
    more = [node("li", f"and {format_count(len(records) - 20)} more")] if len(records) > 20 else []
    count = "1 step was" if len(records) == 1 else f"{format_count(len(records))} steps were"
    title = f"{count} skipped because the loss or a gradient was not finite (samples of each batch):"
    return [node("div", title, node("ul", *shown, *more), class_="note")]


def _join_limited(lines: Iterable[object], most: int = 12) -> str:
    every = list(lines)
    return ", ".join(map(str, every[:most])) + (f" and {len(every) - most} more" if len(every) > most else "")


def _scores(run: RunSummary) -> list[Element]:
    rows = [[score.metric, f"{score.value:.2f}", score.data, score.signature] for score in run.test_scores]
    return [html_table(["Metric", "Score", "Data", "Signature"], rows)] if rows else []


def _curves(run: RunSummary) -> list[Element]:
    mark = None if run.best_validation is None else (float(run.best_validation["step"]), "best")
    charts: list[ChartSpec] = [
        (
            f"Loss per {run.recipe.UNIT.removesuffix('s')}, in nats",
            [("training", "train", "nll"), ("validation", "validation", "loss")],
            mark,
            False,
        ),
        ("Bits per byte of text", [("validation", "validation", "bits_per_byte")], mark, False),
        ("Validation accuracy, in %", [("validation", "validation", "accuracy")], mark, False),
        *_task_charts(run, mark),
        ("Validation BLEU and chrF", [("BLEU", "validation", "bleu"), ("chrF", "validation", "chrf")], mark, True),
        *_language_charts(run, mark),
        ("Maximum expert load, relative to the mean", [("load", "train", "max_expert_load")], None, False),
        ("Learning rate", [("learning rate", "train", "learning_rate")], None, True),
        ("Gradient norm before clipping", [("norm", "train", "grad_norm")], None, False),
        (f"{_unit(run)} per second", [(f"{run.recipe.UNIT} per second", "train", "target_tokens_per_second")], None, True),
        ("Matmul utilization: fraction of measured peak FLOP/s, in %", [("utilization", "train", "matmul_utilization")], None, True),
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
    numbers = [(f"{name} " if len(found) > 1 else "", format_compact(y), x) for name, ((x, y),) in found.items()]
    return node("div", *(node("p", name, node("b", y), f" at step {format_count(x)}") for name, y, x in numbers))


def _task_charts(run: RunSummary, mark: ChartMark) -> list[ChartSpec]:
    """Return the charts of task-specific validation metrics."""
    titles = {each: f"Validation {each.name}{f', in {each.unit}' if each.unit else ''}" for each in run.recipe.METRICS}
    return [(title, [(each.name, "validation", each.key)], mark, False) for each, title in titles.items()]


def _language_charts(run: RunSummary, mark: ChartMark) -> list[ChartSpec]:
    """Return the charts of loss and BLEU per target language, if there are several."""
    found = language_tags(run.validations[0]) if run.validations else []
    titles = {"loss": "Validation loss by target language, in nats", "bleu": "Validation BLEU by target language"}
    return [(title, [(tag, "validation", f"{key}/{tag}") for tag in found], mark, key == "bleu") for key, title in titles.items() if found]


def _validations(run: RunSummary) -> list[Element]:
    if not run.validations:
        return []
    every = [
        (f"{figure.name} {tag}".strip(), f"{figure.key}/{tag}".strip("/"), figure.digits)
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
    summary = node("summary", "Validation metrics as a table" if len(rows) == 1 else f"All {len(rows)} validations as a table")
    return [node("details", summary, html_table(["Step", "Time", *(name for name, _, _ in columns)], rows))]


def _alignments(run: RunSummary) -> list[Element]:
    note = "Cross-attention weights: a darker cell means more attention from the target word (row) to the source word (column)."
    drawn = ((each.origin, alignment_svg(each)) for each in run.alignments)
    return _pictures(note, drawn)


def _patterns(run: RunSummary) -> list[Element]:
    """Draw the attention masks of layers that restrict attention."""
    note = "Attention masks: rows are queries, columns are keys; a filled cell is a pair that the layers attend to."
    return _pictures(note, ((view.title, pattern_svg(view)) for view in views_to_draw(run.recipe.model)))


def _pictures(note: str, drawn: Iterable[tuple[str, Element]]) -> list[Element]:
    """Render captioned figures after a note; empty without pictures."""
    figures = [node("figure", node("figcaption", caption, class_="soft"), scrollable(picture)) for caption, picture in drawn]
    return [node("p", note, class_="soft"), node("div", *figures, class_="pictures")] if figures else []


def _data(run: RunSummary) -> list[Element]:
    return data_section(run.data, training_is_ok=not run.problems)


def _time(run: RunSummary) -> list[Element]:
    speeds = sorted(speed for _, speed in run.series("train", "target_tokens_per_second") if math.isfinite(speed))
    rows = [("Training time", format_duration(run.seconds)), ("Steps", format_count(run.n_steps))]
    if run.n_steps:
        rows.append(("Time per step, validation included", f"{1000 * run.seconds / run.n_steps:,.0f} ms"))
    if run.throughput is not None:
        low, high = (speeds[round(fraction * (len(speeds) - 1))] for fraction in (0.1, 0.9))
        rows.append((f"{_unit(run)} per second, median", format_count(run.throughput)))
        rows.append(("… 10th and 90th percentile", f"{format_count(low)}, {format_count(high)}"))
    if run.matmul_utilization is not None:
        rows.append(("Matmul utilization, median", format_percent(run.matmul_utilization, 1)))
    rows.append(("Steps skipped", format_count(len(run.records_of_kind("skipped")))))
    machine: Sequence[Element] = [node("ul", *(node("li", line) for line in run.machine_notes))] if run.machine_notes else []
    return [node("div", node("div", key_value_table(rows)), node("div", *machine), class_="columns")]


def _recipe(run: RunSummary) -> list[Element]:
    return [node("p", f"{PATHS_NOTE}."), preformatted(dump_recipe(without_local_paths(run.recipe)))]


RESULTS = (Section("scores", "Scores", _scores), Section("curves", "Curves", _curves))
BACKGROUND = (
    Section("classification", "Classification", classification_section),
    Section("alignment", "Alignment", _alignments),
    Section("attention", "Attention", attention_section),
    Section("patterns", "Attention patterns", _patterns),
    Section("data", "Data", _data),
    Section("time", "Time and throughput", _time),
    Section("recipe", "Recipe", _recipe),
)
"""Sections of every report: ``RESULTS`` before the sample predictions, ``BACKGROUND`` after them."""
