"""Report sections with sample predictions of the best weights on validation data, one per kind of task."""

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any
from xml.etree.ElementTree import Element

from transom.config.recipe import TextRecipe
from transom.files.message import joined
from transom.inspection.messages.tables import message
from transom.inspection.pages.html_tables import html_table
from transom.inspection.pages.markup import node
from transom.inspection.pages.number_format import format_percent
from transom.inspection.pages.page import Section
from transom.inspection.pages.run_summary import RunSummary


def translations(run: RunSummary) -> list[Element]:
    """Show sentences with references and translations; words that differ from the reference are marked."""
    shown = [sample for sample in run.samples if "translation" in sample]
    if not shown or not isinstance(run.recipe, TextRecipe):
        return []
    lowercase = run.recipe.tokenizer.lowercase
    marked, which = node("mark", message("samples.underlined")), "samples.differ_ignoring_case" if lowercase else "samples.differ"
    note = node("p", message("samples.translations"), " ", marked, " ", message(which), class_="soft")
    return [note, *(_translation(sample, lowercase) for sample in shown)]


def _translation(sample: Mapping[str, str], lowercase: bool) -> Element:
    rows = (
        (message("samples.source_to", language=sample["to"]) if "to" in sample else message("samples.source"), [sample["source"]]),
        (message("samples.reference"), [sample["reference"]]),
        (message("samples.translation"), _mark_differences(sample["reference"], sample["translation"], lowercase)),
    )
    listed = (each for name, shown in rows for each in (node("dt", name), node("dd", *shown, dir="auto")))
    return node("div", node("dl", *listed), class_="sample")


def _mark_differences(reference: str, translation: str, lowercase: bool) -> list[Element | str]:
    """Mark the words of a translation that differ from the reference."""
    if not translation.strip():
        return [node("span", message("samples.empty"), class_="soft")]
    expected = reference.lower() if lowercase else reference
    if translation == expected:
        return [translation, " ", node("span", message("samples.same"), class_="same")]
    found, pieces = translation.split(), list[Element | str]()
    for kind, _, _, start, end in SequenceMatcher(None, expected.split(), found, autojunk=False).get_opcodes():
        if start < end:
            words = " ".join(found[start:end])
            pieces.extend([words if kind == "equal" else node("mark", words), " "])
    return pieces[:-1]


def continuations(run: RunSummary) -> list[Element]:
    """Show prompts from validation documents with their sampled continuations."""
    shown = [sample for sample in run.samples if "continuation" in sample]
    if not shown:
        return []
    marked = node("mark", message("samples.sampled"))
    note = node("p", message("samples.continuations"), " ", marked, ".", class_="soft")
    texts = (node("pre", sample["prompt"], node("mark", sample["continuation"]), dir="auto") for sample in shown)
    return [note, *(node("div", text, class_="sample") for text in texts)]


def masked_tokens(run: RunSummary) -> list[Element]:
    """Show texts with a masked token, the predicted token and the original token."""
    rows = [[sample["text"], sample["filled"], sample["was"]] for sample in run.samples if "filled" in sample]
    columns = [message(f"samples.{name}") for name in ("excerpt", "predicted", "original")]
    return [html_table(columns, rows)] if rows else []


_COLUMNS = {
    "instruction": ("prompt", "reference_answer", "generated_answer"),
    "embedding": ("text", "pair", "nearest"),
}
"""Names of the columns of the predictions of tasks that predict no class."""


def predictions(run: RunSummary) -> list[Element]:
    """Show validation texts or images, each with the prediction and the expected class or, for embedders, the expected text."""
    shown = [sample for sample in run.samples if "found" in sample]
    if pictures := [sample for sample in shown if "picture" in sample]:
        return [node("div", *map(_thumbnail, pictures), class_="seen")]
    rows = [
        [
            sample["text"],
            _label(sample["class"]),
            joined(" ", [*(["✓"] if sample["found"] == sample["class"] else []), _label(sample["found"])]),
            _confidence(sample),
        ]
        for sample in shown
    ]
    names = (*_COLUMNS.get(run.recipe.task, ("text", "expected", "predicted")), "probability")
    columns = [message(f"samples.{name}") for name in names]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return [html_table(columns, rows)] if rows else []


def _label(text: str) -> str:
    """Return the expected or predicted text of a sample; that a text has no label is a message."""
    no_label = message("samples.no_label")
    return no_label if text == no_label else text


def _confidence(sample: Mapping[str, Any]) -> str:
    """Return the probability of the predicted class; empty for embedders and for runs of earlier versions."""
    return "" if sample.get("p") is None else format_percent(sample["p"], 1)


def _thumbnail(sample: Mapping[str, Any]) -> Element:
    """Render an image above its predicted class with its probability and, if the class is wrong, the true class."""
    found, own = f"{sample['found']} {_confidence(sample)}".rstrip(), sample["class"]
    if sample["found"] == own:
        explanation = node("span", f"✓ {found}", class_="same")
    else:
        explanation = node("span", node("mark", found), ", ", message("samples.not", label=own))
    return node("figure", node("img", src=sample["picture"], alt=sample["text"], title=sample["text"]), node("figcaption", explanation))


SECTIONS = (
    Section("translations", message("sections.translations"), translations),
    Section("continuations", message("sections.continuations"), continuations),
    Section("masked-tokens", message("sections.masked_tokens"), masked_tokens),
    Section("predictions", message("sections.predictions"), predictions),
)
