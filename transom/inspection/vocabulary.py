"""Generate docs/names.md, the table of all named quantities: ``python -m transom.inspection.vocabulary docs``."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transom.inspection.names import FAMILY_GROUPS, QUANTITIES, families_of

HEAD = """# Names of the numbers inside a model

transom gives every quantity of a forward pass a name. Its address is the path of the module that owns it and the name:
`decoder.blocks.0.attn.weights`. `transom names RUN` lists the quantities of a model with their addresses and shapes, `transom trace` reads
them, and `transom explain` computes them by hand. `transom names` without a run prints this page, which `make docs` writes.

The symbol is that of the papers and of the five articles that `transom worked-examples` recomputes. The cost is "exists" for a tensor of
the forward pass, which edits can change; "derived" if it follows from such tensors without a matrix product; "recomputed" if it takes a
matrix product. An axis `*positions` or `*axes` stands for the axes of the owner's input. Families are values of `model.kind`; each has the
quantity with some choice of components. The alias is the name in TransformerLens after the block and module. With `.grad` appended, a name
means the gradient of the quantity.
"""


def vocabulary() -> list[dict[str, Any]]:
    """Return all rows of the table of quantities as JSON-serializable data."""
    return [
        {
            "module": kind,
            "name": row.name,
            "symbol": row.symbol,
            "formula": row.formula,
            "axes": row.axes.split(),
            "cost": row.cost,
            "families": list(families_of(kind, row)),
            "transformer_lens": row.alias or None,
        }
        for kind, rows in QUANTITIES.items()
        for row in rows
    ]


def describe_families(families: Sequence[str]) -> str:
    """Return the names of groups of families, and of the families that are in none of these groups.

    >>> describe_families(["recurrent-seq2seq"]), describe_families(["vision-transformer", "spectrogram-transformer", "encoder"])
    ('recurrent-seq2seq', 'vision Transformers, encoder')
    """
    groups, left = list[str](), dict.fromkeys(families)
    for name, group in FAMILY_GROUPS.items():
        if set(group) <= left.keys():
            groups.append(name)
            left = {family: None for family in left if family not in group}
    return ", ".join([*groups, *left])


def names_page() -> str:
    """Return docs/names.md."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    """Yield the lines of the page: one table per kind of module."""
    yield HEAD
    for name, families in FAMILY_GROUPS.items():
        yield f"- {name}: {', '.join(f'`{family}`' for family in families)}"
    module = ""
    for row in vocabulary():
        if row["module"] != module:
            module = row["module"]
            yield from ("", f"## {module[0].upper()}{module[1:]}", "", "| name | symbol | formula | axes | cost | families | alias |")
            yield "| --- | --- | --- | --- | --- | --- | --- |"
        alias = f"`{row['transformer_lens']}`" if row["transformer_lens"] else ""
        texts = (f"`{row['name']}`", _cell(row["symbol"]), _cell(row["formula"]), _cell(" ".join(row["axes"])), row["cost"])
        yield f"| {' | '.join((*texts, describe_families(row['families']), alias))} |"
    yield ""


def _cell(text: str) -> str:
    """Escape what Markdown would read as a cell's end, as emphasis or as HTML."""
    for character in "\\|*_~[]<>":
        text = text.replace(character, f"\\{character}")
    return text


if __name__ == "__main__":
    (Path(sys.argv[1]) / "names.md").write_text(names_page(), "utf-8")
