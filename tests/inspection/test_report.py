from dataclasses import replace
from html.parser import HTMLParser

from transom.inspection.facts import Facts
from transom.inspection.markup import visible
from transom.inspection.report import report

VOID = {"meta"}


class Page(HTMLParser):
    """A report as a browser reads it; every element must be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.style = ""
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
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def values(self, attribute: str) -> list[str]:
        """Return every value of an attribute."""
        return [value for name, value in self.attributes if name == attribute]


def test_the_page_needs_nothing_from_outside(facts: Facts) -> None:
    page = Page(report(facts))
    assert not {"script", "link", "iframe", "object", "img", "image", "use", "base", "form"} & page.tags
    assert not page.values("src") and all(value.startswith("#") for value in page.values("href"))
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "url(" not in page.style and "@import" not in page.style
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page.values("content")


def test_hostile_text_stays_text(facts: Facts) -> None:
    hostile = facts.samples[2]["source"]
    data = {"problems": [hostile], hostile: {"pairs": 3}, "lines": [{hostile: hostile}]}
    page = Page(report(replace(facts, name=hostile, data=data, machine=(hostile,))))
    assert page.tags == Page(report(facts)).tags
    assert page.text.count(visible(hostile)) >= 9
    assert "\x1b" not in page.text and "\u202e" not in page.text


def test_links_lead_to_sections(facts: Facts) -> None:
    page = Page(report(facts))
    assert sorted(value[1:] for value in page.values("href")) == sorted(page.values("id"))
    assert page.values("id") == ["scores", "curves", "translations", "alignment", "data", "time", "recipe"]


def test_the_figures_are_those_of_the_kept_weights(facts: Facts) -> None:
    page = Page(report(facts))
    kept = next(record for record in facts.validations if record["step"] == 5000)
    assert {f"{kept['bleu']:.1f}", f"{kept['loss']:.3f}", "42 min 14 s", "39.61", "3,900"} <= set(page.words)
    assert "kept: step 5,000, the best loss" in page.words
    assert "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.5.1" in page.words


def test_six_curves_and_the_two_alignments_are_drawn(facts: Facts) -> None:
    classes = Page(report(facts)).values("class")
    assert (classes.count("chart"), classes.count("alignment")) == (6, 2)


def test_skipped_steps_name_their_lines(facts: Facts) -> None:
    page = Page(report(facts))
    assert "2 steps were skipped because the loss or a gradient was not finite:" in page.words
    assert "step 1,230: line 17, line 25011 of the training data" in page.words


def test_many_skipped_steps_are_counted_not_listed(facts: Facts) -> None:
    many = [{"step": step, "kind": "skipped", "places": [f"line {n}" for n in range(40)]} for step in range(1, 34)]
    page = Page(report(replace(facts, metrics=many)))
    assert "and 13 more" in page.words
    assert f"step 1: {', '.join(f'line {n}' for n in range(12))} and 28 more of the training data" in page.words


def test_words_that_differ_from_the_reference_are_marked(facts: Facts) -> None:
    page = report(facts)
    assert "Ein Mann schläft auf einer <mark>Parkbank.</mark>" in page
    assert page.count("✓ same as the reference") == 1
    assert "(empty)" in page


def test_case_is_no_difference_to_a_model_without_it(facts: Facts) -> None:
    tokenizer = facts.recipe.tokenizer.model_copy(update={"lowercase": True})
    line = {"source": "A", "reference": "Ein Mann schläft.", "translation": "ein mann schläft."}
    metrics = [{"step": 1, "kind": "validation", "best": True, "seconds": 1.0, "loss": 1.0, "perplexity": 2.7, "samples": [line]}]
    page = report(replace(facts, recipe=facts.recipe.model_copy(update={"tokenizer": tokenizer}), metrics=metrics))
    assert 'ein mann schläft. <span class="same">✓ same as the reference</span>' in page
    assert "upper and lower case aside" in page
    assert "same as the reference" not in report(replace(facts, metrics=metrics))


def test_a_run_that_wrote_nothing_yet_still_has_a_page(facts: Facts) -> None:
    bare = Facts(name="x", recipe=facts.recipe, metrics=[], n_parameters=10, n_active=10, seconds=0.0, data={})
    assert Page(report(bare)).values("id") == ["time", "recipe"]


def test_losses_that_were_never_finite_do_not_break_the_page(facts: Facts) -> None:
    record = {"step": 1, "kind": "train", "loss": None, "nll": None, "grad_norm": None, "learning_rate": 0.1}
    validation = {"step": 1, "kind": "validation", "best": True, "seconds": 1.0, "loss": None, "perplexity": None}
    page = Page(report(replace(facts, metrics=[record, validation])))
    assert page.values("class").count("chart") == 1
    assert "–" in page.words


def test_the_data_report_is_laid_out_whatever_its_fields(facts: Facts) -> None:
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
    words = Page(report(replace(facts, data=data))).words
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
        "3.1 %",
        "Longest in training",
    } <= set(words)


def test_the_same_facts_make_the_same_page(facts: Facts) -> None:
    assert report(facts) == report(replace(facts))
