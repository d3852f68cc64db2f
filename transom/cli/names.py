"""``transom names``: list the quantities of a model's forward pass, with their formulas and shapes."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.output import JsonOption, print_result
from transom.cli.terminal_width import fit_columns
from transom.errors import ConfigError

EXAMPLES = """
transom names
transom names runs/en-de
transom names runs/en-de attn.weights cross.weights
transom names runs/en-de "decoder.blocks.0.*" --each
transom names runs/gpt blocks.0.attn.hook_pattern
"""

app = typer.Typer(add_completion=False)

SIZES = ("d_model", "n_heads", "kv_heads", "d_head", "d_value", "d_ff", "vocab", "n_experts", "top_k", "width", "patches", "patch_width")
"""Axes whose size the configuration fixes; the sizes of the others depend on the input."""


@app.command()
def names(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Run folder that transom train --out RUN wrote. Default: the names of all models."),
    ] = None,
    wanted: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Names to list: addresses, their endings, patterns with *, or names of TransformerLens."),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="List every block on its own instead of N for all blocks that are alike.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List every quantity of a model that transom trace reads, with its symbol, formula and shape; without RUN, those of all families.

    The cost is "exists" for a tensor of the forward pass, "derived" if it follows from such tensors without a matrix product, and
    "recomputed" if it takes a matrix product, as attention weights do. Axes with a number have that size; the others depend on the input.
    With .grad appended, transom trace reads the gradient of a quantity. No weights are read.
    """
    with gc_frozen_imports():
        from transom.checkpoints.run_folder import RunFolder
        from transom.inspection.names import aliases_of, families_of, list_names, select_names
        from transom.inspection.trace import axes_of
        from transom.inspection.vocabulary import describe_families, vocabulary

    if run is None:
        if each:
            raise ConfigError("--each: expected a run, whose blocks are listed, found none; give RUN")
        rows = vocabulary()
        print_result(rows, as_json, _vocabulary_lines(rows, describe_families))
        return
    with RunFolder.open(run) as folder:
        config = folder.load_config()
    known = {row.address: row for row in list_names(config)}
    chosen = [known[address] for address in (select_names(known, wanted, aliases_of(known.values())) if wanted else known)]
    records = [
        {
            "name": row.address,
            "symbol": row.quantity.symbol,
            "formula": row.quantity.formula,
            "axes": axes_of(row.quantity.axes, len(row.shape), row.address),
            "shape": list(row.shape),
            "cost": row.cost,
            "families": list(families_of(row.kind, row.quantity)),
            "transformer_lens": row.alias or None,
        }
        for row in chosen
    ]
    print_result(records, as_json, _lines(records if each else _alike(records)))


def _vocabulary_lines(rows: Sequence[dict[str, Any]], describe: Callable[[Sequence[str]], str]) -> Iterable[str]:
    """Format the names of all models as a table."""
    head = ("module", "name", "TransformerLens", "symbol", "axes", "cost", "families", "formula")
    table = [
        (
            *(row["module"], row["name"], row["transformer_lens"] or "", row["symbol"], f"({', '.join(row['axes'])})"),
            *(row["cost"], describe(row["families"]), row["formula"]),
        )
        for row in rows
    ]
    return fit_columns([head, *table], n_left=len(head), n_title=3)


def _alike(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one record for all blocks, layers or experts that have the same quantity, with N as their number."""
    found = dict[tuple[str, str], dict[str, Any]]()
    for record in records:
        name, lens = _without_numbers(record["name"]), _without_numbers(record["transformer_lens"] or "")
        found.setdefault((name, record["cost"]), {**record, "name": name, "transformer_lens": lens})
    return list(found.values())


def _without_numbers(name: str) -> str:
    """Replace the indices of blocks, layers, experts and stages by N.

    >>> _without_numbers("decoder.blocks.3.ff.experts.12.hidden")
    'decoder.blocks.N.ff.experts.N.hidden'
    """
    return re.sub(r"\b(blocks|layers|experts|stages|encoder|decoder)\.\d+", r"\1.N", name)


def _lines(records: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Format the names as a table."""
    head = ("name", "TransformerLens", "symbol", "shape", "cost", "formula")
    rows = [
        (each["name"], each["transformer_lens"] or "", each["symbol"], _shape(each["axes"], each["shape"]), each["cost"], each["formula"])
        for each in records
    ]
    return fit_columns([head, *rows], n_left=len(head), n_title=2)


def _shape(axes: Sequence[str], shape: Sequence[int]) -> str:
    """Format the axes of a quantity, with their sizes where the configuration fixes them.

    >>> _shape(["batch", "query", "d_model"], [1, 3, 64])
    '(batch, query, d_model=64)'
    """
    return f"({', '.join(f'{axis}={size}' if axis in SIZES else axis for axis, size in zip(axes, shape, strict=True))})"
