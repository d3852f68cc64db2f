"""Arithmetic expressions of a hand calculation, which know their value, their rounding error, and how they look with few digits.

An expression is evaluated in two ways: from its exact operands, or from the operands as they are printed, with a given number of
significant digits. Long sums print their first terms and the exact sum of the others.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from transom.inspection.explain.notation import ATOM, FACTOR, START, TERM, Notation, format_operand

MAX_TERMS = 6
"""A longer sum or maximum prints its first terms and the value of the others."""

N_FIRST = 4
"""Terms of a long sum or maximum that are printed."""


class Expression(ABC):
    """A node of an expression; Python's operators build larger ones."""

    @abstractmethod
    def value(self, digits: int | None = None) -> float:
        """Compute the value in float64, from operands with ``digits`` significant digits; None for the exact operands."""

    @abstractmethod
    def error(self) -> float:
        """Bound the rounding error of a computation in a narrower dtype, to first order, as a multiple of the dtype's eps."""

    @abstractmethod
    def write(self, notation: Notation, digits: int, level: int = START) -> str:
        """Write the expression with operands of ``digits`` significant digits, in parentheses if its place, ``level``, requires them."""

    @abstractmethod
    def data(self) -> Any:
        """Return the expression as JSON-serializable data, with all operands."""

    def __add__(self, other: "Expression") -> "Sum":
        return Sum((self, other))

    def __sub__(self, other: "Expression") -> "Difference":
        return Difference(self, other)

    def __mul__(self, other: "Expression") -> "Product":
        return Product((self, other))

    def __truediv__(self, other: "Expression") -> "Quotient":
        return Quotient(self, other)


@dataclass(frozen=True)
class Number(Expression):
    """An operand.

    Attributes:
        number: the value.
        bound: error of the value, as a multiple of eps; None for that of one rounding.
        exact: print all digits, as of a width, a temperature or the epsilon of a norm.
    """

    number: float
    bound: float | None = None
    exact: bool = False

    def value(self, digits: int | None = None) -> float:
        """Return the number, rounded as it is printed."""
        return self.number if digits is None or self.exact else float(format_operand(self.number, digits))

    def error(self) -> float:
        """Return the error of the number."""
        if self.exact or math.isinf(self.number):
            return 0.0
        return abs(self.number) if self.bound is None else self.bound

    def write(self, notation: Notation, digits: int, level: int = START) -> str:
        """Write the number; a negative one in parentheses, except at the beginning of an expression."""
        text = notation.number(format_operand(self.number, None if self.exact else digits))
        return notation.parentheses(text) if self.number < 0.0 and level > START else text

    def data(self) -> float | str:
        """Return the number; infinity as text."""
        return self.number if math.isfinite(self.number) else str(self.number)


def exact(number: float) -> Number:
    """Return a number of which all digits are printed."""
    return Number(float(number), exact=True)


class Series(Expression):
    """Terms, of which a long list prints only the first ones and the value of the others.

    Attributes:
        terms: the terms.
        rest: value of the terms that are not printed; None if all are.
    """

    NAME: ClassVar[str]

    def __init__(self, terms: Sequence[Expression]) -> None:
        """Store at least one term."""
        self.terms = tuple(terms)
        self._n_shown = len(self.terms) if len(self.terms) <= MAX_TERMS else N_FIRST
        hidden = [term.value() for term in self.terms[self._n_shown :]]
        self.rest = self.combine(hidden) if hidden else None

    @abstractmethod
    def combine(self, values: Sequence[float]) -> float:
        """Compute the value from the values of the terms."""

    def value(self, digits: int | None = None) -> float:
        """Combine the terms, or what is printed of them."""
        if digits is None:
            return self.combine([term.value() for term in self.terms])
        values = [term.value(digits) for term in self.terms[: self._n_shown]]
        return self.combine(values if self.rest is None else [*values, float(format_operand(self.rest, digits))])

    def pieces(self, notation: Notation, digits: int, first: int, others: int) -> list[str]:
        """Write the first terms, and the value of the others; the first term stands at level ``first``, the next at ``others``."""
        shown = self.terms[: self._n_shown]
        written = [term.write(notation, digits, others if number else first) for number, term in enumerate(shown)]
        if self.rest is not None:
            written.append(notation.more(len(self.terms) - self._n_shown, format_operand(self.rest, digits)))
        return written

    def data(self) -> dict[str, Any]:
        """Return the operation and all terms."""
        hidden = {} if self.rest is None else {"n_shown": self._n_shown, "rest": self.rest}
        return {"operation": self.NAME, "operands": [term.data() for term in self.terms], **hidden}


