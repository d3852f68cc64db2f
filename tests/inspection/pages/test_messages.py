"""Messages of pages: tables agree with each other and with the code, and no word of a page is left without a translation."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.inspection.conftest import HOSTILE
from tests.inspection.pages.page_words import Words
from tests.inspection.pages.test_classification_section import metrics
from tests.inspection.pages.test_describe import COMBINATIONS, of
from tests.test_architecture import trees
from transom.config.architecture import ModelConfig
from transom.data.reports.findings import NOUNS, SPLIT_NAMES, count_noun, out_of, split_name
from transom.data.split import PLURALS
from transom.decoding.predictors.class_metrics import CalibrationBin
from transom.files.message import PLACEHOLDER, Message, Template, as_sentence, joined, keys_of, phrase, render
from transom.inspection.messages.tables import (
    ENGLISH,
    LANGUAGES,
    max_length,
    message,
    message_or,
    switch_data,
    switch_script,
    table,
    templates,
)
from transom.inspection.pages import report
from transom.inspection.pages.classification_pictures import reliability_diagram
from transom.inspection.pages.classification_section import classification_page
from transom.inspection.pages.markup import codes_of, node, to_html, to_svg
from transom.inspection.pages.page import render_page
from transom.inspection.pages.report import render_report
from transom.inspection.pages.run_summary import RunSummary

PARTS = ("report", "explain", "errors", "explore")
PLURAL_CATEGORIES = {"zero", "one", "two", "few", "many", "other"}
GERMAN = templates("de")

# Tables


def forms(template: Template) -> dict[str, str]:
    """Return the texts of a template by plural category."""
    return {"other": template} if isinstance(template, str) else dict(template)


def faults(english: Mapping[str, Template], other: Mapping[str, Template]) -> list[str]:
    """Describe where the table of a language does not fit the English one."""
    found = [f"{key}: missing" for key in sorted(english.keys() - other.keys())]
    found += [f"{key}: surplus" for key in sorted(other.keys() - english.keys())]
    for key in sorted(english.keys() & other.keys()):
        expected = set(PLACEHOLDER.findall(forms(english[key])["other"]))
        for category, text in forms(other[key]).items():
            placeholders = set(PLACEHOLDER.findall(text))
            if placeholders != expected and (category == "other" or placeholders | {"n"} != expected | {"n"}):
                found.append(f"{key}: placeholders {sorted(placeholders)}, not {sorted(expected)}")
            if not text or text != text.strip() or "  " in text or "{" in PLACEHOLDER.sub("", text):
                found.append(f"{key}: empty, or stray spaces or braces")
        if isinstance(english[key], str) != isinstance(other[key], str) or not forms(other[key]).keys() <= PLURAL_CATEGORIES:
            found.append(f"{key}: plurals {sorted(forms(other[key]))}")
    return found


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("part", PARTS)
def test_tables_have_the_same_keys_and_placeholders(language: str, part: str) -> None:
    assert faults(templates(ENGLISH, part), templates(language, part)) == []
    assert table(language).keys() == {"language", *PARTS} and table(language)["language"].keys() == {"name", "label"}


def test_the_faults_of_a_table_are_found() -> None:
    english: dict[str, Template] = {"a": "{x} of {y}", "b": "one", "c": {"one": "{n} text", "other": "{n} texts"}}
    assert faults(english, {"a": "{y} von {x}", "b": "eins", "c": {"one": "ein Text", "few": "{n} Texte", "other": "{n} Texte"}}) == []
    assert faults(english, {"a": "{x} von {z}", "c": "{n} Texte", "d": "vier"}) == [
        "b: missing",
        "d: surplus",
        "a: placeholders ['x', 'z'], not ['x', 'y']",
        "c: plurals ['other']",
    ]
    assert faults(english, {"a": "{x} von {y} {", "b": " eins", "c": {"one": "{n} Text", "manche": "{n}", "other": "{n} Texte"}}) == [
        "a: empty, or stray spaces or braces",
        "b: empty, or stray spaces or braces",
        "c: plurals ['manche', 'one', 'other']",
    ]


# Code


def keys_in_code() -> Iterator[tuple[Path, ast.expr]]:
    """Yield the first argument of each call of a function that takes a key."""
    for path, tree in trees("transom").items():
        for call in (found for found in ast.walk(tree) if isinstance(found, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in ("message", "message_or", "phrase") and call.args:
                yield path, call.args[0]


def pattern_of(key: ast.expr) -> str | None:
    """Return a regular expression of the keys that an expression can be; None for a variable."""
    match key:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)
    return None


def test_keys_in_code_are_in_the_tables_and_keys_of_the_tables_are_in_code() -> None:
    known = {key for key in templates(ENGLISH) if not key.startswith("explain.quantities.")}  # tests/inspection/test_names.py has these
    patterns = {pattern for _, key in keys_in_code() if (pattern := pattern_of(key)) is not None}
    assert {pattern for pattern in patterns if not any(re.fullmatch(pattern, key) for key in known)} == set()
    constants = {found.value for tree in trees("transom").values() for found in ast.walk(tree) if isinstance(found, ast.Constant)}
    assert {key for key in known - constants if not any(re.fullmatch(pattern, key) for pattern in patterns)} == set()


def english_in_code() -> Iterator[tuple[str, Any]]:
    """Yield each key with the English text that follows it in the code: as arguments, or as a pair."""
    for tree in trees("transom").values():
        assigned = {
            target.id: found.value
            for found in ast.walk(tree)
            if isinstance(found, ast.Assign)
            for target in found.targets
            if isinstance(target, ast.Name)
        }
        for found in ast.walk(tree):
            pair = found.args if isinstance(found, ast.Call) else found.elts if isinstance(found, ast.Tuple) else []
            is_phrase = isinstance(found, ast.Tuple) or (isinstance(found, ast.Call) and ast.unparse(found.func) == "phrase")
            if is_phrase and len(pair) >= 2 and isinstance(pair[0], ast.Constant) and pair[0].value in templates(ENGLISH):
                text = assigned[pair[1].id] if isinstance(pair[1], ast.Name) else pair[1]
                yield str(pair[0].value), ast.literal_eval(text)


def test_english_in_code_is_that_of_the_table() -> None:
    """``phrase`` repeats the English of the table, so that data and planning read no table."""
    told = dict(english_in_code())
    assert len(told) > 50
    assert {key: text for key, text in told.items() if templates(ENGLISH)[key] != text} == {}


@pytest.mark.parametrize("noun", sorted(NOUNS))
def test_nouns_have_plurals(noun: str) -> None:
    for n in (0, 1, 2, 1200):
        for text in (count_noun(n, noun), out_of(n, noun)):
            assert isinstance(text, Message) and render(text.code, templates(ENGLISH)) == text
            assert f"{n:,}" in render(text.code, GERMAN)
    assert count_noun(2, "sandwich") == "2 sandwichs" and out_of(1, "sandwich") == "of 1 sandwich"


def test_names_of_data_are_those_of_the_tables() -> None:
    english = templates(ENGLISH)
    assert {key.removeprefix("data.names.") for key in english if key.startswith("data.names.")} == SPLIT_NAMES
    assert {key.removeprefix("data.plural.") for key in english if key.startswith("data.plural.")} == set(PLURALS)
    assert split_name("fr valid source") == "fr valid source" and split_name("extra") == "extra"
    assert render(split_name("fr valid source").code, GERMAN) == "fr Validierung Quelle"  # type: ignore[attr-defined]


# Texts


def test_a_message_is_its_english_text_and_knows_the_german_one() -> None:
    steps = message("cards.steps", n=1200)
    assert steps == "1,200 steps" and isinstance(steps, Message)
    assert [render(text.code, GERMAN) for text in (steps, message("cards.steps", n=1)) if isinstance(text, Message)] == [
        "1,200 Schritte",
        "1 Schritt",
    ]
    inner = message("alignment.title", origin=message("alignment.origin", layer="decoder.blocks.1.cross", n=8))
    assert isinstance(inner, Message) and list(keys_of(inner.code)) == ["alignment.title", "alignment.origin"]
    assert "decoder.blocks.1.cross, Mittel über 8 Heads" in render(inner.code, GERMAN)
    assert message_or("metrics.bleu", "x") == "BLEU" and message_or("metrics.of-a-plugin", "gain") == "gain"
    assert max_length(message("charts.step")) == len("Schritt") and max_length("step") == 4
    with pytest.raises(KeyError):
        message("no.such.key")


def test_texts_can_be_joined_and_become_sentences() -> None:
    assert not isinstance(joined(", ", ["a", "b"]), Message) and as_sentence("so it is") == "So it is."
    both = as_sentence(joined(": ", ["decoder", message("charts.loss", unit=message("units.images.one"))]))
    assert both == "Decoder: Loss per image, in nats." and isinstance(both, Message)
    assert render(both.code, GERMAN) == "decoder: Loss pro Bild, in Nats."


def test_a_message_among_other_content_has_an_element_of_its_own() -> None:
    step = message("charts.step")
    assert to_html(node("p", "5. ", step)) == """<p>5. <span data-message="['charts.step']">step</span></p>"""
    assert to_html(node("text", step, " 5")) == """<text><tspan data-message="['charts.step']">step</tspan> 5</text>"""
    assert to_html(node("p", None, step)) == """<p data-message="['charts.step']">step</p>"""
    assert to_svg(node("text", step, aria_label=step)) == '<text aria-label="step" xmlns="http://www.w3.org/2000/svg">step</text>\n'


def test_hostile_values_stay_text() -> None:
    told = node("p", node("b", message("title", name=HOSTILE)), aria_label=message("cards.perplexity", value=HOSTILE))
    page = to_html(told)
    assert "\x1b" not in page and "\u202e" not in page and "\x00" not in page
    bare = re.sub(r'"[^"]*"', "", page)
    assert re.findall(r"<[^<>]*>", bare) == ["<p aria-label= data-message-attributes=>", "<b data-message=>", "</b>", "</p>"]
    assert [render(code, templates(ENGLISH)) for code in codes_of(told)] == [told.get("aria-label"), told[0].text]


# Pages

GREEK = "ήλιος και σελήνη"
SAMPLES = {
    "translation": {"source": GREEK, "reference": GREEK, "translation": "ήλιος ή σελήνη", "to": "ελ"},
    "language": {"prompt": GREEK, "continuation": GREEK},
    "masked": {"text": GREEK, "filled": "και", "was": "ή"},
    "tagging": {"words": "ήλιος\nκαι\nσελήνη", "expected": "Α\nO\nΒ", "tagged": "Α\nO\nΑ"},
    "image-classification": {"text": "α", "class": "β", "found": "γ", "p": 0.5, "picture": "data:image/png;base64,"},
    "audio-classification": {"text": "α", "class": "β", "found": "β", "p": 0.5, "picture": "data:image/png;base64,"},
}
ANSWER = {"text": GREEK, "class": "α", "found": "β", "p": 0.75}
DATA = {
    "baseline": [{"key": "loss", "value": 1.0, "predictor": phrase("baseline.always", "always answering {answer}", answer="'α'")}],
    "problems": [message("data.overlap", name=split_name("valid"), number=3, total=out_of(1, "text"))],
    "texts": {"train": {"texts": 3, "from": "α.tsv", "duplicates": 0}, "valid source": {"texts": 1}},
    "dropped": {message("data.reasons.empty"): 3},
    "converted": True,
    "padding_waste": 0.2,
}


def greek(run: RunSummary, task: str, kind: type[ModelConfig]) -> RunSummary:
    """Return a run of a task whose data have no Latin letter."""
    samples = [SAMPLES.get(task, ANSWER)]
    found = [{**record, "samples": samples} if record["kind"] == "validation" else record for record in run.metrics]
    found = [{**record, "samples": ["1", "2"]} if record["kind"] == "skipped" else record for record in found]
    alignment = replace(run.alignments[0], source=tuple("αβγδεζηθικ"), target=tuple("αβγδεζηθ"))
    origin = message("alignment.origin", layer="decoder.blocks.1.cross", n=4)
    return replace(
        run,
        name="δοκιμή",
        recipe=of(task, kind),
        metrics=found,
        data=DATA,
        alignments=(replace(alignment, origin=origin),),
        classification=metrics(4, "κλάση {}") if "classification" in task else None,
        test_scores=(),
        machine_notes=(message("machine.peak", flops="4", bandwidth="2"),),
    )


def said(words: Words) -> set[str]:
    """Return the words of the data of ``metrics``, which are in no alphabet of their own."""
    return words.untranslated({"lo", "lon", "long", *re.findall(r"[A-Za-z]{2,}", HOSTILE)})


@pytest.mark.parametrize(("task", "kind"), COMBINATIONS, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_every_word_of_a_report_is_a_message(run: RunSummary, task: str, kind: type[ModelConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "without_local_paths", lambda recipe: recipe)  # these recipes name no data
    words = Words(render_report(greek(run, task, kind)))
    assert said(words) == set() and words.misquoted() == []
    assert len(words.messages) > 100


def test_every_word_of_the_page_of_a_classifier_is_a_message() -> None:
    words = Words(classification_page("δοκιμή", "α.tsv", "texts", metrics(4, "κλάση {}")))
    assert said(words) == set() and words.misquoted() == [] and len(words.messages) > 80
    many = Words(classification_page("δοκιμή", "α.tsv", "images", metrics(300, "κλάση {}")))
    assert said(many) == set() and many.misquoted() == []


def test_a_word_that_is_no_message_is_found(run: RunSummary) -> None:
    page = render_report(replace(run, name="δοκιμή"))
    assert Words(page.replace("<h1>δοκιμή", "<h1>Report")).untranslated() - Words(page).untranslated() == {"Report"}
    assert Words(page.replace("</main>", '<p title="Wrong">α</p></main>')).untranslated() - Words(page).untranslated() == {"Wrong"}
    start = page.index(">Recipe</h2>")
    assert ("Receipt", "Recipe") in Words(page[:start] + ">Receipt</h2>" + page[start + len(">Recipe</h2>") :]).misquoted()


def test_a_page_holds_the_messages_that_it_shows_and_no_others(run: RunSummary) -> None:
    page = render_report(run)
    (data,) = re.findall(r'<script type="application/json" class="messages">(.*?)</script>', page)
    keys = {key for code, _, _ in Words(page).messages for key in keys_of(code)}
    assert json.loads(data) == switch_data(keys) and set(json.loads(data)["tables"]) == set(LANGUAGES) - {ENGLISH}
    assert keys < set(templates(ENGLISH)) and 'lang="en"' in page
    assert len(switch_script().splitlines()) <= 40


def test_a_page_without_messages_has_no_script() -> None:
    page = render_page("a calculation", "a calculation", [("part", "one", [node("p", message("charts.step"))])])
    assert "<script" not in page and "script-src" not in page and "data-message" not in page


def test_pages_are_the_same_bytes_on_every_run(run: RunSummary) -> None:
    assert render_report(run) == render_report(replace(run))
    bins = [CalibrationBin(0.6, 0.8, 1, 0.7, 0.25)]
    assert to_svg(reliability_diagram(bins)) == to_svg(reliability_diagram(bins)) and "1 prediction<" in to_svg(reliability_diagram(bins))
