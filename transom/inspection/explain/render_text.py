"""A hand calculation as plain text, Markdown and LaTeX."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from transom.inspection.explain.notation import TEXT, Latex, Notation
from transom.inspection.explain.steps import Calculation, Section, Step, Values
from transom.inspection.markup import escape_control_characters

BOLD, DIM, GREEN, CYAN, END = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[36m", "\x1b[0m"
"""Escape sequences of terminals."""


def grouped(steps: Sequence[Step]) -> Iterator[tuple[str, Step]]:
    """Yield each step with its formula, which is empty where it is that of the step before."""
    before = ""
    for step in steps:
        formula = step.formula if isinstance(step, Calculation) else ""
        yield "" if formula == before else formula, step
        before = formula


class Format(NamedTuple):
    """How the parts of a hand calculation are written as lines; every function returns one.

    Attributes:
        notation: notation of the calculations.
        section: writes a heading, from the number and the title of a section.
        formula: writes the equation of the calculations that follow.
        step: writes a calculation, from label, expression and result.
        given: writes a vector, from label, meaning and values.
        note: writes a sentence.
    """

    notation: Notation
    section: Callable[[int, str], str]
    formula: Callable[[str], str]
    step: Callable[[str, str, str], str]
    given: Callable[[str, str, str], str]
    note: Callable[[str], str]

    def lines(self, sections: Sequence[Section]) -> Iterator[str]:
        """Yield the lines of all sections, with an empty line before each."""
        for number, section in enumerate(sections, 1):
            yield from ("", self.section(number, section.title))
            for formula, step in grouped(section.steps):
                if formula:
                    yield self.formula(formula)
                if isinstance(step, Calculation):
                    yield self.step(step.label, *step.write(self.notation))
                elif isinstance(step, Values):
                    yield self.given(step.label, step.formula, step.write(TEXT))
                else:
                    yield self.note(step.text)


def render_text(title: str, lead: str, sections: Sequence[Section], color: bool = False) -> str:
    """Return plain text; every line of a calculation is ``label = expression = result``, indented by four spaces."""
    clean = escape_control_characters

    def paint(code: str, text: str) -> str:
        return f"{code}{clean(text)}{END}" if color else clean(text)

    form = Format(
        TEXT,
        lambda number, title: paint(BOLD, f"{number}. {title}"),
        lambda formula: paint(DIM, f"  {formula}"),
        lambda label, expression, result: f"    {paint(CYAN, label)} = {expression} = {paint(GREEN, result)}",
        lambda label, meaning, values: f"  {paint(CYAN, label)}, {clean(meaning)}: {clean(values)}",
        lambda text: f"  {clean(text)}",
    )
    return "\n".join([paint(BOLD, title), lead, *form.lines(sections)]) + "\n"


def render_markdown(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return a Markdown document; every calculation is an item ``label = expression = result`` in a code span."""
    form = Format(
        TEXT,
        lambda number, title: f"## {number}. {title}\n",
        lambda formula: f"\n{_markdown(formula)}\n",
        lambda label, expression, result: f"- {_code(f'{label} = {expression} = {result}')}",
        lambda label, meaning, values: f"- {_code(label)}, {_markdown(meaning)}: {_code(values)}",
        lambda text: f"- {_markdown(text)}",
    )
    lines = "\n".join([f"# {title}", "", _markdown(lead), *form.lines(sections)]).split("\n")
    return "\n".join(line for number, line in enumerate(lines) if line or lines[number - 1]) + "\n"


def _code(text: str) -> str:
    """Return a code span; its fence is longer than any run of backticks in the text."""
    text, fence = escape_control_characters(text), "`"
    while fence in text:
        fence += "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def _markdown(text: str) -> str:
    r"""Escape the characters that Markdown interprets.

    >>> _markdown("W_Q * x")
    'W\\_Q \\* x'
    """
    return "".join(f"\\{character}" if character in r"\`*_[]<>|#~$" else character for character in escape_control_characters(text))


def render_latex(title: str, lead: str, sections: Sequence[Section]) -> str:
    r"""Return a LaTeX document; every calculation is ``\step{label}{expression}{result}``. It needs LuaLaTeX or XeLaTeX."""
    form = Format(
        Latex(),
        lambda number, title: rf"\section{{{_latex(title)}}}",
        lambda formula: rf"\formula{{{_latex(formula)}}}",
        lambda label, expression, result: rf"\step{{{_latex(label)}}}{{{expression}}}{{{result}}}",
        lambda label, meaning, values: rf"\given{{{_latex(label)}}}{{{_latex(meaning)}}}{{{_latex(values)}}}",
        lambda text: rf"\note{{{_latex(text)}}}",
    )
    start = [*PREAMBLE, rf"\title{{{_latex(title)}}}", r"\date{}", r"\begin{document}", r"\maketitle", _latex(lead)]
    return "\n".join([*start, *form.lines(sections), r"\end{document}"]) + "\n"


PREAMBLE = (
    r"\documentclass{article}",
    r"\usepackage{amsmath}",
    r"\usepackage[margin=25mm]{geometry}",
    r"\setlength{\parindent}{0pt}",
    r"\newcommand{\formula}[1]{\par\medskip\textit{#1}\par}",
    r"\newcommand{\step}[3]{\par\hangindent=2em $\displaystyle \text{#1} = #2 = \mathbf{#3}$\par}",
    r"\newcommand{\given}[3]{\par\medskip\hangindent=2em \texttt{#1}, #2: #3\par}",
    r"\newcommand{\note}[1]{\par\medskip #1\par}",
)
"""Packages and commands of a LaTeX document."""

_LATEX = {
    **{character: f"\\{character}" for character in "#$%&_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def _latex(text: str) -> str:
    r"""Escape the characters that LaTeX interprets.

    >>> _latex("W_Q 50%")
    'W\\_Q 50\\%'
    """
    return "".join(_LATEX.get(character, character) for character in escape_control_characters(text))