class Sum(Series):
    """A sum."""

    NAME = "add"

    def combine(self, values: Sequence[float]) -> float:
        """Add the values."""
        return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)

    def error(self) -> float:
        """Add the errors of the terms, and the rounding of the partial sums."""
        size = math.fsum(abs(value) for term in self.terms if math.isfinite(value := term.value()))
        return math.fsum(term.error() for term in self.terms) + (1.0 + math.sqrt(len(self.terms))) * size

    def write(self, notation: Notation, digits: int, level: int = START) -> str:
        """Write the terms with plus signs; a sum inside a sum needs no parentheses."""
        inner = min(level, TERM) if level < FACTOR else START
        text = " + ".join(self.pieces(notation, digits, inner, TERM))
        return notation.parentheses(text) if level >= FACTOR else text


class Maximum(Series):
    """The largest of some terms."""

    NAME = "max"

    def combine(self, values: Sequence[float]) -> float:
        """Return the largest value."""
        return max(values)

    def error(self) -> float:
        """Return the largest error of a term."""
        return max(term.error() for term in self.terms)

    def write(self, notation: Notation, digits: int, level: int = START) -> str:
        """Write the terms as arguments of max."""
        return notation.call("max", ", ".join(self.pieces(notation, digits, START, START)))


class Difference(Expression):
    """A difference."""

    def __init__(self, left: Expression, right: Expression) -> None:
        """Store minuend and subtrahend."""
        self.left, self.right = left, right

    def value(self, digits: int | None = None) -> float:
        """Subtract."""
        return self.left.value(digits) - self.right.value(digits)

    def error(self) -> float:
        """Add both errors and that of the subtraction."""
        return self.left.error() + self.right.error() + abs(self.value())

    def write(self, notation: Notation, digits: int, level: int = START) -> str:
        """Write both sides with a minus sign."""
        left = self.left.write(notation, digits, min(level, TERM) if level < FACTOR else START)
        text = f"{left} {notation.minus} {self.right.write(notation, digits, FACTOR)}"
        return notation.parentheses(text) if level >= FACTOR else text

    def data(self) -> dict[str, Any]:
        """Return the operation and both operands."""
        return {"operation": "subtract", "operands": [self.left.data(), self.right.data()]}


class Product(Expression):
    """A product."""

    def __init__(self, factors: Sequence[Expression]) -> None:
        """Store the factors."""
        self.factors = tuple(factors)

    def value(self, digits: int | None = None) -> float:
        """Multiply."""
        return math.prod(factor.value(digits) for factor in self.factors)

    def error(self) -> float:
        """Add the error of each factor times the others, and that of the multiplications."""
        values = [abs(factor.value()) for factor in self.factors]
        others = (math.prod(values[:i] + values[i + 1 :]) for i in range(len(values)))
        carried = math.fsum(factor.error() * other for factor, other in zip(self.factors, others, strict=True))
        return carried + math.prod(values) * (len(values) - 1)

    def write(self, notation: Notation, digits: int, level: int = START) -> str:
        """Write the factors with a sign of multiplication."""
        first = _write_first(self.factors[0], notation, digits, level)
        text = notation.times.join([first, *(factor.write(notation, digits, ATOM) for factor in self.factors[1:])])
        return notation.parentheses(text) if level >= ATOM else text

    def data(self) -> dict[str, Any]:
        """Return the operation and the factors."""
        return {"operation": "multiply", "operands": [factor.data() for factor in self.factors]}


class Quotient(Expression):
    """A quotient."""

    def __init__(self, numerator: Expression, denominator: Expression) -> None:
        """Store numerator and denominator."""
        self.numerator, self.denominator = numerator, denominator

    def value(self, digits: int | None = None) -> float:
        """Divide; NaN where printed digits make the denominator 0."""
        denominator = self.denominator.value(digits)
        return self.numerator.value(digits) / denominator if denominator else math.nan

    def error(self) -> float:
        """Add the relative errors of both operands, and that of the division."""
        top, bottom = abs(self.numerator.value()), abs(self.denominator.value())
        return self.numerator.error() / bottom + top * self.denominator.error() / bottom**2 + top / bottom

    def write(self, notation: Notation, digits: int, level: int = START) -> str:
        """Write a fraction, or both operands with a slash."""
        if notation.stacked:
            return notation.fraction(self.numerator.write(notation, digits), self.denominator.write(notation, digits))
        numerator = _write_first(self.numerator, notation, digits, level)
        text = f"{numerator} / {self.denominator.write(notation, digits, ATOM)}"
        return notation.parentheses(text) if level >= ATOM else text

    def data(self) -> dict[str, Any]:
        """Return the operation and both operands."""
        return {"operation": "divide", "operands": [self.numerator.data(), self.denominator.data()]}


