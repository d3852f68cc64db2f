"""Generate docs/components.md from the component schemas (``make docs``)."""

from collections.abc import Mapping
from typing import NamedTuple

from transom.config import model, training  # noqa: F401  # register their component_registry
from transom.config.components import ATTENTION_OPTIONS, NORM_PLACEMENTS, FieldOption, NormPlacementOption
from transom.config.schema import ComponentConfig, choices, kinds, split_docstring

HEAD = """# Components

Every Transformer is built from the same block, and a block from components that a recipe selects: `--set model.norm=rmsnorm`, or
`[model] feed_forward = "swiglu"`. [config.md](config.md) lists the fields of each component. `make docs` generates this page from the
schemas in `transom/config/`, and a test checks that it is current.

`tests/agreement/` and `tests/layers/` compare each component with an independent implementation or with its formula in float64.
`tests/models/` builds models from fixed and random combinations of components. `benchmarks/components.py` measures
[each component in a small model](../benchmarks/README.md): validation loss, CPU time per step and parameters.
"""


class ComponentTable(NamedTuple):
    """A table of the page.

    Attributes:
        title: heading of the table.
        field: recipe field whose values are the rows.
        slots: registry slots of the field's components.
        choices: rows by name, for a field whose values are not components.
    """

    title: str
    field: str
    slots: tuple[str, ...] = ()
    choices: Mapping[str, FieldOption | NormPlacementOption] = {}

    @property
    def components(self) -> list[type[ComponentConfig]]:
        """The components that the field accepts, in order of registration."""
        return list(dict.fromkeys(component for slot in self.slots for component in choices(slot)))


TABLES = (
    ComponentTable("Position encodings", "model.position", ("position", "patch_position")),
    ComponentTable("RoPE scaling", "model.position.rope_scaling", ("stack_rope_scaling",)),
    ComponentTable("Decoder masks", "model.mask", ("mask",)),
    ComponentTable("Attention", "model.attention", ("attention",)),
    ComponentTable("Attention scores", "model.attention.score", ("score",)),
    ComponentTable("Options of attention heads", "model", choices=ATTENTION_OPTIONS),
    ComponentTable("Attention patterns", "model.attention.pattern", ("stack_pattern",)),
    ComponentTable("Value residual", "model.attention.value_residual", ("value_residual",)),
    ComponentTable("Approximations of attention", "model.attention.approximation", ("approximation",)),
    ComponentTable("Feed-forward networks", "model.feed_forward", ("feed_forward",)),
    ComponentTable("Load balancing of experts", "model.feed_forward.load_balancing", ("load_balancing",)),
    ComponentTable("Normalization", "model.norm", ("norm",)),
    ComponentTable("Norm placement", "model.norm_placement", choices=NORM_PLACEMENTS),
    ComponentTable("Depth", "model.depth", ("depth",)),
    ComponentTable("Early-exit losses", "training.early_exit_loss", ("early_exit_loss",)),
    ComponentTable("Image stems", "model.stem", ("stem",)),
    ComponentTable("Channel and spatial attention in a stem", "model.stem.attention", ("channel_attention",)),
    ComponentTable("Recurrent cells", "model.cell", ("cell",)),
    ComponentTable("Attention of recurrent decoders", "model.attention", ("source_attention",)),
    ComponentTable("Fine-tuning adapters", "training.adapter", ("adapter",)),
)
"""The tables of the page, in order."""


def component_page() -> str:
    """Return the content of docs/components.md."""
    return "\n".join([HEAD, *(line for table in TABLES for line in _laid_out(table))]).rstrip() + "\n"


def _laid_out(table: ComponentTable) -> list[str]:
    rows = [f"| `{name}` | {_cell(choice.equation)} | {choice.advice} |" for name, choice in table.choices.items()]
    rows += [row(component) for component in table.components]
    names = "field" if table.field == "model" else "kind"
    head = f"| {names} | definition | cost and use |"
    return [f"## {table.title}: `{table.field}`\n", head, "| --- | --- | --- |", *rows, ""]


def row(component: type[ComponentConfig]) -> str:
    """Return the row of a component in its Markdown table: kinds, definition, cost and use."""
    equation, advice = split_docstring(component)
    return f"| {', '.join(f'`{kind}`' for kind in kinds(component))} | {_cell(equation)} | {advice} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
