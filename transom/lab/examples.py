"""Numbers printed in five articles on the Transformer, as data: where each is printed, to how many digits, and whether it is right.

``articles/*.json`` has one file per article. Printed numbers are kept as text, because their digits are the precision that they claim.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict
from torch import Tensor

EXACT: Literal["agrees at the printed precision"] = "agrees at the printed precision"
ROUNDED: Literal["agrees given the article's own earlier rounding"] = "agrees given the article's own earlier rounding"
ERRATUM: Literal["erratum"] = "erratum"
GIVEN: Literal["given"] = "given"

Verdict = Literal["agrees at the printed precision", "agrees given the article's own earlier rounding", "erratum", "given"]
"""Whether a printed number is right. Inputs that an article assumes, such as its matrices, are ``given``."""

Printed: TypeAlias = str | list[str] | list[list[str]]
"""A printed number, vector or matrix; each number is the text of the article, such as ``-0.80``."""


class Record(BaseModel):
    """Base of the records in ``articles/*.json``, which have no other fields than those declared."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Example(Record):
    """A number, vector or matrix that an article prints.

    Attributes:
        id: name; the number of the article comes first.
        lines: lines of the article that print the value, in part or as a whole.
        section: section of the lesson to which the value belongs.
        quantity: meaning of the value.
        symbol: symbol or formula; empty without one.
        printed: the value as printed.
        kind: ``given`` for inputs that the article assumes, ``computed`` for results, ``cited`` for facts about published work.
        verdict: the verdict, which ``worked_examples.check`` recomputes.
        first_wrong: id of the first wrong step that leads to an erratum, which may be the example itself; empty without an erratum.
        why: explanation of an erratum whose own step is wrong.
        note: further remark, such as the readings that were tried.
        source: publication of a cited fact.
        published: the cited fact as published.
    """

    id: str
    lines: tuple[int, ...]
    section: str
    quantity: str
    symbol: str = ""
    printed: Printed
    kind: Literal["given", "computed", "cited"] = "computed"
    verdict: Verdict
    first_wrong: str = ""
    why: str = ""
    note: str = ""
    source: str = ""
    published: Printed | None = None

    @property
    def article(self) -> str:
        """Number of the article."""
        return self.id[:3]

    @property
    def value(self) -> Float[Tensor, "..."]:
        """The printed numbers, in float64."""
        return to_tensor(self.printed)

    @property
    def half_unit(self) -> Float[Tensor, "..."]:
        """Half a unit of the last printed place of each number: the largest error of correct rounding."""
        return to_tensor(_map(self.printed, lambda text: str(0.5 * 10.0 ** -len(text.partition(".")[2]))))


class ConceptualErratum(Record):
    """A formula or statement that contradicts itself, another one or the cited work, or has a wrong symbol.

    Attributes:
        id: name; the number of the article comes first.
        lines: lines of the article.
        problem: what is wrong.
        right: the right formula or statement.
    """

    id: str
    lines: tuple[int, ...]
    problem: str
    right: str


class Article(Record):
    """The numbers and conceptual errata of one article.

    Attributes:
        number: number of the article, three digits.
        title: its title.
        examples: its numbers in the order of the article.
        conceptual: its conceptual errata.
    """

    number: str
    title: str
    examples: tuple[Example, ...]
    conceptual: tuple[ConceptualErratum, ...]


class Section(Record):
    """A section of the lesson: its title, an introduction, and the formula that its numbers follow.

    The id of a part of a section is that of the section, a slash, and a name: ``encoder/attention``.
    """

    id: str
    title: str
    text: str
    formula: str = ""

    @property
    def is_part(self) -> bool:
        """Whether the section is a part of another one."""
        return "/" in self.id


def to_tensor(printed: Printed) -> Float[Tensor, "..."]:
    """Convert printed numbers to float64."""
    return torch.tensor(_map(printed, float), dtype=torch.float64)


def _map(printed: Any, function: Any) -> Any:
    """Apply a function to each number of a printed value."""
    return [_map(each, function) for each in printed] if isinstance(printed, list) else function(printed)


def printed_numbers(printed: Printed) -> Iterator[str]:
    """Yield each number of a printed value."""
    if isinstance(printed, str):
        yield printed
    else:
        for each in printed:
            yield from printed_numbers(each)


@lru_cache(maxsize=1)
def load_articles() -> tuple[Article, ...]:
    """Read the packaged articles, in order."""
    folder = resources.files("transom.lab") / "articles"
    files = sorted((file for file in folder.iterdir() if file.name[:3].isdigit()), key=lambda file: file.name)
    return tuple(Article.model_validate_json(file.read_text("utf-8")) for file in files)


@lru_cache(maxsize=1)
def load_examples() -> dict[str, Example]:
    """Return all examples by id."""
    return {example.id: example for article in load_articles() for example in article.examples}


@lru_cache(maxsize=1)
def load_sections() -> tuple[Section, ...]:
    """Read the sections of the lesson, in order."""
    text = (resources.files("transom.lab") / "articles" / "sections.json").read_text("utf-8")
    return tuple(Section.model_validate(each) for each in json.loads(text))
