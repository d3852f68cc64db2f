r"""Reads hand calculations back from text, Markdown, LaTeX and HTML, and evaluates each line. It knows nothing of transom.

Grammar of a line, in all formats: ``label = expression = result``. An expression has numbers, ``+ - * / ^``, parentheses, elementary
functions, ``max(...)``, and ``... (n more: x)``, the value x of n terms that are not printed. The line holds if the expression, evaluated
in float64, rounds to the result at the result's last printed place.
"""

import html
import math
import re
from html.parser import HTMLParser
from typing import Any, NamedTuple

FUNCTIONS = {"exp": math.exp, "ln": math.log, "sqrt": math.sqrt, "tanh": math.tanh, "erf": math.erf, "sin": math.sin, "cos": math.cos}

TOKEN = re.compile(
    r"\s*(?:(?P<more>\.\.\. \([\d,]+ more: (?P<rest>-?(?:inf|[\d.]+(?:e-?\d+)?))\))"
    r"|(?P<number>inf|\d+(?:\.\d+)?(?:e-?\d+)?)|(?P<name>[a-z]+)|(?P<sign>[-+*/^(),]))"
)


class Line(NamedTuple):
    """A calculation: label, expression and result as text."""

    label: str
    expression: str
    result: str


class Expression:
    """Evaluates an expression by recursive descent."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            match = TOKEN.match(text, at)
            assert match, f"unexpected {text[at : at + 20]!r} in {text!r}"
            kind = str(match.lastgroup if match.lastgroup != "rest" else "more")
            self.tokens.append((kind, match["rest"] if kind == "more" else match[kind]))
            at = match.end()
        self.place = 0
        self.value = self.total()
        assert self.place == len(self.tokens), f"rest {self.tokens[self.place :]} of {text!r}"

    def next_is(self, *signs: str) -> str | None:
        """Take the next token if it is one of these signs."""
        if self.place < len(self.tokens) and self.tokens[self.place] in [("sign", sign) for sign in signs]:
            self.place += 1
            return self.tokens[self.place - 1][1]
        return None

    def total(self) -> float:
        """Evaluate terms from left to right."""
        value = -self.term() if self.next_is("-") else self.term()
        while sign := self.next_is("+", "-"):
            value = value + self.term() if sign == "+" else value - self.term()
        return value

    def term(self) -> float:
        """Evaluate factors from left to right."""
        value = self.power()
        while sign := self.next_is("*", "/"):
            value = value * self.power() if sign == "*" else value / self.power()
        return value

    def power(self) -> float:
        """Evaluate a base with its exponent."""
        value = self.atom()
        return float(value ** self.atom()) if self.next_is("^") else value

    def atom(self) -> float:
        """Evaluate a number, a function or an expression in parentheses."""
        kind, text = self.tokens[self.place]
        self.place += 1
        if kind in ("number", "more"):
            return float(text)
        if kind == "name":
            assert self.next_is("(")
            values = [self.total()]
            while self.next_is(","):
                values.append(self.total())
            assert self.next_is(")")
            return max(values) if text == "max" else FUNCTIONS[text](*values)
        assert text == "(", f"unexpected {text!r}"
        value = self.total()
        assert self.next_is(")")
        return value


def last_place(result: str) -> int:
    """Return the decimal place of the last printed digit: 2 for 0.25, 6 for 1.234e-3."""
    mantissa, _, exponent = result.partition("e")
    return len(mantissa.partition(".")[2]) - int(exponent or 0)


def holds(line: Line) -> bool:
    """Return whether a line's expression rounds to its result."""
    value, printed = Expression(line.expression).value, float(line.result)
    if math.isinf(value) or math.isinf(printed):
        return value == printed
    return abs(value - printed) <= 0.5 * 10.0 ** -last_place(line.result) * (1 + 1e-9)


def _split(text: str) -> Line:
    label, expression, result = text.rsplit(" = ", 2)
    return Line(label, expression, result)


