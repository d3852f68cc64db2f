"""Sections and steps of a hand calculation, and the digits with which a step is printed so that it can be checked."""

import math
from typing import Any, Literal, NamedTuple

from transom.files.message import joined
from transom.inspection.explain.expressions import Expression
from transom.inspection.explain.notation import Notation, Typeset, format_operand, format_result, places_of
from transom.inspection.messages.tables import message

MIN_DIGITS, MAX_DIGITS = 4, 17
"""Significant digits of printed operands; 17 give every float64 exactly."""

MAX_VALUES = 6
"""A longer vector is printed up to this number of elements."""

MORE_PLACES = 6
"""Decimal places that are tried beyond the usual ones, where the result lies between two rounded values."""


class Digits(NamedTuple):
    """Digits of a printed step.

    Attributes:
        operands: significant digits of the operands.
        places: decimal place to which the result is rounded.
    """

    operands: int
    places: int


def choose_digits(expression: Expression, value: float, error: float) -> Digits:
    """Return the fewest digits of the operands with which the printed expression gives the printed result.

    The result is rounded to four to six significant digits. The expression with printed operands, evaluated in float64 in any order, gives
    this rounded result; where it lies so close between two rounded values that the order of evaluation matters, the result gets more or
    fewer digits.

    Args:
        expression: the expression.
        value: its value.
        error: its error, as a multiple of the eps of a dtype.
    """
    usual = places_of(value)
    if math.isinf(value):
        return Digits(MIN_DIGITS, usual)
    margin = 4.0 * 2.0**-52 * error
    for places in (*range(usual, usual + MORE_PLACES), *range(usual - 1, usual - 30, -1)):
        expected = {format_result(value - margin, places), format_result(value + margin, places)}
        if len(expected) == 1:
            for digits in range(MIN_DIGITS, MAX_DIGITS + 1):
                printed = expression.value(digits)
                if {format_result(printed - margin, places), format_result(printed + margin, places)} == expected:
                    return Digits(digits, places)
    raise AssertionError(f"no digits give {value!r}")


class Calculation:
    """A step: a quantity, the expression that gives it, and its value.

    Attributes:
        label: the quantity.
        formula: its equation in symbols; consecutive steps with one formula print it once.
        expression: operators and operands.
        value: value of the expression in float64.
        error: rounding error that a computation in a narrower dtype may have, as a multiple of the dtype's eps.
        traced: value in the model's pass; None if the pass has no such quantity.
        digits: digits with which the step is printed.
    """

    def __init__(self, label: str, formula: str, expression: Expression, traced: float | None) -> None:
        """Evaluate the expression and choose the digits."""
        self.label, self.formula, self.expression, self.traced = label, formula, expression, traced
        self.value, self.error = expression.value(), expression.error()
        self.digits = choose_digits(expression, self.value, self.error)

    def write(self, notation: Notation) -> tuple[str, str]:
        """Write the expression with its operands, and the result."""
        result = notation.number(format_result(self.value, self.digits.places))
        return self.expression.write(notation, self.digits.operands), result

    def typeset(self) -> tuple[str, str]:
        """Write the expression and the result with typographic signs; the word before terms that are not printed is a message."""
        expression, result = self.write(Typeset())
        first, *rest = expression.split(" more: ")
        return joined("", [first, *(part for each in rest for part in (" ", message("explain.more"), ": ", each))]), result

    def data(self) -> dict[str, Any]:
        """Return the step with all operands as JSON-serializable data."""
        return {
            "kind": "calculation",
            "label": self.label,
            "formula": self.formula,
            "expression": self.expression.data(),
            "value": self.value if math.isfinite(self.value) else str(self.value),
            "traced": self.traced if self.traced is None or math.isfinite(self.traced) else str(self.traced),
            "digits": self.digits._asdict(),
            "result": format_result(self.value, self.digits.places),
        }


class Values(NamedTuple):
    """A step that shows a vector without calculating it.

    Attributes:
        label: the quantity.
        formula: what it is.
        values: its elements.
        names: a name for each element; empty for none.
    """

    label: str
    formula: str
    values: tuple[float, ...]
    names: tuple[str, ...] = ()

    def write(self, notation: Notation) -> str:
        """Write the first elements, and how many follow."""
        shown = self.values if len(self.values) <= MAX_VALUES + 1 else self.values[:MAX_VALUES]
        written = [notation.number(_format_value(value)) for value in shown]
        if self.names:
            written = [f"{name} {text}" for name, text in zip(self.names, written, strict=False)]
        if len(shown) < len(self.values):
            written.append(message("explain.more_values", number=len(self.values) - len(shown)))
        return joined("", ["[", joined(", ", written), "]"])

    def data(self) -> dict[str, Any]:
        """Return the step as JSON-serializable data."""
        values = [value if math.isfinite(value) else str(value) for value in self.values]
        return {"kind": "values", "label": self.label, "formula": self.formula, "values": values, "names": list(self.names)}


def _format_value(value: float) -> str:
    """Write an element of a vector: whole numbers without decimals."""
    return format_operand(value, None) if value.is_integer() and abs(value) < 1e6 else format_result(value, places_of(value))


class Note(NamedTuple):
    """A step that is a sentence.

    Attributes:
        text: the sentence.
        kind: "note", or "check" for a comparison with what the model computed.
    """

    text: str
    kind: Literal["note", "check"] = "note"

    def data(self) -> dict[str, Any]:
        """Return the sentence as JSON-serializable data."""
        return self._asdict()


Step = Calculation | Values | Note


class Section(NamedTuple):
    """A part of a hand calculation.

    Attributes:
        title: heading.
        steps: steps in the order of the calculation.
    """

    title: str
    steps: list[Step]

    def data(self) -> dict[str, Any]:
        """Return the section as JSON-serializable data."""
        return {"title": self.title, "steps": [step.data() for step in self.steps]}
