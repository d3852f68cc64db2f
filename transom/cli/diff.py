"""``transom diff``: find the first number at which two models, prompts, checkpoints or dtypes part."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.lenses.diff import Difference, SiteDifference, WeightDifference

EXAMPLES = """
transom diff runs/a runs/b "To be, or not"
transom diff runs/gpt runs/gpt "The cat sat on the mat." "The dog sat on the mat."
transom diff runs/gpt/checkpoints/step-500 runs/gpt "To be, or not" --all
transom diff runs/gpt runs/gpt "To be, or not" --precision fp32,bf16
transom diff runs/photos runs/photos --input cat.jpg --input dog.jpg --json
transom diff runs/a runs/b
"""

MAX_WEIGHTS = 10
"""Number of weights and fields that are printed, those with the largest differences; all with --all."""

app = typer.Typer(add_completion=False)


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="Run folder, or a checkpoint in it, such as runs/gpt/checkpoints/step-500.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one, or the same.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="Text to run both on, or a text for each. Default: compare no passes.", show_default=False
        ),
    ] = None,
    input_files: Annotated[
        list[Path] | None, typer.Option("--input", metavar="FILE", help="Text file, image or sound in place of TEXT. Give two for A and B.")
    ] = None,
    precision: Annotated[
        str,
        typer.Option("--precision", metavar="DTYPE[,DTYPE]", help="Data type of matrix products: fp32, bf16 or fp16, for both or for A,B."),
    ] = "fp32",
    every_site: Annotated[bool, typer.Option("--all", help="Print all sites, weights and fields.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare configuration, weights and every site of a pass, in the order of the pass, and name the first site where they part.

    transom compare tests which of two systems is better on test data; this command finds out where their numbers differ, and since when.

    "of rounding" is the difference as a multiple of what rounding explains, measured by passes with random rounding errors. Up to 1, the
    passes agree: fp32 and bf16, or two kernels. Above 1, a weight, the input or a computation differs. "relative" is ||a - b|| / ||a||.

    Inputs of different length are compared up to the length of the shorter one.
    """
    inputs: list[Any] = [*(texts or ()), *(input_files or ())]
    if len(inputs) > 2 or (texts and input_files):
        raise ConfigError(
            f"expected one or two TEXT, or one or two --input, found {len(texts or ())} and {len(input_files or ())}; give fewer"
        )
    precisions = _precisions(precision)
    with gc_frozen_imports():
        from transom.data.text.text_io import check_text
        from transom.inspection.lenses.diff import diff as compare
        from transom.tasks.load_checkpoint import load_run_or_checkpoint

    inputs = [check_text(each, "TEXT") if isinstance(each, str) else each for each in inputs]
    found = compare(*(load_run_or_checkpoint(path, name) for path, name in zip((a, b), precisions, strict=True)), *inputs)
    for note in found.notes:
        print_note(note)
    print_result(_record(found), as_json, _lines(found, every_site))


def _precisions(given: str) -> list[Any]:
    """Return the precision of both models."""
    names = [name.strip() for name in given.split(",")]
    if len(names) > 2 or not set(names) <= {"fp32", "bf16", "fp16"}:
        raise ConfigError(f"--precision: expected fp32, bf16 or fp16, or two of them as in fp32,bf16, found {given!r:.80}")
    return [names[0], names[-1]]


def _record(found: "Difference") -> dict[str, Any]:
    """Return the result as JSON-serializable data."""
    return {
        "config": [each._asdict() for each in found.config],
        "weights": [each._asdict() for each in found.weights],
        "n_weights": found.n_weights,
        "sites": [_site_record(each) for each in found.sites],
        "first": found.first and _site_record(found.first),
        "first_unequal": found.first_unequal and _site_record(found.first_unequal),
        "not_compared": found.not_compared,
        "notes": found.notes,
        "tokens": found.tokens,
    }


def _site_record(each: "SiteDifference") -> dict[str, Any]:
    row, position = each.place or (None, None)
    of_rounding = {"of_rounding": each.ratio, "of_rounding_by_position": each.ratios.tolist()}
    return {"address": each.address, "max": each.max_difference, "relative": each.relative, **of_rounding, "row": row, "position": position}