def _write_first(factor: Expression, notation: Notation, digits: int, level: int) -> str:
    """Write the first factor of a product, or a numerator; at the beginning of an expression a negative number needs no parentheses."""
    return factor.write(notation, digits, START if isinstance(factor, Number) and level == START else FACTOR)


class Power(Expression):
    """A power with a small whole exponent."""

    def __init__(self, base: Expression, exponent: int) -> None:
        """Store base and exponent."""
        self.base, self.exponent = base, exponent

    def value(self, digits: int | None = None) -> float:
        """Raise the base to the exponent."""
        return self.base.value(digits) ** self.exponent

    def error(self) -> float:
        """Multiply the relative error of the base by the exponent; add that of the multiplications."""
        size, n = abs(self.base.value()), self.exponent
        return n * size ** (n - 1) * self.base.error() + (n - 1) * size**n

    def write(self, notation: Notation, digits: int, level: int = START) -> str:
        """Write the base with its exponent."""
        base = self.base.write(notation, digits, ATOM)
        return f"{base}^{self.exponent}"

    def data(self) -> dict[str, Any]:
        """Return the operation, the base and the exponent."""
        return {"operation": "power", "operands": [self.base.data(), self.exponent]}


class Function(NamedTuple):
    """An elementary function, and the absolute value of its derivative as a function of x and f(x)."""

    apply: Callable[[float], float]
    slope: Callable[[float, float], float]


FUNCTIONS = {
    "exp": Function(lambda x: math.exp(min(x, 709.0)), lambda x, y: y),
    "ln": Function(lambda x: math.log(x) if x > 0 else -math.inf, lambda x, y: 1.0 / x if x else 0.0),
    "sqrt": Function(lambda x: math.sqrt(max(x, 0.0)), lambda x, y: 0.5 / y if y else 0.0),
    "tanh": Function(math.tanh, lambda x, y: 1.0 - y * y),
    "erf": Function(math.erf, lambda x, y: 2.0 / math.sqrt(math.pi) * math.exp(-x * x)),
    "sin": Function(math.sin, lambda x, y: 1.0),
    "cos": Function(math.cos, lambda x, y: 1.0),
}
"""Elementary functions by the name that is printed."""


class Call(Expression):
    """An elementary function of an expression."""

    def __init__(self, name: str, argument: Expression) -> None:
        """Store the name of a function in ``FUNCTIONS`` and its argument."""
        self.name, self.argument = name, argument

    def value(self, digits: int | None = None) -> float:
        """Apply the function."""
        return FUNCTIONS[self.name].apply(self.argument.value(digits))

    def error(self) -> float:
        """Multiply the error of the argument by the slope; add two roundings of the result."""
        x, y = self.argument.value(), self.value()
        return (FUNCTIONS[self.name].slope(x, y) * self.argument.error() if math.isfinite(x) else 0.0) + 2.0 * abs(y)

    def write(self, notation: Notation, digits: int, level: int = START) -> str:
        """Write name and argument."""
        return notation.call(self.name, self.argument.write(notation, digits))

    def data(self) -> dict[str, Any]:
        """Return the function and its argument."""
        return {"operation": self.name, "operands": [self.argument.data()]}


def exp(x: Expression) -> Call:
    """Return e to the power x."""
    return Call("exp", x)


def ln(x: Expression) -> Call:
    """Return the natural logarithm of x."""
    return Call("ln", x)


def sqrt(x: Expression) -> Call:
    """Return the square root of x."""
    return Call("sqrt", x)


def tanh(x: Expression) -> Call:
    """Return the hyperbolic tangent of x."""
    return Call("tanh", x)


def sigmoid(x: Expression) -> Quotient:
    """Return 1 / (1 + exp(-x)), the sigmoid of x, where -x is written as 0 - x."""
    return exact(1) / (exact(1) + exp(exact(0) - x))


def dot(left: Sequence[Expression], right: Sequence[Expression]) -> Sum:
    """Return the dot product of two vectors."""
    return Sum([a * b for a, b in zip(left, right, strict=True)])
