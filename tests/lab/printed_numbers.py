"""Find the numbers that articles print: ``python -m tests.lab.printed_numbers FOLDER`` writes ``printed_numbers.json``."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOUND = Path(__file__).with_name("printed_numbers.json")
"""The numbers of each article by line; the articles themselves are not part of the repository."""

LEFT_OUT = (
    r"https?://\S+",
    r"(?<![\d.])\d{1,2}\.\d(?=b? [A-Z]|\. [A-Z])",  # the number of a section, before its title
    r"\d{4}-\d{2}-\d{2}|Revised \w+ \d+, \d{4}",  # the date of the article
    r"\d{4}s\b",  # a decade
)
"""Patterns of what is no number of the text."""

NUMBER = re.compile(r"(?<![\w.])(?:\d[\d,]*\.\d+(?!\.?\d)(?=[BTMK]?(?!\w))|\d{1,3}(?:,\d{3})+(?![\w.]*\d)|\d{3,}(?![\w.]*\d)(?![kx]\b))")
"""A number with a decimal point, which may have a letter for its unit, or a whole number of at least three digits."""


def numbers_of(line: str) -> list[str]:
    r"""Return the decimal numbers of a line, and its whole numbers of three digits or more, in order; signs and commas are left out.

    >>> numbers_of("7.3 Norm: 1.5B of \\(-0.80&1.00\\), https://a.org/1706.03762, v1.2.3, the 2010s, 12,288 of 50{,}257, 96, 2048 and 0.5.")
    ['1.5', '0.80', '1.00', '12288', '50257', '2048', '0.5']
    """
    text = line.replace("{,}", ",")
    for pattern in LEFT_OUT:
        text = re.sub(pattern, " ", text)
    return [number.replace(",", "") for number in NUMBER.findall(text)]


def numbers_by_line(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the number of each line that prints numbers, and these."""
    for place, line in enumerate(text.split("\n"), 1):
        if found := numbers_of(line):
            yield str(place), found


def main(folder: Path) -> None:
    """Write the numbers of the articles in a folder."""
    articles = {path.name[:3]: dict(numbers_by_line(path.read_text("utf-8"))) for path in sorted(folder.glob("[0-9]*.txt"))}
    rows = ",\n".join(
        f'  "{name}": {{\n' + ",\n".join(f'    "{n}": {json.dumps(found)}' for n, found in lines.items()) + "\n  }"
        for name, lines in articles.items()
    )
    FOUND.write_text(f"{{\n{rows}\n}}\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