def _lines(found: "Difference", every: bool) -> Iterator[str]:
    """Format fields, weights, the first site, and the growth of the difference."""
    limit = None if every else MAX_WEIGHTS
    if not found.config:
        yield "configuration: no difference"
    else:
        yield f"configuration: {len(found.config):,} field{' differs' if len(found.config) == 1 else 's differ'}"
        yield from align_columns(
            [["field", "A", "B"], *([each.field, f"{each.a!s:.30}", f"{each.b!s:.30}"] for each in found.config[:limit])], 3
        )
    yield from ["", *_weight_lines(found, limit)]
    if found.not_compared and not found.sites:
        yield "pass: not compared, since no site has the same width in both models"
    if not found.sites:
        return
    yield from ["", *_verdict(found), ""]
    rows = [[each.address, *_numbers(each.max_difference, each.relative, each.ratio)] for each in (found.sites if every else found.blocks)]
    yield from align_columns([["site", "max |a - b|", "relative", "of rounding"], *rows])
    if found.not_compared:
        yield f"not compared, since only one has it or the widths differ: {len(found.not_compared):,}, for example {found.not_compared[0]}"


def _numbers(*values: float) -> list[str]:
    return ["-" if math.isnan(value) else f"{value:.3g}" for value in values]


def _weight_lines(found: "Difference", limit: int | None) -> Iterator[str]:
    """Format the weights with the largest differences."""
    if not found.weights:
        yield f"weights: no difference in {found.n_weights:,} parameters and buffers"
        return
    rounded = ", by no more than their cast to another dtype rounds" if all(each.ratio <= 1 for each in found.weights) else ""
    yield f"weights: {len(found.weights):,} of {found.n_weights:,} parameters and buffers differ{rounded}"
    if rounded and limit:
        return
    largest = sorted(found.weights, key=lambda each: -each.relative if math.isfinite(each.relative) else -math.inf)
    yield from align_columns([["name", "max |a - b|", "relative"], *map(_weight_row, largest[:limit])])
    if limit is not None and len(largest) > limit:
        yield f"the {limit} with the largest relative differences; --all prints all"


def _weight_row(each: "WeightDifference") -> list[str]:
    """Return the cells of a weight; where the shapes differ, both shapes."""
    if not math.isnan(each.max_difference):
        return [each.name, *_numbers(each.max_difference, each.relative)]
    return [each.name, " / ".join("none" if shape is None else "x".join(map(str, shape)) for shape in (each.shape_a, each.shape_b)), "-"]


def _verdict(found: "Difference") -> Iterator[str]:
    """Say where the passes part, and whether rounding explains it."""
    first, unequal, n = found.first, found.first_unequal, len(found.sites)
    if unequal is None:
        yield f"pass: no difference at {n:,} sites"
    elif first is None:
        largest = found.largest
        yield f"pass: only rounding; the largest difference is {largest.ratio:.2g} of its bound at {largest.address} ({n:,} sites)"
    else:
        yield f"the passes part at {first.address}{_place(first, found.tokens)}"
        numbers = f"max |a - b| {first.max_difference:.3g}, relative {first.relative:.3g}, {first.ratio:.3g} times the bound of rounding"
        yield f"  {numbers}"
        before = next(i for i, each in enumerate(found.sites) if each is first)
        equal = "equal" if unequal is first else f"equal up to rounding, from {unequal.address} on"
        yield f"  the {before:,} sites before it are {equal}" if before else "  it is the first site of the pass"


def _place(site: "SiteDifference", tokens: Sequence[dict[str, list[str]]]) -> str:
    """Return the row, position and tokens of the first difference of a site."""
    row, position = site.place or (0, 0)
    if site.ratios.shape[1] == 1:
        return ""
    reads_target = site.address.startswith(("decoder", "target", "logits")) and not site.address.endswith(("cross.k", "cross.v"))
    rows = [each.get("target" if reads_target else "source") or next(iter(each.values()), []) for each in tokens]
    symbols = " / ".join(dict.fromkeys(each[position] for each in rows if position < len(each) and not row))
    return f", position {position}{f' of row {row}' if row else ''}{f' ({symbols})' if symbols else ''}"
