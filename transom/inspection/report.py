"""The report of a training run: one HTML page that needs no network and runs no script."""

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any
from xml.etree.ElementTree import Element

from transom import __version__
from transom.config.recipe import TextRecipe, dump_recipe
from transom.inspection.curves import Line, line_chart
from transom.inspection.data_section import data_section
from transom.inspection.describe import PORTABLE, article, layers_in_short, origin, portable
from transom.inspection.facts import Facts
from transom.inspection.figures import compact, duration, percent, whole
from transom.inspection.markup import node, page, preformatted
from transom.inspection.patterns import pattern_picture, shown_views
from transom.inspection.pictures import alignment_picture
from transom.inspection.style import COLOURS, PAGE, PICTURES
from transom.inspection.tables import facts_table, table
from transom.training.figures import VALIDATED, tags

Mark = tuple[float, str] | None
Panel = tuple[str, list[tuple[str, str, str]], Mark, bool]
"""A chart: its title, lines (name, kind of record, field), what is marked, and whether its axis begins at zero."""

_UNITS = {"peak_share": 100.0}
"""What a field is multiplied by to be drawn."""


def report(facts: Facts) -> str:
    """Write the report of a run as one HTML page.

    All text from the data is escaped, control characters are shown rather than obeyed, and the page's own policy forbids scripts.
    """
    sections = [
        ("scores", "Scores", _scores(facts)),
        ("curves", "Curves", _curves(facts)),
        ("translations", "Translations", _translations(facts)),
        ("continuations", "Continuations", _continuations(facts)),
        ("gaps", "Gaps", _gaps(facts)),
        ("answers", "Answers", _answers(facts)),
        ("alignment", "Alignment", _alignments(facts)),
        ("patterns", "Attention patterns", _patterns(facts)),
        ("data", "Data", data_section(facts.data, trained_well=not facts.problems)),
        ("time", "Time and throughput", _time(facts)),
        ("recipe", "Recipe", [node("p", f"{PORTABLE}."), preformatted(dump_recipe(portable(facts.recipe)))]),
    ]
    filled = [section for section in sections if section[2]]
    links = (node("a", title, href=f"#{anchor}") for anchor, title, _ in filled)
    head = node("header", node("h1", facts.name), node("p", _lead(facts), class_="lead"), node("nav", *links, aria_label="Sections"))
    main = node("main", _tiles(facts), *(node("div", _sentence(problem), class_="note") for problem in facts.problems), *_skipped(facts))
    main.extend(node("section", node("h2", title), *content, id=anchor) for anchor, title, content in filled)
    return page(f"{facts.name}: training report", COLOURS + PICTURES + PAGE, node("body", head, main, _footer()))


def _lead(facts: Facts) -> str:
    kind, start, width = article(facts.recipe.task).capitalize(), origin(facts.recipe), facts.recipe.model.d_model
    return f"{kind} model trained {start}: {layers_in_short(facts.recipe)}, width {width}, {compact(facts.n_parameters)} parameters."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


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
        kept = f"kept: step {whole(facts.kept['step'])}, the best {facts.recipe.training.select_by}"
        if "accuracy" in facts.kept:
            tiles.append(_tile("Validation accuracy", f"{_figure(facts.kept, 'accuracy', 2)} %", f"of the {facts.recipe.COUNTED}"))
        measures = [f"perplexity {_figure(facts.kept, 'perplexity', 2)}"] if "perplexity" in facts.kept else []
        if "bits_per_byte" in facts.kept:
            measures.append(f"{_figure(facts.kept, 'bits_per_byte', 3)} bits a byte")
        weights = [] if facts.kept_weights is None else [facts.kept_weights]
        tiles.append(_tile("Validation loss", _figure(facts.kept, "loss", 3), *measures, kept, *weights))
    tiles.append(_tile("Training time", duration(facts.seconds), f"{whole(facts.steps)} steps"))
    if facts.throughput is not None:
        share = () if facts.peak_share is None else (f"{percent(facts.peak_share, 1)} of measured peak",)
        tiles.append(_tile(f"{_counted(facts)} a second", whole(facts.throughput), *share))
    return tiles


def _figure(record: Mapping[str, Any], key: str, digits: int) -> str:
    value = record.get(key)
    return "–" if value is None else f"{value:.{digits}f}"


def _skipped(facts: Facts) -> list[Element]:
    records = facts.of_kind("skipped")
    if not records:
        return []
    shown = [node("li", f"step {whole(record['step'])}: {_listed(record['places'])} of the training data") for record in records[:20]]
    more = [node("li", f"and {whole(len(records) - 20)} more")] if len(records) > 20 else []
    count = "1 step was" if len(records) == 1 else f"{whole(len(records))} steps were"
    title = f"{count} skipped because the loss or a gradient was not finite:"
    return [node("div", title, node("ul", *shown, *more), class_="note")]