def text_lines(page: str) -> list[Line]:
    """Return the calculations of a text: lines indented by four spaces, which lines indented by eight continue."""
    whole = page.replace(f"\n{' ' * 8}", " ")
    return [_split(line.strip()) for line in whole.splitlines() if re.match(r" {4}\S", line)]


def markdown_lines(page: str) -> list[Line]:
    """Return the calculations of a Markdown document: items that are one code span."""
    spans = (re.fullmatch(r"- (`+) ?((?:(?!\1).)*) ?\1", line) for line in page.splitlines())
    return [_split(span[2]) for span in spans if span]


def _group(text: str, at: int) -> tuple[str, int]:
    """Return the content of the braces that open at a place, and the place after them."""
    assert text[at] == "{", text[at : at + 20]
    depth, end = 0, at
    while True:
        if text[end] == "\\":
            end += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
        if not depth:
            return text[at + 1 : end - 1], end


def _plain(latex: str) -> str:
    """Translate an expression from LaTeX."""
    while (at := latex.find(r"\frac{")) >= 0:
        numerator, middle = _group(latex, at + 5)
        denominator, end = _group(latex, middle)
        latex = f"{latex[:at]}(({numerator}) / ({denominator})){latex[end:]}"
    while (at := latex.find(r"\sqrt{")) >= 0:
        argument, end = _group(latex, at + 5)
        latex = f"{latex[:at]}sqrt({argument}){latex[end:]}"
    latex = re.sub(r" \\times 10\^\{(-?\d+)\}", r"e\1", latex)
    latex = re.sub(r"\\ldots\\ \(\\text\{([\d,]+ more: )\}", r"... (\1", latex)
    for before, after in ((r"\left", ""), (r"\right", ""), (r"\cdot", "*"), (r"\infty", "inf"), (r"\operatorname{erf}", "erf")):
        latex = latex.replace(before, after)
    return re.sub(r"\\(exp|ln|tanh|sin|cos|max)\b", r"\1", latex)


def latex_lines(page: str) -> list[Line]:
    r"""Return the calculations of a LaTeX document: ``\step{label}{expression}{result}``."""
    found = []
    for line in page.splitlines():
        if line.startswith(r"\step{"):
            label, at = _group(line, 5)
            expression, at = _group(line, at)
            result, at = _group(line, at)
            assert at == len(line)
            found.append(Line(label, _plain(expression), _plain(result)))
    return found


class _Steps(HTMLParser):
    """Collects the text of paragraphs of class ``step``."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "p":
            self.inside = ("class", "step") in attrs
            self.texts += [""] * self.inside

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "p"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[-1] += data


def html_lines(page: str) -> list[Line]:
    """Return the calculations of an HTML page."""
    parser = _Steps()
    parser.feed(page)
    signs = {"\u00d7": "*", "\u2212": "-", "\u221a": "sqrt", "\u221e": "inf", "\u2026": "..."}
    found = []
    for text in parser.texts:
        line = _split(html.unescape(text))
        found.append(
            line._replace(
                **{name: re.sub("|".join(signs), lambda m: signs[m[0]], getattr(line, name)) for name in ("expression", "result")}
            )
        )
    return found


READERS = {"text": text_lines, "markdown": markdown_lines, "latex": latex_lines, "html": html_lines}
"""Reader of each format."""


def evaluate_tree(tree: Any) -> float:
    """Evaluate an expression of the JSON format from all of its operands."""
    if not isinstance(tree, dict):
        return float(tree)
    values = [evaluate_tree(operand) for operand in tree["operands"]]
    match tree["operation"]:
        case "add":
            return sum(values)
        case "subtract":
            return values[0] - values[1]
        case "multiply":
            return math.prod(values)
        case "divide":
            return values[0] / values[1]
        case "power":
            return float(values[0] ** values[1])
        case "max":
            return max(values)
        case name:
            return FUNCTIONS[name](*values)
