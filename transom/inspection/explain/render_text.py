"""A hand calculation as plain text, Markdown and LaTeX."""

import re
import textwrap
from collections.abc import Iterator, Sequence

from transom.inspection.explain.notation import TEXT, Latex
from transom.inspection.explain.steps import Calculation, Section, Step, Values
from transom.inspection.pages.markup import escape_control_characters

BOLD, DIM, GREEN, CYAN, END = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[36m", "\x1b[0m"
"""Escape sequences of terminals."""


def grouped(steps: Sequence[Step]) -> Iterator[tuple[str, Step]]:
    """Yield each step with its formula, which is empty where it is that of the step before."""
    before = ""
    for step in steps:
        formula = step.formula if isinstance(step, Calculation) else ""
        yield "" if formula == before else formula, step
        before = formula


OPERATOR = re.compile(r" (?=[-+=] )|(?<=, )")
"""Places at which an equation can continue on the next line."""


def render_text(title: str, lead: str, sections: Sequence[Section], color: bool = False, width: int | None = None) -> str:
    """Return plain text; every line of a calculation is ``label = expression = result``, indented by four spaces.

    With a ``width``, longer calculations continue before an operator, indented by eight spaces, and other lines by six.
    """

    def paint(code: str, text: str) -> str:
        return f"{code}{text}{END}" if color else text

    def fill(text: str) -> str:
        return (
            text if width is None else textwrap.fill(text, width, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False)
        )

    lines = [paint(BOLD, fill(title)), fill(lead)]
    for number, section in enumerate(sections, 1):
        lines += ["", paint(BOLD, fill(f"{number}. {section.title}"))]
        for formula, step in grouped(section.steps):
            if formula:
                lines.append(paint(DIM, fill(f"  {formula}")))
            if isinstance(step, Calculation):
                label, (expression, result) = escape_control_characters(step.label), step.write(TEXT)
                equation = "\n        ".join(wrap_equation(f"{label} =", f"{expression} = {result}", width))
                lines.append(f"    {paint(CYAN, label)}{equation[len(label) : -len(result)]}{paint(GREEN, result)}")
            elif isinstance(step, Values):
                text = fill(f"  {step.label}, {step.formula}: {escape_control_characters(step.write(TEXT))}")
                lines.append(f"  {paint(CYAN, step.label)}{text[2 + len(step.label) :]}")
            else:
                lines.append(fill(f"  {escape_control_characters(step.text)}"))
    return "\n".join(lines) + "\n"


def wrap_equation(start: str, rest: str, width: int | None) -> list[str]:
    """Break an equation that is indented by four spaces, and by eight on further lines, before operators and after commas.

    Args:
        start: the label and its equals sign, which are not broken.
        rest: expression and result.
        width: largest number of columns; None for one line.

    >>> wrap_equation("q_0 =", "0.5 * 0.25 + 1.5 * (-2) = -2.875", 24)
    ['q_0 = 0.5 * 0.25', '+ 1.5 * (-2)', '= -2.875']
    """
    lines = [start]
    for piece in OPERATOR.split(rest) if width is not None else [rest]:
        joined = f"{lines[-1]} {piece.strip()}"
        if width is not None and len(joined) > width - 8 and lines[-1] != start:
            lines.append(piece.strip())
        else:
            lines[-1] = joined
    return lines


def render_markdown(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return a Markdown document; every calculation is an item ``label = expression = result`` in a code span."""
    lines = [f"# {title}", "", _markdown(lead)]
    for number, section in enumerate(sections, 1):
        lines += ["", f"## {number}. {section.title}", ""]
        for formula, step in grouped(section.steps):
            if formula:
                lines += ["", f"{_markdown(formula)}", ""]
            if isinstance(step, Calculation):
                expression, result = step.write(TEXT)
                lines.append(f"- {_code(f'{escape_control_characters(step.label)} = {expression} = {result}')}")
            elif isinstance(step, Values):
                lines.append(f"- {_code(step.label)}, {_markdown(step.formula)}: {_code(escape_control_characters(step.write(TEXT)))}")
            else:
                lines.append(f"- {_markdown(escape_control_characters(step.text))}")
    return "\n".join(line for number, line in enumerate(lines) if line or lines[number - 1]) + "\n"


def _code(text: str) -> str:
    """Return a code span; its fence is longer than any run of backticks in the text."""
    fence = "`"
    while fence in text:
        fence += "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def _markdown(text: str) -> str:
    r"""Escape the characters that Markdown interprets.

    >>> _markdown("W_Q * x")
    'W\\_Q \\* x'
    """
    return "".join(f"\\{character}" if character in r"\`*_[]<>|#~$" else character for character in text)


def render_latex(title: str, lead: str, sections: Sequence[Section]) -> str:
    r"""Return a LaTeX document; every calculation is ``\step{label}{expression}{result}``. It needs LuaLaTeX or XeLaTeX."""
    notation = Latex()
    lines = [*PREAMBLE, rf"\title{{{_latex(title)}}}", r"\date{}", r"\begin{document}", r"\maketitle", _latex(lead)]
    for section in sections:
        lines += ["", rf"\section{{{_latex(section.title)}}}"]
        for formula, step in grouped(section.steps):
            if formula:
                lines.append(rf"\formula{{{_latex(formula)}}}")
            if isinstance(step, Calculation):
                expression, result = step.write(notation)
                lines.append(rf"\step{{{_latex(step.label)}}}{{{expression}}}{{{result}}}")
            elif isinstance(step, Values):
                lines.append(rf"\given{{{_latex(step.label)}}}{{{_latex(step.formula)}}}{{{_latex(step.write(TEXT))}}}")
            else:
                lines.append(rf"\note{{{_latex(step.text)}}}")
    return "\n".join([*lines, r"\end{document}"]) + "\n"


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
