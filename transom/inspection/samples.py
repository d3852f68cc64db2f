"""Sections of a report that show what the kept weights answered to some of the validation data, each to data of its kind."""

from collections.abc import Mapping
from difflib import SequenceMatcher
from xml.etree.ElementTree import Element

from transom.config.recipe import TextRecipe
from transom.inspection.facts import Facts
from transom.inspection.markup import node
from transom.inspection.page import Section
from transom.inspection.tables import scrolled, table


def translations(facts: Facts) -> list[Element]:
    """Show sentences with their references and translations; words that the reference does not have at that place are marked."""
    shown = [sample for sample in facts.samples if "translation" in sample]
    if not shown or not isinstance(facts.recipe, TextRecipe):
        return []
    lowercase = facts.recipe.tokenizer.lowercase
    told = f" words differ from the reference{', upper and lower case aside.' if lowercase else '.'}"
    note = node("p", "Validation sentences, translated by the kept weights. ", node("mark", "Underlined"), told, class_="soft")
    return [note, *(_translation(sample, lowercase) for sample in shown)]


def _translation(sample: Mapping[str, str], lowercase: bool) -> Element:
    rows = (
        (f"Source, to {sample['to']}" if "to" in sample else "Source", [sample["source"]]),
        ("Reference", [sample["reference"]]),
        ("Translation", _compared(sample["reference"], sample["translation"], lowercase)),
    )
    listed = (each for name, shown in rows for each in (node("dt", name), node("dd", *shown, dir="auto")))
    return node("div", node("dl", *listed), class_="sample")


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


def continuations(facts: Facts) -> list[Element]:
    """Show beginnings of documents with the text sampled after each."""
    shown = [sample for sample in facts.samples if "continuation" in sample]
    if not shown:
        return []
    note = node("p", "Beginnings of validation documents, and ", node("mark", "what the kept weights drew"), " behind them.", class_="soft")
    texts = (node("pre", sample["prompt"], node("mark", sample["continuation"]), dir="auto") for sample in shown)
    return [note, *(node("div", text, class_="sample") for text in texts)]


def gaps(facts: Facts) -> list[Element]:
    """Show texts with a masked token, the token that was predicted and the one that had stood there."""
    rows = [[sample["text"], sample["filled"], sample["was"]] for sample in facts.samples if "filled" in sample]
    return [scrolled(table(["Beginning of a validation document", "Filled in", "Was"], rows))] if rows else []


def answers(facts: Facts) -> list[Element]:
    """Show texts or images with what they belong to, a class or another text, and what was found."""
    shown = [sample for sample in facts.samples if "found" in sample]
    if pictures := [sample for sample in shown if "picture" in sample]:
        return [node("div", *map(_image, pictures), class_="seen")]
    rows = [[sample["text"], sample["class"], ("✓ " if sample["found"] == sample["class"] else "") + sample["found"]] for sample in shown]
    return [scrolled(table(["Validation text", "Expected", "Found"], rows))] if rows else []


def _image(sample: Mapping[str, str]) -> Element:
    """Lay out an image over the class that was found and, where that is wrong, its own."""
    found, own = sample["found"], sample["class"]
    told = node("span", f"✓ {found}", class_="same") if found == own else node("span", node("mark", found), f", not {own}")
    return node("figure", node("img", src=sample["picture"], alt=sample["text"], title=sample["text"]), node("figcaption", told))


SECTIONS = (
    Section("translations", "Translations", translations),
    Section("continuations", "Continuations", continuations),
    Section("gaps", "Gaps", gaps),
    Section("answers", "Answers", answers),
)
