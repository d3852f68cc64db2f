"""Check the mechanical rules of our English in docstrings, comments, messages and pages (``make check``).

Each rule is one line of ``RULES``: a pattern and its remedy. What a pattern cannot see is left to readers.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "benchmarks/README.md")
SOURCES = ("transom/**/*.py", "benchmarks/**/*.py")
RECIPES = ("transom/recipes/*.toml", "transom/presets/*.toml")
DATA = "transom/data/synthetic/phrasebook/"
"""Here strings are words of the phrasebook."""

UNITS = "bits|bytes|columns|documents|draws|experts|FLOPs|heads|images|lines|milliseconds|ms|multiplications|nats|numbers|operations"
UNITS += "|one (?:document|image|sentence|text|token|word)"
UNITS += "|pairs|parameters|passes|processes|rows|samples|seconds|sentences|steps|symbols|texts|threads|tokens|weights|words"
RULES = {
    r"\bbehind\b": "write 'after' for time and order",
    r"\b(?:go|goes|going|gone|went) on\b": "write 'continue' or 'resume'",
    r"\b(?:told|tells?|telling)\b": "write 'report', 'print', 'return' or 'specify'",
    r"\bspel(?:led|lt)\b": "write 'written' or 'formatted'",
    r"\blearnt\b": "write 'learned'",
    r"\bwhat (?:a|an|the) [\w' ]+? (?:is|are|has|have|does|do) (?:made|asked|given|taken|left|said|drawn|kept)\b": "name the thing",
    r"\b(?:bricks?|the house)\b": "write 'component', 'package'",
    rf"\b(?:{UNITS}) an? (?:batch|byte|character|column|epoch|group|head|image|key|language|layer|line|merge|number|pair|part|process|query"
    r"|rank|row|sample|second|sentence|side|source|step|symbol|text|token|weight|word)\b": "write 'per'",
    r"\b\w*(?:colour|behaviou|favour|neighbour|centre[ds]?\b|grey|labell|modell|(?:initial|normal|optim|organ|recogn|summar"
    r"|token|parallel|general|serial)is(?:e|ing|ation)|catalogue)\w*": "use American spelling",
    r"\bof which (?:a|an|one) \w+ (?:each|a)\b": "use a simple clause",
    r"!(?:\s|$)": "end with a full stop",
}
"""A pattern of prose, and the remedy."""

OPENINGS = r"(?:What|How|Which|That|Those|Where|When|Who|Whoever)\b"
"""A docstring begins with a verb or a noun, not with one of these."""

MAX_WORDS = 45
"""The longest sentence."""


class Prose(NamedTuple):
    """A piece of prose and its place."""

    path: Path
    line: int
    text: str
    is_docstring: bool


def in_source(path: Path) -> Iterator[Prose]:
    """Yield the docstrings, comments and strings of several words of a Python file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    is_data = DATA in path.as_posix()
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
                docstrings.add(id(statement.value))
                yield Prose(path, statement.lineno, statement.value.value, is_docstring=True)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and node.value.count(" ") > 1
            and not is_data
            and not node.value.startswith("\ntransom ")
        ):
            yield Prose(path, node.lineno, node.value, is_docstring=False)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(?:type:|noqa|fmt:)", token.string):
            yield Prose(path, token.start[0], token.string.lstrip("# "), is_docstring=False)


def in_page(path: Path) -> Iterator[Prose]:
    """Yield the paragraphs and table rows of a Markdown page, without code blocks."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    line = 1
    for paragraph in re.split(r"(\n\s*\n|\n(?=[|*-]))", text):
        if paragraph.strip():
            yield Prose(path, line, paragraph, is_docstring=False)
        line += paragraph.count("\n")


def in_recipe(path: Path) -> Iterator[Prose]:
    """Yield the comments of a recipe, without its indented commands."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if comment := re.search(r"(?:^|\s)#\s{0,2}(\S.*)$", line):
            yield Prose(path, number, comment[1], is_docstring=False)


def plain(text: str) -> str:
    """Remove what is not prose: code, links' targets, quoted examples, doctests."""
    text = re.sub(r"^\s*(?:>>>|\.\.\.).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"(`+)[^`]+\1|\"[^\"\n]+\"", "`code`", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def faults(prose: Prose) -> Iterator[str]:
    """Yield one line per rule that a piece of prose breaks."""
    text = plain(prose.text)
    for pattern, remedy in RULES.items():
        if found := re.search(pattern, text, re.IGNORECASE):
            yield f"{' '.join(found[0].split())!r}: {remedy}"
    if prose.is_docstring and (found := re.match(OPENINGS, text.strip())):
        yield f"a docstring that begins with {found[0]!r}: begin with a verb or a noun"
    if prose.path.suffix == ".md" and prose.text.lstrip().startswith("|"):
        return
    for sentence in re.split(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*(?=[-*|] )|\n(?=\s*\w+:)", text):
        if (n := len(re.findall(r"[A-Za-z][\w'-]*", sentence))) > MAX_WORDS:
            yield f"a sentence of {n} words, the limit is {MAX_WORDS}: {' '.join(sentence.split()[:6])} ..."


def every_piece(root: Path = ROOT) -> Iterator[Prose]:
    """Yield the prose of the package, the benchmarks and the pages."""
    for pattern in SOURCES:
        for path in sorted(root.glob(pattern)):
            yield from in_source(path)
    for pattern in RECIPES:
        for path in sorted(root.glob(pattern)):
            yield from in_recipe(path)
    for pattern in PAGES:
        for path in sorted(root.glob(pattern)):
            yield from in_page(path)


def main() -> int:
    """Print each fault with its place; return 1 if there is any."""
    found = [f"{prose.path.relative_to(ROOT)}:{prose.line}: {fault}" for prose in every_piece() for fault in faults(prose)]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"prose: {len(found)} faults")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
