"""Notation: how numbers and operators are written: as plain text, or as LaTeX."""

import math

START, TERM, FACTOR, ATOM = range(4)
"""Places of an expression: at the beginning of a line or after an opening parenthesis, in a sum, first in a product, elsewhere in one."""


def format_operand(number: float, digits: int | None) -> str:
    """Write a number with at most ``digits`` significant digits; None for the fewest digits that give the number exactly.

    >>> format_operand(0.123456, 3), format_operand(-1.5e-7, 3), format_operand(64.0, 3), format_operand(1e-5, None)
    ('0.123', '-1.5e-7', '64', '1e-5')
    """
    if number == 0.0:
        return "0"  # also of -0.0
    if math.isinf(number):
        return "-inf" if number < 0 else "inf"
    text = f"{number:.{digits}g}" if digits is not None and digits < 17 else repr(number)
    mantissa, marker, exponent = text.partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}" if marker else mantissa


def places_of(number: float) -> int:
    """Return the decimal place to which a result is rounded: four to six significant digits.

    >>> [places_of(x) for x in (0.0, 0.5, 1.5, 123.4, 0.00012, 1.5e8)]
    [4, 4, 4, 3, 7, -3]
    """
    if number == 0.0 or math.isinf(number):
        return 4
    exponent = math.floor(math.log10(abs(number)))
    return max(3 - exponent, min(4, 5 - exponent))


def format_result(number: float, places: int) -> str:
    """Write a number rounded to a decimal place, which may be negative.

    >>> format_result(0.12345678, 4), format_result(1.5e-7, 10), format_result(123456789.0, -3), format_result(-1e-9, 4)
    ('0.1235', '1.500e-7', '1.23457e8', '0.0000')
    """
    if math.isinf(number):
        return "-inf" if number < 0 else "inf"
    rounded = float(f"{number:.{max(places, 0)}f}") if places >= 0 else round(number, places)
    if rounded == 0.0:
        return f"{0.0:.{min(max(places, 0), 6)}f}"
    exponent = math.floor(math.log10(abs(rounded)))
    if -4 <= exponent < 6 and places >= 0:
        return f"{number:.{places}f}"
    mantissa, _, power = f"{rounded:.{max(places + exponent, 0)}e}".partition("e")
    return f"{mantissa}e{int(power)}"


class Notation:
    """Plain text, which calculators and programming languages read.

    Attributes:
        times: sign of multiplication.
        minus: sign of subtraction.
        stacked: whether a fraction is written with numerator above denominator, and so without parentheses.
    """

    times, minus, stacked = " * ", "-", False

    def number(self, text: str) -> str:
        """Write a number."""
        return text

    def parentheses(self, text: str) -> str:
        """Write parentheses."""
        return f"({text})"

    def fraction(self, numerator: str, denominator: str) -> str:
        """Write a fraction."""
        return f"({numerator}) / ({denominator})"

    def call(self, name: str, argument: str) -> str:
        """Write a function of an argument."""
        return f"{name}({argument})"

    def more(self, n: int, rest: str) -> str:
        """Write the value of the terms that are not printed."""
        return f"... ({n:,} more: {self.number(rest)})"


TEXT = Notation()
"""Notation of the text and Markdown formats."""


class Typeset(Notation):
    """Typographic signs, for HTML."""

    times, minus = " \N{MULTIPLICATION SIGN} ", "\N{MINUS SIGN}"

    def number(self, text: str) -> str:
        """Write a number with a minus sign, and infinity as a symbol."""
        return text.replace("inf", "\N{INFINITY}").replace("-", "\N{MINUS SIGN}")

    def call(self, name: str, argument: str) -> str:
        """Write a function of an argument; the square root as a sign."""
        return f"\N{SQUARE ROOT}({argument})" if name == "sqrt" else f"{name}({argument})"

    def more(self, n: int, rest: str) -> str:
        """Write the value of the terms that are not printed."""
        return f"\N{HORIZONTAL ELLIPSIS} ({n:,} more: {self.number(rest)})"


class Latex(Notation):
    r"""LaTeX's mathematics, with ``\operatorname`` of amsmath."""

    times, minus, stacked = r" \cdot ", "-", True

    def number(self, text: str) -> str:
        """Write a number; powers of ten and infinity as symbols."""
        mantissa, marker, exponent = text.partition("e")
        if "inf" in text:
            return text.replace("inf", r"\infty")
        return rf"{mantissa} \times 10^{{{exponent}}}" if marker else text

    def parentheses(self, text: str) -> str:
        """Write parentheses that grow with what they hold."""
        return rf"\left({text}\right)"

    def fraction(self, numerator: str, denominator: str) -> str:
        """Write a fraction."""
        return rf"\frac{{{numerator}}}{{{denominator}}}"

    def call(self, name: str, argument: str) -> str:
        """Write a function of an argument; the square root as a sign."""
        if name == "sqrt":
            return rf"\sqrt{{{argument}}}"
        command = r"\operatorname{erf}" if name == "erf" else rf"\{name}"
        return rf"{command}\left({argument}\right)"

    def more(self, n: int, rest: str) -> str:
        """Write the value of the terms that are not printed."""
        return rf"\ldots\ (\text{{{n:,} more: }}{self.number(rest)})"
