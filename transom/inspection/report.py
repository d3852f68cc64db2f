"""Training report: one self-contained HTML page without scripts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from transom import __version__
from transom.config.recipe import dump_recipe
from transom.inspection.curves import Line, line_chart
from transom.inspection.data_section import data_section
from transom.inspection.describe import PORTABLE, article, layers_in_short, origin, portable
from transom.inspection.facts import Facts
from transom.inspection.figures import compact, duration, percent, whole
from transom.inspection.markup import node, preformatted
from transom.inspection.page import Section, page
from transom.inspection.patterns import pattern_picture, shown_views
from transom.inspection.pictures import alignment_picture
from transom.inspection.samples import SECTIONS as SAMPLES
from transom.inspection.tables import facts_table, scrolled, table
from transom.training.figures import metrics, tags

Mark = tuple[float, str] | None
Panel = tuple[str, list[tuple[str, str, str]], Mark, bool]
"""A chart: title, lines as (name, kind of record, field), marker, and whether the y axis starts at zero."""

_UNITS = {"peak_share": 100.0}
"""Factor from a field's value to the drawn value."""


def report(facts: Facts, sections: Iterable[Section] = ()) -> str:
    """Render the training report as one HTML page.

    Text from data is escaped, control characters are replaced by visible symbols, and the content security policy forbids scripts.

    Args:
        facts: summary of the run.
        sections: additional sections of the task.
    """
    notes = (node("div", f"{problem[:1].upper()}{problem[1:]}.", class_="note") for problem in facts.problems)
    return page(
        f"{facts.name}: training report",
        facts.name,
        ((section.anchor, section.title, section.render(facts)) for section in (*RESULTS, *SAMPLES, *sections, *BACKGROUND)),
        lead=_lead(facts),
        above=[_tiles(facts), *notes, *_skipped(facts)],
        footer=f"Written by transom {__version__} from metrics.jsonl. This page loads no resources and runs no scripts.",
    )


def _lead(facts: Facts) -> str:
    kind, start, width = article(facts.recipe.task).capitalize(), origin(facts.recipe), facts.recipe.model.d_model
    return f"{kind} model trained {start}: {layers_in_short(facts.recipe)}, width {width}, {compact(facts.n_parameters)} parameters."


def _counted(facts: Facts) -> str:
    return facts.recipe.COUNTED.capitalize()


def _tile(name: str, value: str, *below: str) -> Element:
    return node("div", node("dt", name), node("dd", value, class_="value"), *(node("dd", line) for line in below))


def _tiles(facts: Facts) -> Element:
    tiles = node("dl", class_="tiles")
    tiles.extend(_tile(score.metric, f"{score.value:.2f}", score.data) for score in facts.scores)
    if facts.kept is not None:
        if "bleu" in facts.kept:
            each = [f"{tag} {_figure(facts.kept, f'bleu/{tag}', 1)}" for tag in tags(facts.kept)]
            tiles.append(_tile("Validation BLEU", _figure(facts.kept, "bleu", 1), *each, f"chrF {_figure(facts.kept, 'chrf', 1)}"))
        kept = f"best weights: step {whole(facts.kept['step'])}, by {facts.recipe.training.select_by}"
        if "accuracy" in facts.kept:
            tiles.append(_tile("Validation accuracy", f"{_figure(facts.kept, 'accuracy', 2)} %", f"of the {facts.recipe.COUNTED}"))
        measures = [f"perplexity {_figure(facts.kept, 'perplexity', 2)}"] if "perplexity" in facts.kept else []
        if "bits_per_byte" in facts.kept:
            measures.append(f"{_figure(facts.kept, 'bits_per_byte', 3)} bits per byte")
        weights = [] if facts.kept_weights is None else [facts.kept_weights]
        tiles.append(_tile("Validation loss", _figure(facts.kept, "loss", 3), *measures, kept, *weights))
    tiles.append(_tile("Training time", duration(facts.seconds), f"{whole(facts.steps)} steps"))
    if facts.throughput is not None:
        share = () if facts.peak_share is None else (f"{percent(facts.peak_share, 1)} of measured peak FLOP/s",)
        tiles.append(_tile(f"{_counted(facts)} per second", whole(facts.throughput), *share))
    return tiles