def _listed(lines: Iterable[object], most: int = 12) -> str:
    every = list(lines)
    return ", ".join(map(str, every[:most])) + (f" and {len(every) - most} more" if len(every) > most else "")


def _scores(facts: Facts) -> list[Element]:
    if not facts.scores:
        return []
    rows = [[score.metric, f"{score.value:.2f}", score.data, score.signature] for score in facts.scores]
    return [node("div", table(["Metric", "Score", "Data", "Signature"], rows), class_="scroll")]


def _curves(facts: Facts) -> list[Element]:
    mark = None if facts.kept is None else (float(facts.kept["step"]), "kept")
    panels: list[Panel] = [
        (
            f"Loss {article(facts.recipe.COUNTED.removesuffix('s'))}, in nats",
            [("training", "train", "nll"), ("validation", "validation", "loss")],
            mark,
            False,
        ),
        ("Bits a byte of text", [("validation", "validation", "bits_per_byte")], mark, False),
        ("Validation accuracy, in %", [("validation", "validation", "accuracy")], mark, False),
        ("Validation BLEU and chrF", [("BLEU", "validation", "bleu"), ("chrF", "validation", "chrf")], mark, True),
        *_of_languages(facts, mark),
        ("Busiest expert's load, over the mean", [("load", "train", "expert_load")], None, False),
        ("Learning rate", [("learning rate", "train", "learning_rate")], None, True),
        ("Norm of the gradient, before clipping", [("norm", "train", "grad_norm")], None, False),
        (f"{_counted(facts)} a second", [(f"{facts.recipe.COUNTED} a second", "train", "target_tokens_per_second")], None, True),
        ("Share of the machine's measured peak, in %", [("share", "train", "peak_share")], None, True),
    ]
    figures = []
    for title, fields, at, from_zero in panels:
        lines = [Line(name, [(x, y * _UNITS.get(key, 1)) for x, y in facts.series(kind, key)]) for name, kind, key in fields]
        drawn = [line for line in lines if any(math.isfinite(y) for _, y in line.points)]
        if drawn:
            figures.append(node("figure", node("h3", title), line_chart(title, drawn, mark=at, from_zero=from_zero)))
    return [node("div", *figures, class_="curves"), *_validations(facts)] if figures else []


def _of_languages(facts: Facts, mark: Mark) -> list[Panel]:
    """Lay out the losses and scores of each target language, where there are several."""
    found = tags(facts.validations[0]) if facts.validations else []
    titles = {"loss": "Validation loss by target language, in nats", "bleu": "Validation BLEU by target language"}
    return [(title, [(tag, "validation", f"{key}/{tag}") for tag in found], mark, key == "bleu") for key, title in titles.items() if found]


def _validations(facts: Facts) -> list[Element]:
    if not facts.validations:
        return []
    every = [
        (f"{figure.name} {tag}".strip(), f"{figure.key}/{tag}".strip("/"), figure.digits)
        for tag in ("", *tags(facts.validations[0]))
        for figure in VALIDATED
    ]
    columns = [column for column in every if any(column[1] in record for record in facts.validations)]
    rows = [
        [whole(record["step"]), duration(record["seconds"]), *(_figure(record, key, digits) for _, key, digits in columns)]
        for record in facts.validations
    ]
    summary = node("summary", "The one validation as a table" if len(rows) == 1 else f"All {len(rows)} validations as a table")
    return [node("details", summary, node("div", table(["Step", "Time", *(name for name, _, _ in columns)], rows), class_="scroll"))]


def _continuations(facts: Facts) -> list[Element]:
    shown = [sample for sample in facts.samples if "continuation" in sample]
    if not shown:
        return []
    note = node("p", "Beginnings of validation documents, and ", node("mark", "what the kept weights drew"), " behind them.", class_="soft")
    texts = (node("pre", sample["prompt"], node("mark", sample["continuation"]), dir="auto") for sample in shown)
    return [note, *(node("div", text, class_="sample") for text in texts)]


def _gaps(facts: Facts) -> list[Element]:
    """Lay out validation texts with a gap, what was put there and what had stood there."""
    shown = [sample for sample in facts.samples if "filled" in sample]
    rows = [[sample["text"], sample["filled"], sample["was"]] for sample in shown]
    return [node("div", table(["Beginning of a validation document", "Filled in", "Was"], rows), class_="scroll")] if rows else []


