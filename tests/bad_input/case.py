"""One bad input: a command line, the files it meets, and how it must end."""

import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Place:
    """The folder that a case is run in, and the good data and runs that it may copy."""

    def __init__(self, here: Path, good: Path) -> None:
        """Write below ``here``, read below ``good``."""
        self.here, self.good = here, good

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file, its folder too."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def copy(self, run: str, name: str = "run") -> Path:
        """Copy a good run."""
        return copied(self.good / run, self.here / name)

    def data(self, name: str) -> Path:
        """Return a file or folder of good data."""
        return self.good / "data" / name


def copied(source: Path, target: Path) -> Path:
    """Copy a folder of plain files."""
    target.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.is_dir():
            copied(entry, target / entry.name)
        else:
            (target / entry.name).write_bytes(entry.read_bytes())
    return target


class Refused(NamedTuple):
    """Exit code 2 and one error line, which holds each of ``names``."""

    names: tuple[str, ...] = ()


class Accepted(NamedTuple):
    """Exit code 0 and no error line; what is printed holds each of ``notes``."""

    notes: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A bad input.

    Attributes:
        about: in a line, what is wrong with it.
        arguments: of the command line; ``GOOD/`` at the start of one stands for the folder of good data and runs.
        prepare: writes the files.
        expects: how it must end.
        may_write: files and folders that may change, relative to the folder that the case is run in.
        standard_input: what it reads there.
    """

    about: str
    arguments: list[str]
    prepare: Callable[[Place], object] = field(default=lambda place: None)
    expects: Refused | Accepted = field(default_factory=Refused)
    may_write: tuple[str, ...] = ()
    standard_input: bytes = b""


class Draw(random.Random):
    """The random details of a case."""

    def word(self, length: int = 6) -> str:
        """Draw a word of small letters."""
        return "".join(self.choices(string.ascii_lowercase, k=length))

    def odd_text(self) -> str:
        """Draw a text that a terminal or a message could stumble over."""
        control = self.choice(["\x1b[31m", "\x1b]0;title\x07", "\b\b\b", "\x7f", "\x0b\x0c", "\u0085", "\u2028", "\u009b2J"])
        return self.choice(
            [
                control + self.word(),
                self.word() + "\n" + self.word(),
                self.word() + "\r" + self.word(),
                self.word(self.randint(5_000, 20_000)),
                ("%s" * 5) + "{0}{}" + self.word(),
                "\u202e" + self.word() + "\U0001f600" * 5,
                "'\"`$(id);\\" + self.word(),
                "[red]" + self.word() + "[/red]",
            ]
        )

    def odd_number(self) -> str:
        """Draw a number that no field takes, as JSON and TOML spell it."""
        return self.choice(["9" * 5_000, "-1" + "0" * 4_400, "1" + "0" * 30, "-1" + "0" * 30, str(2**64), str(-(2**63) - 1)])

    def flipped(self, content: bytes, n: int = 1, start: int = 0) -> bytes:
        """Change bits of ``n`` bytes behind ``start``."""
        changed = bytearray(content)
        for _ in range(n):
            changed[self.randrange(start, len(content))] ^= 1 << self.randrange(8)
        return bytes(changed)

    def cut(self, content: bytes) -> bytes:
        """Leave out the end, at least one byte of it."""
        return content[: self.randrange(1, len(content))]


Make = Callable[[Draw], Case]


class Kinds(dict[str, Make]):
    """The kinds of bad input of one area, by name."""

    def add(self, make: Make) -> Make:
        """Name a kind after the function that makes it."""
        self[make.__name__] = make
        return make
