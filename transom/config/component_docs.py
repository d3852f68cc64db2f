"""Generate docs/components.md from the schemas of components (``make docs``)."""

from collections.abc import Mapping
from typing import NamedTuple

from transom.config import model, training  # noqa: F401  # register their component_registry
from transom.config.components import ATTENTION_OPTIONS, NORM_PLACEMENTS, ROPE_SCALINGS, FieldOption, NormPlacementOption
from transom.config.schema import ComponentConfig, choices, kinds, split_docstring

HEAD = """# Components

Every Transformer is built from the same block, and a block from components that a recipe names: `--set model.norm=rmsnorm`, or
`[model] feed_forward = "swiglu"`. This page is written by `make docs` from the schemas in `transom/config/`; a test fails when it is not
current. [config.md](config.md) has the fields of each. `tests/agreement/` and `tests/layers/` compare each component with other people's or
with its formula in float64, and with itself in float32; `tests/models/` builds each into whole models, in random and in set combinations.
`benchmarks/components.py` measures [each component in one small model](../benchmarks/README.md): validation loss,
processor time a step, parameters.
"""


class ComponentTable(NamedTuple):
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
    choices: Mapping[str, FieldOption | NormPlacementOption] = {}

    @property
    def components(self) -> list[type[ComponentConfig]]:
        """The components that the field can be, in their order."""
        return list(dict.fromkeys(component for slot in self.slots for component in choices(slot)))


TABLES = (
    ComponentTable("Positions", "model.position", ("position", "patch_position")),
    ComponentTable("Rotary positions beyond the trained length", "model.position.rope_scaling", choices=ROPE_SCALINGS),
    ComponentTable("What a decoder lets a token see", "model.mask", ("mask",)),
    ComponentTable("Attention", "model.attention", ("attention",)),
    ComponentTable("How queries are compared with keys", "model.attention.score", ("score",)),
    ComponentTable("Heads of attention", "model", choices=ATTENTION_OPTIONS),
    ComponentTable("Attention patterns", "model.attention.pattern", ("stack_pattern",)),
    ComponentTable("Values of a stack's later blocks", "model.attention.value_residual", ("value_residual",)),
    ComponentTable("Approximations of attention", "model.attention.approximation", ("approximation",)),
    ComponentTable("Feed-forward networks", "model.feed_forward", ("feed_forward",)),
    ComponentTable("What keeps experts equally busy", "model.feed_forward.load_balancing", ("load_balancing",)),
    ComponentTable("Norms", "model.norm", ("norm",)),
    ComponentTable("Where the norm stands", "model.norm_placement", choices=NORM_PLACEMENTS),
    ComponentTable("How many blocks a token passes", "model.depth", ("depth",)),
    ComponentTable("Blocks of a decoder with a loss", "training.early_exit_loss", ("early_exit_loss",)),
    ComponentTable("Stem before the patches of an image", "model.stem", ("stem",)),
    ComponentTable("Attention over channels and positions in a stem", "model.stem.attention", ("channel_attention",)),
    ComponentTable("Cells of recurrent networks", "model.cell", ("cell",)),
    ComponentTable("How a recurrent decoder sees the source", "model.attention", ("source_attention",)),
    ComponentTable("What learns when another run is fine-tuned", "training.adapter", ("adapter",)),
)
"""The tables of the page, in its order."""


def component_page() -> str:
    """Write the page."""
    return "\n".join([HEAD, *(line for table in TABLES for line in _laid_out(table))]).rstrip() + "\n"


def _laid_out(table: ComponentTable) -> list[str]:
    rows = [f"| `{name}` | {_cell(choice.equation)} | {choice.advice} |" for name, choice in table.choices.items()]
    rows += [row(component) for component in table.components]
    names = "field" if table.field == "model" else "kind"
    head = f"| {names} | what it is | what it costs, and when to use it |"
    return [f"## {table.title}: `{table.field}`\n", head, "| --- | --- | --- |", *rows, ""]


def row(component: type[ComponentConfig]) -> str:
    """Write a component's line."""
    equation, advice = split_docstring(component)
    return f"| {', '.join(f'`{kind}`' for kind in kinds(component))} | {_cell(equation)} | {advice} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
