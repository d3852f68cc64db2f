"""The catalogue of bricks, written from their schemas: ``make docs`` puts it into docs/bricks.md."""

from collections.abc import Mapping
from typing import NamedTuple

from transom.config import model, training  # noqa: F401  # register their components
from transom.config.brick import Brick, choices, described, kinds
from transom.config.bricks import HEADS, PLACEMENTS, SCALINGS, Choice, NormPlacement

HEAD = """# Bricks

Every Transformer is built from the same block, and a block from bricks that a recipe names: `--set model.norm=rmsnorm`, or
`[model] feed_forward = "swiglu"`. This page is written by `make docs` from the schemas in `transom/config/`; a test fails when it is not
current. [config.md](config.md) has the fields of each. `tests/agreement/` and `tests/layers/` compare each brick with other people's or
with its formula in float64, and with itself in float32; `tests/models/` builds each into whole models, in random and in set combinations.
[What each brick costs and gains](../benchmarks/README.md) in one small model is measured by `benchmarks/bricks.py`: validation loss,
processor time a step, parameters.
"""


class Table(NamedTuple):
    """A table of the page.

    Attributes:
        title: above it.
        field: of a recipe, which its rows are values of.
        slots: the components that the field can be.
        choices: the rows of a field whose values are no components.
    """

    title: str
    field: str
    slots: tuple[str, ...] = ()
    choices: Mapping[str, Choice | NormPlacement] = {}

    @property
    def bricks(self) -> list[type[Brick]]:
        """The components that the field can be, in their order."""
        return list(dict.fromkeys(brick for slot in self.slots for brick in choices(slot)))


TABLES = (
    Table("Positions", "model.position", ("position", "patch_position")),
    Table("Rotary positions beyond the trained length", "model.position.scaling", choices=SCALINGS),
    Table("What a decoder lets a token see", "model.mask", ("mask",)),
    Table("Attention", "model.attention", ("attention",)),
    Table("How queries are compared with keys", "model.attention.score", ("score",)),
    Table("Heads of attention", "model", choices=HEADS),
    Table("Attention patterns", "model.attention.pattern", ("stack_pattern",)),
    Table("Values of a stack's later blocks", "model.attention.value_residual", ("value_residual",)),
    Table("Approximations of attention", "model.attention.approximation", ("approximation",)),
    Table("Feed-forward networks", "model.feed_forward", ("feed_forward",)),
    Table("What keeps experts equally busy", "model.feed_forward.balance", ("balance",)),
    Table("Norms", "model.norm", ("norm",)),
    Table("Where the norm stands", "model.norm_placement", choices=PLACEMENTS),
    Table("How many blocks a token passes", "model.depth", ("depth",)),
    Table("Behind which blocks a decoder learns to answer", "training.exits", ("exits",)),
    Table("In front of an image's patches", "model.stem", ("stem",)),
    Table("Attention over channels and places, in a stem", "model.stem.attention", ("channel_attention",)),
    Table("Cells of recurrent networks", "model.cell", ("cell",)),
    Table("How a recurrent decoder sees the source", "model.attention", ("source_attention",)),
    Table("What learns when another run is fine-tuned", "training.adapter", ("adapter",)),
)
"""The tables of the page, in its order."""


def catalogue() -> str:
    """Write the page."""
    return "\n".join([HEAD, *(line for table in TABLES for line in _laid_out(table))]).rstrip() + "\n"


def _laid_out(table: Table) -> list[str]:
    rows = [f"| `{name}` | {_cell(choice.equation)} | {choice.advice} |" for name, choice in table.choices.items()]
    rows += [row(brick) for brick in table.bricks]
    names = "field" if table.field == "model" else "kind"
    head = f"| {names} | what it is | what it costs, and when to use it |"
    return [f"## {table.title}: `{table.field}`\n", head, "| --- | --- | --- |", *rows, ""]


def row(brick: type[Brick]) -> str:
    """Write a brick's line."""
    equation, advice = described(brick)
    return f"| {', '.join(f'`{kind}`' for kind in kinds(brick))} | {_cell(equation)} | {advice} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
