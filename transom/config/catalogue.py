"""The catalogue of bricks, written from their schemas: ``make docs`` puts it into docs/bricks.md."""

from collections.abc import Mapping
from typing import NamedTuple, get_args

from transom.config.brick import Schema, schemas
from transom.config.bricks import HEADS, PLACEMENTS, SCALINGS, Choice, MultiHead, NormPlacement
from transom.config.mixture import Mixture
from transom.config.model import Decoder, TextTransformer
from transom.config.recurrent import RecurrentSeq2Seq
from transom.config.registry import tasks
from transom.config.training import Training
from transom.config.vision import Convolutional, VisionTransformer

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
        holders: the schemas that have a field of bricks.
        choices: the rows of a field whose values are no bricks.
    """

    title: str
    field: str
    holders: tuple[type[Schema], ...] = ()
    choices: Mapping[str, Choice | NormPlacement] = {}

    @property
    def bricks(self) -> list[type[Schema]]:
        """The bricks that the field can be, in their order."""
        name = self.field.split(".")[-1]
        return list(dict.fromkeys(brick for holder in self.holders for brick in schemas(holder.model_fields[name].annotation)))


TABLES = (
    Table("Positions", "model.position", (TextTransformer, VisionTransformer)),
    Table("Rotary positions beyond the trained length", "model.position.scaling", choices=SCALINGS),
    Table("What a decoder lets a token see", "model.mask", (Decoder,)),
    Table("Attention", "model.attention", (TextTransformer, VisionTransformer)),
    Table("Heads of attention", "model", choices=HEADS),
    Table("Attention patterns", "model.attention.pattern", (MultiHead,)),
    Table("Values of a stack's later blocks", "model.attention.value_residual", (MultiHead,)),
    Table("Approximations of attention", "model.attention.approximation", (MultiHead,)),
    Table("Feed-forward networks", "model.feed_forward", (TextTransformer, VisionTransformer)),
    Table("What keeps experts equally busy", "model.feed_forward.balance", (Mixture,)),
    Table("Norms", "model.norm", (TextTransformer, VisionTransformer)),
    Table("Where the norm stands", "model.norm_placement", choices=PLACEMENTS),
    Table("How many blocks a token passes", "model.depth", (TextTransformer, VisionTransformer)),
    Table(
        "Behind which blocks a decoder learns to answer",
        "training.exits",
        tuple(schemas(tasks()["language"].model_fields["training"].annotation)),
    ),
    Table("In front of an image's patches", "model.stem", (VisionTransformer,)),
    Table("Attention over channels and places, in a stem", "model.stem.attention", (Convolutional,)),
    Table("Cells of recurrent networks", "model.cell", (RecurrentSeq2Seq,)),
    Table("How a recurrent decoder sees the source", "model.attention", (RecurrentSeq2Seq,)),
    Table("What learns when another run is fine-tuned", "training.adapter", (Training,)),
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


def row(brick: type[Schema]) -> str:
    """Write a brick's line."""
    kinds = ", ".join(f"`{kind}`" for kind in get_args(brick.model_fields["kind"].annotation))
    return f"| {kinds} | {_cell(brick.__doc__ or '')} | {getattr(brick, 'advice')} |"  # noqa: B009  # each brick declares its own


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
