"""The catalogue of bricks, written from their schemas: ``make docs`` puts it into docs/bricks.md."""

from collections.abc import Iterator
from typing import get_args

from transom.config.approximations import AnyApproximation
from transom.config.brick import Schema, schemas
from transom.config.bricks import PLACEMENTS, AnyValueResidual
from transom.config.model import Decoder, TextTransformer
from transom.config.patterns import AnyPattern
from transom.config.recurrent import RecurrentSeq2Seq
from transom.config.training import Training
from transom.config.vision import Convolutional, VisionTransformer

HEAD = """# Bricks

Every Transformer is built from the same block, and a block from bricks that a recipe names: `--set model.norm=rmsnorm`, or
`[model] feed_forward = "swiglu"`. This page is written by `make docs` from the schemas in `transom/config/`; a test fails when it is not
current. [config.md](config.md) has the fields of each. `tests/agreement/` and `tests/layers/` compare each brick with other people's or
with its formula in float64, and with itself in float32; `tests/models/` builds each into whole models, in random and in set combinations.
"""

TITLES = {
    "position": "Positions",
    "mask": "What a decoder lets a token see",
    "attention": "Attention",
    "feed_forward": "Feed-forward networks",
    "norm": "Norms",
    "depth": "How many blocks a token passes",
    "stem": "In front of an image's patches",
    "stem.attention": "Attention over channels and places, in a stem",
}
"""The fields of a Transformer that hold bricks, in the order of the page."""

RECURRENT_TITLES = {
    "cell": "Cells of recurrent networks",
    "attention": "How a recurrent decoder sees the source",
}
"""The same of a recurrent network."""

HOLDERS: dict[str, tuple[type[Schema], ...]] = {"mask": (Decoder,), "stem": (VisionTransformer,), "stem.attention": (Convolutional,)}
"""The schemas that have them, where that is not all Transformers."""


def catalogue() -> str:
    """Write the page."""
    parts = [HEAD]
    for field, title in TITLES.items():
        name, holders = field.split(".")[-1], HOLDERS.get(field, (TextTransformer, VisionTransformer))
        found = dict.fromkeys(brick for holder in holders for brick in schemas(holder.model_fields[name].annotation))
        parts += _table(title, field, (_row(brick) for brick in found))
        if field == "attention":
            parts += _table("Attention patterns", "attention.pattern", (_row(brick) for brick in schemas(AnyPattern)))
            values = (_row(brick) for brick in schemas(AnyValueResidual))
            parts += _table("Values of a stack's later blocks", "attention.value_residual", values)
            parts += _table("Approximations of attention", "attention.approximation", (_row(brick) for brick in schemas(AnyApproximation)))
    parts += _table(
        "Where the norm stands",
        "norm_placement",
        (f"| `{name}` | {placement.equation} | {placement.advice} |" for name, placement in PLACEMENTS.items()),
    )
    for field, title in RECURRENT_TITLES.items():
        parts += _table(title, field, (_row(brick) for brick in schemas(RecurrentSeq2Seq.model_fields[field].annotation)))
    adapters = schemas(Training.model_fields["adapter"].annotation)
    parts += _table("What learns when another run is fine-tuned", "adapter", (_row(brick) for brick in adapters), of="training")
    return "\n".join(parts).rstrip() + "\n"


def _table(title: str, field: str, rows: Iterator[str], of: str = "model") -> list[str]:
    return [f"## {title}: `{of}.{field}`\n", "| kind | what it is | what it costs, and when to use it |", "| --- | --- | --- |", *rows, ""]


def _row(brick: type[Schema]) -> str:
    kinds = ", ".join(f"`{kind}`" for kind in get_args(brick.model_fields["kind"].annotation))
    what = " ".join((brick.__doc__ or "").split()).replace("|", "\\|")
    return f"| {kinds} | {what} | {getattr(brick, 'advice')} |"  # noqa: B009  # each brick of a block declares its own
