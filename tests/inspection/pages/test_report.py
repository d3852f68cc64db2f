import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from transom.inspection.messages.tables import switch_script
from transom.inspection.pages.markup import escape_control_characters
from transom.inspection.pages.report import render_report
from transom.inspection.pages.run_summary import RunSummary

VOID = {"meta"}


def without_codes(page: str) -> str:
    """Remove the attributes that only the script of a page reads."""
    return re.sub(r' data-message(-attributes)?="[^"]*"', "", page)


class Page(HTMLParser):
    """A report as a browser reads it; every element must be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.style, self.scripts = "", list[str]()
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.extend((name, value or "") for name, value in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        elif self.open and self.open[-1] == "script":
            self.scripts.append(data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def values(self, attribute: str) -> list[str]:
        """Return every value of an attribute."""
        return [value for name, value in self.attributes if name == attribute]


def test_the_page_needs_nothing_from_outside(run: RunSummary) -> None:
    page = Page(render_report(run))
    assert not {"link", "iframe", "object", "img", "image", "use", "base", "form"} & page.tags
    assert not page.values("src") and all(value.startswith("#") for value in page.values("href"))
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "url(" not in page.style and "@import" not in page.style
    hashed = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{hashed}'" in page.values("content")
    assert len(page.scripts) == 2 and page.scripts[1] == switch_script() and json.loads(page.scripts[0])["names"]["en"] == "English"


def test_hostile_text_stays_text(run: RunSummary) -> None:
    hostile = run.samples[2]["source"]
    data = {"problems": [hostile], hostile: {"pairs": 3}, "lines": [{hostile: hostile}]}
    page = Page(render_report(replace(run, name=hostile, data=data, machine_notes=(hostile,))))
    assert page.tags == Page(render_report(run)).tags
    assert page.text.count(escape_control_characters(hostile)) >= 9
    assert "\x1b" not in page.text and "\u202e" not in page.text


def test_links_lead_to_sections(run: RunSummary) -> None:
    page = Page(render_report(run))
    assert sorted(value[1:] for value in page.values("href")) == sorted(page.values("id"))
    assert page.values("id") == ["scores", "curves", "translations", "alignment", "data", "time", "recipe"]


def test_the_figures_are_those_of_the_kept_weights(run: RunSummary) -> None:
    page = Page(render_report(run))
    best_validation = next(record for record in run.validations if record["step"] == 5000)
    assert {f"{best_validation['bleu']:.1f}", f"{best_validation['loss']:.3f}", "42 min 14 s", "39.61", "3,900"} <= set(page.words)
    assert "best weights: step 5,000, by loss" in page.words
    assert "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.5.1" in page.words


def test_six_curves_and_the_two_alignments_are_drawn(run: RunSummary) -> None:
    classes = Page(render_report(run)).values("class")
    assert (classes.count("chart"), classes.count("alignment")) == (6, 2)


def test_charts_begin_at_step_0_and_end_at_the_last(run: RunSummary) -> None:
    """Of training as of validation, whose first record is that of step 500."""
    readings = [word for word in Page(render_report(run)).words if word in ("0", "6000")]
    assert (readings.count("6000"), readings.count("0") >= 6) == (6, True)


def test_one_point_is_a_number_and_no_chart(run: RunSummary) -> None:
    metrics = [record for record in run.metrics if record["kind"] != "validation" or record["step"] == 500]
    page = Page(render_report(replace(run, metrics=metrics)))
    assert page.values("class").count("chart") == 5
    start = page.words.index("Validation BLEU and chrF")
    assert page.words[start + 1 : start + 7] == ["BLEU ", "12.5", " at step 500", "chrF ", "31.1", " at step 500"]


def test_classes_have_their_own_names(run: RunSummary) -> None:
    counts = {"train": {"very_negative": 3, "ok": 5}, "valid": {"very_negative": 1, "ok": 2}}
    page = Page(render_report(replace(run, data={"classes": counts})))
    start = page.words.index("very_negative")
    assert page.words[start - 3 : start + 6] == ["Class", "train", "valid", "very_negative", "3", "1", "ok", "5", "2"]


def test_long_texts_are_stacked_on_a_phone_and_numbers_scroll(run: RunSummary) -> None:
    data = {"longest": [{"document": "a" * 50, "tokens": 7}], "lengths": {"train": {"median": 4}}}
    page = without_codes(render_report(replace(run, data=data)))
    assert '<div class="scroll" tabindex="0"><table class="stacked"><thead><tr><th scope="col" class="text">Document' in page
    assert '<td class="number" dir="auto" data-label="Tokens">7</td>' in page
    assert '<div class="scroll" tabindex="0"><table><thead><tr><th scope="col" class="text"></th>' in page


def test_skipped_steps_name_their_lines(run: RunSummary) -> None:
    page = Page(render_report(run))
    assert "2 steps were skipped because the loss or a gradient was not finite (samples of each batch):" in page.words
    assert "step 1,230: line 17, line 25011" in page.words


def test_many_skipped_steps_are_counted_not_listed(run: RunSummary) -> None:
    many = [{"step": step, "kind": "skipped", "samples": [f"line {n}" for n in range(40)]} for step in range(1, 34)]
    page = Page(render_report(replace(run, metrics=many)))
    assert "and 13 more" in page.words
    assert f"step 1: {', '.join(f'line {n}' for n in range(12))} and 28 more" in page.words


def test_words_that_differ_from_the_reference_are_marked(run: RunSummary) -> None:
    page = render_report(run)
    assert "Ein Mann schläft auf einer <mark>Parkbank.</mark>" in page
    assert page.count("✓ same as the reference") == 1
    assert "(empty)" in page


def test_case_is_no_difference_to_a_model_without_it(run: RunSummary) -> None:
    tokenizer = run.recipe.tokenizer.model_copy(update={"lowercase": True})
    line = {"source": "A", "reference": "Ein Mann schläft.", "translation": "ein mann schläft."}
    metrics = [{"step": 1, "kind": "validation", "best": True, "seconds": 1.0, "loss": 1.0, "perplexity": 2.7, "samples": [line]}]
    page = without_codes(render_report(replace(run, recipe=run.recipe.model_copy(update={"tokenizer": tokenizer}), metrics=metrics)))
    assert 'ein mann schläft. <span class="same">✓ same as the reference</span>' in page
    assert "ignoring case" in page
    assert "same as the reference" not in render_report(replace(run, metrics=metrics))


def test_a_run_that_wrote_nothing_yet_still_has_a_page(run: RunSummary) -> None:
    bare = RunSummary(name="x", recipe=run.recipe, metrics=[], n_parameters=10, n_active=10, seconds=0.0, data={})
    assert Page(render_report(bare)).values("id") == ["time", "recipe"]


def test_losses_that_were_never_finite_do_not_break_the_page(run: RunSummary) -> None:
    record = {"step": 1, "kind": "train", "loss": None, "nll": None, "grad_norm": None, "learning_rate": 0.1}
    validation = {"step": 1, "kind": "validation", "best": True, "seconds": 1.0, "loss": None, "perplexity": None}
    page = Page(render_report(replace(run, metrics=[record, validation])))
    assert "chart" not in page.values("class") and "0.1" in page.words and " at step 1" in page.words
    assert "–" in page.words


def test_the_data_report_is_laid_out_whatever_its_fields(run: RunSummary) -> None:
    data = {
        "problems": [],
        "kept_pairs": 29000,
        "joint": True,
        "longest": [{"line": 7, "tokens": 91}, {"line": 12, "tokens": 85}],
        "lengths": {"source": {"median": 12.5}, "target": {"median": 13.0}},
        "unseen": ["ß", "é"],
        "padding_waste": 0.0312,
        "nothing": None,
    }
    words = Page(render_report(replace(run, data=data))).words
    assert {
        "✓ No problem was found in the data.",
        "Kept pairs",
        "29,000",
        "yes",
        "Tokens",
        "91",
        "source",
        "12.5",
        "ß, é",
        "3.1%",
        "Longest in training",
    } <= set(words)


def test_the_same_facts_make_the_same_page(run: RunSummary) -> None:
    assert render_report(run) == render_report(replace(run))
