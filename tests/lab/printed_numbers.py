"""Find the decimal numbers that articles print: ``python -m tests.lab.printed_numbers FOLDER`` writes ``decimals.json``."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DECIMALS = Path(__file__).with_name("decimals.json")
"""The decimal numbers of each article by line; the articles themselves are not part of the repository."""

URL = re.compile(r"https?://\S+")
HEADING = re.compile(r"(?<![\d.])\d{1,2}\.\d(?=b? [A-Z]|\. [A-Z])")
"""The number of a section, before its title."""

DECIMAL = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?!\.?\d)(?=[BTMK]?(?!\w))")
"""A number with a decimal point; billions and trillions may have a letter."""


def decimals_of(line: str) -> list[str]:
    r"""Return the decimal numbers of a line in order, without signs; web addresses and section numbers are not numbers of the text.

    >>> decimals_of("7.3 Layer Normalization: 1.5B of \\(-0.80&1.00\\), https://a.org/1706.03762, v1.2.3, and 0.5.")
    ['1.5', '0.80', '1.00', '0.5']
    """
    return DECIMAL.findall(HEADING.sub(" ", URL.sub(" ", line)))


def decimals_by_line(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the number of each line that prints decimal numbers, and these."""
    for number, line in enumerate(text.split("\n"), 1):
        if found := decimals_of(line):
            yield str(number), found


def main(folder: Path) -> None:
    """Write the decimal numbers of the articles in a folder."""
    articles = {path.name[:3]: dict(decimals_by_line(path.read_text("utf-8"))) for path in sorted(folder.glob("[0-9]*.txt"))}
    rows = ",\n".join(
        f'  "{name}": {{\n' + ",\n".join(f'    "{n}": {json.dumps(found)}' for n, found in lines.items()) + "\n  }"
        for name, lines in articles.items()
    )
    DECIMALS.write_text(f"{{\n{rows}\n}}\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