def _figure(record: Mapping[str, Any], key: str, digits: int) -> str:
    value = record.get(key)
    return "–" if value is None else f"{value:.{digits}f}"


def _skipped(facts: Facts) -> list[Element]:
    records = facts.of_kind("skipped")
    if not records:
        return []
    shown = [node("li", f"step {whole(record['step'])}: {_listed(record['places'])}") for record in records[:20]]
    more = [node("li", f"and {whole(len(records) - 20)} more")] if len(records) > 20 else []
    count = "1 step was" if len(records) == 1 else f"{whole(len(records))} steps were"
    title = f"{count} skipped because the loss or a gradient was not finite (samples of each batch):"
    return [node("div", title, node("ul", *shown, *more), class_="note")]


def _listed(lines: Iterable[object], most: int = 12) -> str:
    every = list(lines)
    return ", ".join(map(str, every[:most])) + (f" and {len(every) - most} more" if len(every) > most else "")


def _scores(facts: Facts) -> list[Element]:
    rows = [[score.metric, f"{score.value:.2f}", score.data, score.signature] for score in facts.scores]
    return [scrolled(table(["Metric", "Score", "Data", "Signature"], rows))] if rows else []


def _curves(facts: Facts) -> list[Element]:
    mark = None if facts.kept is None else (float(facts.kept["step"]), "best")
    panels: list[Panel] = [
        (
            f"Loss per {facts.recipe.COUNTED.removesuffix('s')}, in nats",
            [("training", "train", "nll"), ("validation", "validation", "loss")],
            mark,
            False,
        ),
        ("Bits per byte of text", [("validation", "validation", "bits_per_byte")], mark, False),
        ("Validation accuracy, in %", [("validation", "validation", "accuracy")], mark, False),
        *_of_task(facts, mark),
        ("Validation BLEU and chrF", [("BLEU", "validation", "bleu"), ("chrF", "validation", "chrf")], mark, True),
        *_of_languages(facts, mark),
        ("Maximum expert load, relative to the mean", [("load", "train", "expert_load")], None, False),
        ("Learning rate", [("learning rate", "train", "learning_rate")], None, True),
        ("Gradient norm before clipping", [("norm", "train", "grad_norm")], None, False),
        (f"{_counted(facts)} per second", [(f"{facts.recipe.COUNTED} per second", "train", "target_tokens_per_second")], None, True),
        ("Matmul utilization: fraction of measured peak FLOP/s, in %", [("utilization", "train", "peak_share")], None, True),
    ]
    figures = []
    for title, fields, at, from_zero in panels:
        lines = [Line(name, [(x, y * _UNITS.get(key, 1)) for x, y in facts.series(kind, key)]) for name, kind, key in fields]
        drawn = [line for line in lines if any(math.isfinite(y) for _, y in line.points)]
        if drawn:
            figures.append(node("figure", node("h3", title), line_chart(title, drawn, mark=at, from_zero=from_zero)))
    return [node("div", *figures, class_="curves"), *_validations(facts)] if figures else []


def _of_task(facts: Facts, mark: Mark) -> list[Panel]:
    """Return the charts of task-specific validation metrics."""
    titles = {each: f"Validation {each.name}{f', in {each.unit}' if each.unit else ''}" for each in facts.recipe.METRICS}
    return [(title, [(each.name, "validation", each.key)], mark, False) for each, title in titles.items()]


