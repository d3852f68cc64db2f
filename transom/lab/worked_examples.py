"""Verdicts on the numbers of the articles: each is recomputed with transom's layers from computed values and from printed ones."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from transom.lab.examples import ERRATUM, EXACT, GIVEN, ROUNDED, Example, Verdict, load_examples
from transom.lab.recompute_counts import count_steps
from transom.lab.recompute_small import small_steps
from transom.lab.recompute_translation import translation_steps
from transom.lab.steps import Calculation, Step

ROUNDING_SLACK = 1e-9
"""Relative slack of a comparison with half a unit, for numbers that end in 5 before they are rounded."""

MOST_UNITS = 10
"""Units of the last place below which an erratum is one of the last digits."""


class Result(NamedTuple):
    """An example and what recomputing it shows.

    Attributes:
        example: the example.
        verdict: the verdict.
        right: the value from given numbers only, without any rounding; the printed value for a given example.
        from_inputs: the value of this step from the printed numbers that it reads; equal to ``right`` without such numbers.
        first_wrong: ids of the first wrong steps that lead to an erratum: the example itself, or earlier ones that it builds on.
        own: whether an erratum is in this step, and not only in the numbers that it reads.
    """

    example: Example
    verdict: Verdict
    right: Float[Tensor, "..."]
    from_inputs: Float[Tensor, "..."]
    first_wrong: tuple[str, ...] = ()
    own: bool = False

    @property
    def first(self) -> str:
        """Id of the first wrong step: the example itself if its own step is wrong, else the earliest; empty without an erratum."""
        return self.example.id if self.own else self.first_wrong[0] if self.first_wrong else ""

    @property
    def inherits(self) -> bool:
        """Whether the step reads printed numbers that are wrong already."""
        return any(each != self.example.id for each in self.first_wrong)

    @property
    def only_last_digits(self) -> bool:
        """Whether the printed numbers have decimals and differ from the value of this step in their last digits only."""
        decimals = bool((self.example.half_unit < 0.5).all())
        return self.own and self.example.kind == "computed" and decimals and self.units < MOST_UNITS

    @property
    def units(self) -> float:
        """Largest distance of the printed numbers from the value of this step, in units of their last place."""
        return float(((self.example.value - self.from_inputs).abs() / (2 * self.example.half_unit)).max())


@lru_cache(maxsize=1)
def all_steps() -> dict[str, Step]:
    """Return the step of each computed example."""
    examples = load_examples()
    return {**translation_steps(examples), **small_steps(examples), **count_steps(examples)}


def check_all(examples: Mapping[str, Example] | None = None) -> dict[str, Result]:
    """Recompute all examples, and return the results by id.

    Args:
        examples: examples to recompute in place of the packaged ones.
    """
    return dict(_packaged_results()) if examples is None else _results(examples)


@lru_cache(maxsize=1)
def _packaged_results() -> dict[str, Result]:
    return _results(load_examples())


def _results(examples: Mapping[str, Example]) -> dict[str, Result]:
    calculation, results = Calculation(examples, all_steps()), dict[str, Result]()
    for name in examples:
        check(calculation, name, results)
    return {name: results[name] for name in examples}


def check(calculation: Calculation, name: str, results: dict[str, Result]) -> Result:
    """Recompute an example after those that it builds on, and add all of them to ``results``."""
    if name in results:
        return results[name]
    example = calculation.examples[name]
    right = calculation.exact(name)
    if example.kind == "given":
        result = Result(example, GIVEN, right, right)
    elif rounds_to(right, example):
        result = Result(example, EXACT, right, calculation.from_printed(name, 1))
    elif example.kind == "cited" and is_cut_off(right, example):
        result = Result(example, ROUNDED, right, right)
    elif example.kind == "cited":
        result = Result(example, ERRATUM, right, right, (name,), own=True)
    else:
        before = [check(calculation, each, results) for each in calculation.inputs(name)]
        inherited = {first for each in before for first in each.first_wrong}
        own = not (follows(calculation, name) or (bool(inherited) and is_within_reach(calculation, name)))
        first_wrong = sorted({*inherited, *([name] if own else [])}, key=lambda each: (calculation.examples[each].lines[0], each))
        verdict = ERRATUM if own or inherited else ROUNDED
        result = Result(example, verdict, right, calculation.from_printed(name, 1), tuple(first_wrong), own)
    results[name] = result
    return result


def rounds_to(value: Float[Tensor, "..."], example: Example, slack: Float[Tensor, "..."] | float = 0.0) -> bool:
    """Return whether a value rounds to the printed one, a number that ends in 5 up or down; ``slack`` widens the comparison."""
    error = (value - example.value).abs()
    return bool((error <= (example.half_unit + slack) * (1 + ROUNDING_SLACK)).all())


def follows(calculation: Calculation, name: str) -> bool:
    """Return whether a printed value follows from earlier printed values: from those one step before, two steps, and so on.

    It may be rounded, or its further digits may be cut off.
    """
    example = calculation.examples[name]
    values = [calculation.from_printed(name, depth) for depth in range(1, max(calculation.depth(name), 1) + 1)]
    return any(rounds_to(value, example) or is_cut_off(value, example) for value in values)


def is_within_reach(calculation: Calculation, name: str) -> bool:
    """Return whether a printed value follows from numbers that round to those printed one step before.

    Articles compute with more digits than they print. After a wrong step, such digits cannot be computed, so this is the only way to find
    whether a later step is wrong too.
    """
    return rounds_to(calculation.from_printed(name, 1), calculation.examples[name], calculation.reach(name))


def is_cut_off(value: Float[Tensor, "..."], example: Example) -> bool:
    """Return whether the printed numbers are those of a value whose further digits are cut off."""
    unit = 2 * example.half_unit
    return bool((((value / unit).trunc() - example.value / unit).abs() < ROUNDING_SLACK).all())


def count_verdicts(results: Iterable[Result]) -> dict[Verdict, int]:
    """Count the results with each verdict."""
    found = list(results)
    return {verdict: sum(result.verdict == verdict for result in found) for verdict in (EXACT, ROUNDED, ERRATUM, GIVEN)}
