"""The catalogue of bricks, written from their schemas: ``make docs`` puts it into docs/bricks.md."""

from collections.abc import Iterator
from typing import get_args

from transom.config.brick import Schema, schemas
from transom.config.bricks import PLACEMENTS
from transom.config.model import TextTransformer
from transom.config.patterns import AnyPattern

HEAD = """# Bricks

Every model is built from the same block, and a block from bricks that a recipe names: `--set model.norm=rmsnorm`, or
`[model] feed_forward = "swiglu"`. This page is written by `make docs` from the schemas in `transom/config/`; a test fails when it is not
current. [config.md](config.md) has the fields of each. `tests/agreement/test_bricks.py` compares each brick with other people's
or with its formula in float64, `tests/models/test_combinations.py` tries them in random combinations.
"""

TITLES = {
    "position": "Positions",
    "attention": "Attention",
    "feed_forward": "Feed-forward networks",
    "norm": "Norms",
}
"""The fields of a model that hold bricks, in the order of the page."""


def catalogue() -> str:
    """Write the page."""
    parts = [HEAD]
    for field, title in TITLES.items():
        parts += _table(title, field, (_row(brick) for brick in schemas(TextTransformer.model_fields[field].annotation)))
        if field == "attention":
            parts += _table("Attention patterns", "attention.pattern", (_row(brick) for brick in schemas(AnyPattern)))
    parts += _table(
        "Where the norm stands",
        "norm_placement",
        (f"| `{name}` | {placement.equation} | {placement.advice} |" for name, placement in PLACEMENTS.items()),
    )
    return "\n".join(parts).rstrip() + "\n"


def _table(title: str, field: str, rows: Iterator[str]) -> list[str]:
    return [f"## {title}: `model.{field}`\n", "| kind | what it is | what it costs, and when to use it |", "| --- | --- | --- |", *rows, ""]


def _row(brick: type[Schema]) -> str:
    kinds = ", ".join(f"`{kind}`" for kind in get_args(brick.model_fields["kind"].annotation))
    what = " ".join((brick.__doc__ or "").split()).replace("|", "\\|")
    return f"| {kinds} | {what} | {getattr(brick, 'advice')} |"  # noqa: B009  # each brick of a block declares its own
