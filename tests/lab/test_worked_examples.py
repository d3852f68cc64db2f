"""Verdicts on the articles' numbers: stored, recomputed, complete, and sensitive to each printed digit."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal

import pytest
import torch

from tests.lab.printed_numbers import FOUND
from tests.size import ROOT
from transom.lab.examples import (
    ERRATUM,
    EXACT,
    GIVEN,
    ROUNDED,
    Example,
    Printed,
    load_articles,
    load_examples,
    load_sections,
    printed_numbers,
)
from transom.lab.lesson import lesson_page
from transom.lab.steps import Calculation
from transom.lab.worked_examples import Result, all_steps, check, check_all, count_verdicts

LOG = ROOT / "log" / "2026-11-27-worked-examples.md"


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return check_all()


def test_the_stored_verdicts_are_those_recomputed(results: dict[str, Result]) -> None:
    stored = {name: (example.verdict, example.first_wrong) for name, example in load_examples().items()}
    assert stored == {name: (result.verdict, result.first) for name, result in results.items()}
    assert {name for name, example in load_examples().items() if example.why} == {name for name, result in results.items() if result.own}


def test_every_result_has_a_step_and_every_step_a_result() -> None:
    computed = {name for name, example in load_examples().items() if example.kind == "computed"}
    assert computed == set(all_steps())
    assert all(set(step.inputs) <= set(load_examples()) for step in all_steps().values())


def test_shapes_are_those_printed(results: dict[str, Result]) -> None:
    assert not [name for name, each in results.items() if each.right.shape != each.example.value.shape or not each.right.isfinite().all()]


def test_cited_facts_have_a_source_and_given_numbers_no_step() -> None:
    for example in load_examples().values():
        assert bool(example.source) == (example.published is not None) == (example.kind == "cited"), example.id
        assert (example.verdict == GIVEN) == (example.kind == "given"), example.id


def test_the_errata_are_those_of_the_log(results: dict[str, Result]) -> None:
    listed = re.findall(r"^\| `(\d{3}-[\w-]+)` \|", LOG.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [name for name, result in results.items() if result.own]
    assert count_verdicts(results.values()) == {EXACT: 185, ROUNDED: 24, ERRATUM: 72, GIVEN: 63}


def test_ids_are_unique_and_name_the_article() -> None:
    ids = [each.id for article in load_articles() for each in (*article.examples, *article.conceptual)]
    assert len(ids) == len(set(ids))
    assert all(each.id[:3] == article.number for article in load_articles() for each in (*article.examples, *article.conceptual))


def test_every_printed_number_is_in_an_example_of_its_line() -> None:
    """``printed_numbers.json`` is what ``printed_numbers.py`` finds in the articles, which are not part of the repository."""
    printed: dict[tuple[str, int], set[str]] = {}
    for example in load_examples().values():
        for line in example.lines:
            printed.setdefault((example.article, line), set()).update(text.lstrip("-") for text in printed_numbers(example.printed))
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    missing = [
        (article, line, text)
        for article, lines in found.items()
        for line, texts in lines.items()
        for text in texts
        if text not in printed.get((article, int(line)), set())
    ]
    assert not missing
    assert sum(len(texts) for lines in found.values() for texts in lines.values()) == 1634


def mutated(printed: Printed, place: int, units: int) -> Printed:
    """Change the number at a place, counted through a value's rows, by units of its last place."""
    left = iter(range(10**6))

    def change(part: Printed) -> Printed:
        if not isinstance(part, str):
            return [change(each) for each in part]  # type: ignore[return-value]
        number = Decimal(part)
        return str(number + units * Decimal(10) ** number.as_tuple().exponent) if next(left) == place else part  # type: ignore[operator]

    return change(printed)


def mutants(example: Example) -> Iterator[Example]:
    """Yield the example with each of its numbers changed by 3 units of its last place, up and down in turn."""
    for place in range(example.value.numel()):
        yield example.model_copy(update={"printed": mutated(example.printed, place, 3 if place % 2 else -3)})


def test_a_number_that_is_changed_by_three_units_becomes_an_erratum(results: dict[str, Result]) -> None:
    calculation = Calculation(dict(load_examples()), all_steps())
    n = 0
    for name, result in results.items():
        if result.verdict in (EXACT, ROUNDED):
            for mutant in mutants(result.example):
                found = check_with(calculation, mutant, results)
                assert (found.verdict, found.own) == (ERRATUM, True), (name, mutant.printed)
                n += 1
    assert n > 500


def check_with(calculation: Calculation, mutant: Example, results: dict[str, Result]) -> Result:
    """Check a changed example against the values of the others, which do not depend on its printed numbers."""
    original = calculation.examples[mutant.id]
    examples = calculation.examples
    assert isinstance(examples, dict)
    examples[mutant.id] = mutant
    found = check(calculation, mutant.id, {name: result for name, result in results.items() if name != mutant.id})
    examples[mutant.id] = original
    return found


def test_an_error_in_an_input_is_charged_to_the_input() -> None:
    """Of three values that build on one another, a wrong first one makes the others follow from it."""
    examples = dict(load_examples())
    name = "002-enc-dots2"
    examples[name] = examples[name].model_copy(update={"printed": [["1.5026", "1.2212"], ["0.9138", "1.1866"]]})
    wrong = torch.tensor([[1.5026, 1.2212], [0.9138, 1.1866]], dtype=torch.float64)
    scores = [[f"{value:.3f}" for value in row] for row in (wrong / 3**0.5).tolist()]
    examples["002-enc-scores2"] = examples["002-enc-scores2"].model_copy(update={"printed": scores})
    results = check_all(examples)
    assert results[name].own and results[name].first == name
    assert (results["002-enc-scores2"].verdict, results["002-enc-scores2"].own, results["002-enc-scores2"].first) == (ERRATUM, False, name)


def test_every_example_has_a_section_and_every_section_an_example() -> None:
    assert {example.section for example in load_examples().values()} == {section.id for section in load_sections()}


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "worked-examples.md").read_text(encoding="utf-8") == lesson_page(), "run `make docs`"


def test_the_page_has_every_example_and_explains_every_wrong_step(results: dict[str, Result]) -> None:
    page = lesson_page()
    tables, errata = page.split("\n## Errata\n")
    assert tables.count("\n| 00") - len(load_articles()) == len(results)
    assert all(
        result.example.why.replace("_", "\\_") in errata for result in results.values() if result.own and "^" not in result.example.why
    )
    assert errata.count("\n- **") == sum(result.own for result in results.values())
