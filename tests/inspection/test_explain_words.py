"""Every word of a hand calculation is a message, so that its page can be read in other languages."""

import json
import random
import re

import pytest
import torch

import transom
from tests.inspection.pages.page_words import Words
from tests.inspection.test_explain import SETS, choices, decoder, model_and_batch
from tests.inspection.test_explain_edits import CASES, MODELS
from tests.tiers import every
from transom.files.message import Message, keys_of, render
from transom.inspection.edits.schemas import describe_edit
from transom.inspection.explain.explanation import Explanation
from transom.inspection.explain.notation import Typeset
from transom.inspection.explain.steps import Calculation, Note, Section, Values
from transom.inspection.messages.tables import ENGLISH, switch_data, templates

NOTATION = (
    *("alpha", "beta", "cos", "eps", "erf", "exp", "gamma", "hat", "ln", "log", "max", "mu", "phi", "pi", "sigma", "sin", "sqrt", "sum"),
    *("tanh", "tau", "theta", "Block", "GELU", "SiLU", "sigmoid", "before", "class", "cls", "concat", "conv", "dist", "end", "gate"),
    *("hidden", "id", "logsumexp", "patch", "pooled", "pre", "relu", "shared", "sink", "up"),
)
"""Functions and symbols of equations, which are the same in every language; ``before``, ``end`` and ``shared`` are indices."""

GERMAN = templates("de")


def words_of(page: str) -> Words:
    """Return the texts of a page, those of its elements ``code`` too, which hold vectors and their names."""
    return Words(page.replace("<code", "<span").replace("</code>", "</span>"))


def untranslated(page: str) -> set[str]:
    """Return the words of a page that are neither messages nor notation."""
    return words_of(page).untranslated(NOTATION)


@pytest.mark.parametrize("number", every(12, range(len(SETS)), long=4), ids=lambda number: f"{number} {SETS[number]['kind']}")
def test_every_word_of_a_calculation_is_a_message(number: int) -> None:
    model, batch = model_and_batch(SETS[number])
    page = transom.explain(model, batch, **choices(model, random.Random(number))).html()
    words = words_of(page)
    assert untranslated(page) == set() and words.misquoted() == [] and len(words.messages) > 10


@pytest.mark.parametrize(
    "number", every(12, range(len(CASES)), long=4), ids=lambda number: f"{CASES[number][0]}-{CASES[number][1]['kind']}"
)
def test_the_words_of_edits_are_those_of_their_file(number: int) -> None:
    name, edit = CASES[number]
    model, batch = model_and_batch(MODELS[name])
    with transom.edits(model, [edit], inputs={"other": torch.tensor([[1, 6, 3, 7]])}) as scope:
        explanation = transom.explain(model, batch)
        fields = set(re.findall("[A-Za-z]+", " ".join(map(describe_edit, scope.edits))))
    page = explanation.html()
    assert untranslated(page) - fields == set() and words_of(page).misquoted() == []
    assert "explain.edits.edited" in {key for code, _, _ in words_of(page).messages for key in keys_of(code)}


def test_a_word_that_is_no_message_is_found() -> None:
    page = transom.explain(*decoder()).html()
    assert untranslated(page.replace("</main>", "<p>spoken</p></main>")) == {"spoken"}
    assert untranslated(page.replace("</main>", """<p data-message="['explain.more',{'n':'spoken'}]">more</p></main>""")) == {"spoken"}


def test_a_calculation_is_told_in_german() -> None:
    explanation = transom.explain(*decoder(d_model=300, d_head=100, norm="layernorm"), head=2, query=3, dim=7)
    told = [render(each.code, GERMAN) for each in texts(explanation)]
    for text in (
        "Handrechnung: Block 0, Head 2, Token 3 des Decoders",
        "Tokens und Embeddings",
        "Self-Attention, Head 2: Scores von Query 3",
        "Skalarprodukt von Query und Key: q . k",
        "Gewichte: A = e^S / Summe",
        "Residual-Verbindung um das Feed-Forward-Netz",
        "Wahrscheinlichkeiten bei Temperatur 0.5",
        "Norm am Ende, Token 3",
    ):
        assert text in told, text
    assert any(text.startswith("[") and text.endswith("... (294 weitere)]") for text in told)
    assert any(re.search(r" \(296 weitere: \S+\)", text) for text in told)
    assert "Ausgerechnet ist Element 7 jedes Vektors" in told[-1] and "-Fache der Rundungsschranke." in told[-1]


def texts(explanation: Explanation) -> list[Message]:
    """Return all messages of a calculation, the sentences below the title last."""
    found: list[str] = [explanation.title]
    for section in explanation.sections:
        found.append(section.title)
        for step in section.steps:
            match step:
                case Note():
                    found.append(step.text)
                case Values():
                    found += [step.label, step.formula, step.write(Typeset())]
                case Calculation():
                    found += [step.label, step.formula, *step.typeset()]
    return [each for each in (*found, explanation.lead) if isinstance(each, Message)]


def test_a_page_switches_to_german() -> None:
    page = transom.explain(*decoder()).html()
    (data,) = re.findall(r'<script type="application/json" class="messages">(.*?)</script>', page)
    keys = {key for code, _, _ in words_of(page).messages for key in keys_of(code)}
    assert json.loads(data) == switch_data(keys) and keys < set(templates(ENGLISH)) and 'lang="en"' in page
    assert json.loads(data)["tables"]["de"]["explain.attention.dot"] == "Skalarprodukt von Query und Key: q . k"


def test_a_heading_has_a_capital_with_and_without_the_side_before_it() -> None:
    for section in (*transom.explain(*decoder()).sections, *transom.explain(*model_and_batch(SETS[0])).sections):
        for text in (section.title, render(section.title.code, GERMAN)):  # type: ignore[attr-defined]
            assert text[:1].isupper(), text


def test_text_without_messages_is_a_page_in_english_only() -> None:
    page = Explanation("Title", {}, (Section("Title", [Note("note")]),), "Summary.").html()
    assert "data-message" not in page and "<script" not in page
