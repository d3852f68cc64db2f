"""The option ``--edit`` of commands that run a model: edits in force while a command computes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.output import one_line, print_note

EXAMPLE = '{"version": 1, "edits": [{"kind": "ablate-heads", "blocks": [0], "heads": [2]}]}'
"""A file of edits."""

EditOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--edit",
        metavar="FILE",
        help=(
            f"Change what the model computes, as a JSON file says, such as {EXAMPLE}."
            " Kinds: ablate-heads, ablate-neurons, patch, knock-out-key, scale, set, unscaled-scores, zero-after-softmax, no-residual."
            " Repeatable."
        ),
    ),
]


MAX_SHOWN = 10
"""Number of edits of a file that are printed."""


def _print_first(lines: Sequence[str]) -> None:
    """Print the first lines to standard error, and how many follow."""
    for line in lines[:MAX_SHOWN]:
        print_note(one_line(line))
    if len(lines) > MAX_SHOWN:
        print_note(f"... and {len(lines) - MAX_SHOWN:,} more edits")


@contextmanager
def edits_in_force(
    predictor: Any, files: Sequence[Path] | None, precision: str = "auto", decodes: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Put the edits of files in force, print them, and at the end how often each was applied.

    Args:
        predictor: the loaded run, or the object that a command uses for it.
        files: files of edits; a later file applies after the earlier ones.
        precision: precision that the user chose.
        decodes: whether the command generates text, which the edited model does without a cache.

    Yields:
        A list that has a record of each edit once the block has ended.

    Raises:
        EditNeverFiredError: an edit changed nothing.
    """
    records = list[dict[str, Any]]()
    if not files:
        yield records
        return
    from transom.inspection.edits.files import dump_edits
    from transom.inspection.edits.schemas import describe_edit
    from transom.inspection.edits.scope import EditNeverFiredError, edits

    run = getattr(predictor, "classifier", predictor)
    scopes = [edits(run, file) for file in files]
    for file, scope in zip(files, scopes, strict=True):
        _print_first([f"{file}: {describe_edit(edit)}" for edit in scope.edits])
    if decodes:
        print_note("edited models decode without a cache: every step reads the whole text, since the fast decoders cannot be edited")
    if precision == "int8":
        print_note("edited models do not compute in int8 but as with --precision auto, since blocks with int8 weights cannot be edited")
    try:
        with ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(scope)
            yield records
            for file, scope in zip(files, scopes, strict=True):
                counted = list(zip(scope.edits, scope.fired, strict=True))
                records += [{**dump_edits([edit])["edits"][0], "fired": n} for edit, n in counted]
                _print_first([f"{file}: {describe_edit(edit)}: applied {n:,} times" for edit, n in counted])
    except EditNeverFiredError as error:
        raise EditNeverFiredError(f"{', '.join(map(str, files))}: {error}") from None