def _of_languages(facts: Facts, mark: Mark) -> list[Panel]:
    """Return the charts of loss and BLEU per target language, if there are several."""
    found = tags(facts.validations[0]) if facts.validations else []
    titles = {"loss": "Validation loss by target language, in nats", "bleu": "Validation BLEU by target language"}
    return [(title, [(tag, "validation", f"{key}/{tag}") for tag in found], mark, key == "bleu") for key, title in titles.items() if found]


def _validations(facts: Facts) -> list[Element]:
    if not facts.validations:
        return []
    every = [
        (f"{figure.name} {tag}".strip(), f"{figure.key}/{tag}".strip("/"), figure.digits)
        for tag in ("", *tags(facts.validations[0]))
        for figure in metrics()
    ]
    columns = [column for column in every if any(column[1] in record for record in facts.validations)]
    rows = [
        [whole(record["step"]), duration(record["seconds"]), *(_figure(record, key, digits) for _, key, digits in columns)]
        for record in facts.validations
    ]
    summary = node("summary", "Validation metrics as a table" if len(rows) == 1 else f"All {len(rows)} validations as a table")
    return [node("details", summary, scrolled(table(["Step", "Time", *(name for name, _, _ in columns)], rows)))]


def _alignments(facts: Facts) -> list[Element]:
    note = "Cross-attention weights: a darker cell means more attention from the target word (row) to the source word (column)."
    drawn = ((each.origin, node("div", alignment_picture(each), class_="scroll", tabindex=0)) for each in facts.alignments)
    return _pictures(note, drawn)


def _patterns(facts: Facts) -> list[Element]:
    """Draw the attention masks of layers that restrict attention."""
    note = "Attention masks: rows are queries, columns are keys; a filled cell is a pair that the layers attend to."
    return _pictures(note, ((view.title, pattern_picture(view)) for view in shown_views(facts.recipe.model)))


def _pictures(note: str, drawn: Iterable[tuple[str, Element]]) -> list[Element]:
    """Render captioned figures after a note; empty without pictures."""
    figures = [node("figure", node("figcaption", caption, class_="soft"), picture) for caption, picture in drawn]
    return [node("p", note, class_="soft"), node("div", *figures, class_="pictures")] if figures else []


def _data(facts: Facts) -> list[Element]:
    return data_section(facts.data, trained_well=not facts.problems)


def _time(facts: Facts) -> list[Element]:
    speeds = sorted(speed for _, speed in facts.series("train", "target_tokens_per_second") if math.isfinite(speed))
    rows = [("Training time", duration(facts.seconds)), ("Steps", whole(facts.steps))]
    if facts.steps:
        rows.append(("Time per step, validation included", f"{1000 * facts.seconds / facts.steps:,.0f} ms"))
    if facts.throughput is not None:
        low, high = (speeds[round(share * (len(speeds) - 1))] for share in (0.1, 0.9))
        rows.append((f"{_counted(facts)} per second, median", whole(facts.throughput)))
        rows.append(("… 10th and 90th percentile", f"{whole(low)}, {whole(high)}"))
    if facts.peak_share is not None:
        rows.append(("Matmul utilization, median", percent(facts.peak_share, 1)))
    rows.append(("Steps skipped", whole(len(facts.of_kind("skipped")))))
    machine: Sequence[Element] = [node("ul", *(node("li", line) for line in facts.machine))] if facts.machine else []
    return [node("div", node("div", facts_table(rows)), node("div", *machine), class_="columns")]


def _recipe(facts: Facts) -> list[Element]:
    return [node("p", f"{PORTABLE}."), preformatted(dump_recipe(portable(facts.recipe)))]


RESULTS = (Section("scores", "Scores", _scores), Section("curves", "Curves", _curves))
BACKGROUND = (
    Section("alignment", "Alignment", _alignments),
    Section("patterns", "Attention patterns", _patterns),
    Section("data", "Data", _data),
    Section("time", "Time and throughput", _time),
    Section("recipe", "Recipe", _recipe),
)
"""Sections of every report, before and after the samples of the best weights' predictions."""