def _answers(facts: Facts) -> list[Element]:
    """Lay out validation texts with what they belong to, a class or another text, and what the kept weights found."""
    shown = [sample for sample in facts.samples if "found" in sample]
    if pictures := [sample for sample in shown if "picture" in sample]:
        return [node("div", *map(_seen, pictures), class_="seen")]
    rows = [[sample["text"], sample["class"], ("✓ " if sample["found"] == sample["class"] else "") + sample["found"]] for sample in shown]
    return [node("div", table(["Validation text", "Expected", "Found"], rows), class_="scroll")] if rows else []


def _seen(sample: Mapping[str, str]) -> Element:
    """Lay out an image over the class that was found and, where that is wrong, its own."""
    found, own = sample["found"], sample["class"]
    told = node("span", f"✓ {found}", class_="same") if found == own else node("span", node("mark", found), f", not {own}")
    return node("figure", node("img", src=sample["picture"], alt=sample["text"], title=sample["text"]), node("figcaption", told))


def _translations(facts: Facts) -> list[Element]:
    shown = [sample for sample in facts.samples if "translation" in sample]
    if not shown or not isinstance(facts.recipe, TextRecipe):
        return []
    but = ", upper and lower case aside." if facts.recipe.tokenizer.lowercase else "."
    told = f" words differ from the reference{but}"
    note = node("p", "Validation sentences, translated by the kept weights. ", node("mark", "Underlined"), told, class_="soft")
    return [note, *(_sample(sample, facts.recipe.tokenizer.lowercase) for sample in shown)]


def _sample(sample: Mapping[str, str], lowercase: bool) -> Element:
    source = f"Source, to {sample['to']}" if "to" in sample else "Source"
    rows = node("dl", node("dt", source), node("dd", sample["source"], dir="auto"))
    rows.extend([node("dt", "Reference"), node("dd", sample["reference"], dir="auto")])
    rows.extend([node("dt", "Translation"), node("dd", *_compared(sample["reference"], sample["translation"], lowercase), dir="auto")])
    return node("div", rows, class_="sample")


def _compared(reference: str, translation: str, lowercase: bool) -> list[Element | str]:
    """Mark the words of a translation that the reference does not have at that place."""
    if not translation.strip():
        return [node("span", "(empty)", class_="soft")]
    expected = reference.lower() if lowercase else reference
    if translation == expected:
        return [translation, " ", node("span", "✓ same as the reference", class_="same")]
    found, pieces = translation.split(), list[Element | str]()
    for kind, _, _, start, end in SequenceMatcher(None, expected.split(), found, autojunk=False).get_opcodes():
        if start < end:
            words = " ".join(found[start:end])
            pieces.extend([words if kind == "equal" else node("mark", words), " "])
    return pieces[:-1]


def _alignments(facts: Facts) -> list[Element]:
    if not facts.alignments:
        return []
    note = "Cross-attention: the stronger a cell, the more the model looked at that source word while it chose that target word."
    pictures = [
        node(
            "figure",
            node("figcaption", alignment.origin, class_="soft"),
            node("div", alignment_picture(alignment), class_="scroll", tabindex=0),
        )
        for alignment in facts.alignments
    ]
    return [node("p", note, class_="soft"), node("div", *pictures, class_="pictures")]


def _patterns(facts: Facts) -> list[Element]:
    """Draw what the layers let each token see, where that is not all."""
    views = shown_views(facts.recipe.model)
    if not views:
        return []
    pictures = (node("figure", node("figcaption", view.title, class_="soft"), pattern_picture(view)) for view in views)
    note = "A row is a token that asks, a column one that is asked; it is filled where the layers let the one see the other."
    return [node("p", note, class_="soft"), node("div", *pictures, class_="pictures")]


def _time(facts: Facts) -> list[Element]:
    speeds = sorted(speed for _, speed in facts.series("train", "target_tokens_per_second") if math.isfinite(speed))
    rows = [("Training time", duration(facts.seconds)), ("Steps", whole(facts.steps))]
    if facts.steps:
        rows.append(("Time a step, validation included", f"{1000 * facts.seconds / facts.steps:,.0f} ms"))
    if facts.throughput is not None:
        low, high = (speeds[round(share * (len(speeds) - 1))] for share in (0.1, 0.9))
        rows.append((f"{_counted(facts)} a second, median", whole(facts.throughput)))
        rows.append(("… nine in ten above, nine in ten below", f"{whole(low)}, {whole(high)}"))
    if facts.peak_share is not None:
        rows.append(("Share of the measured peak, median", percent(facts.peak_share, 1)))
    rows.append(("Steps skipped", whole(len(facts.of_kind("skipped")))))
    machine: Sequence[Element] = [node("ul", *(node("li", line) for line in facts.machine))] if facts.machine else []
    return [node("div", node("div", facts_table(rows)), node("div", *machine), class_="columns")]


def _footer() -> Element:
    return node("footer", f"Written by transom {__version__} from the run's metrics.jsonl. This page loads nothing and runs no script.")
