"""``transom lens rollout`` and ``transom lens flow``: how much of each input token reaches each output."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import InputFileOption, PrecisionOption, RunArgument, TextArgument, expand_options, require_one_input
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.cli.terminal_width import terminal_width

if TYPE_CHECKING:
    from torch import Tensor

    from transom.inspection.lenses.rollout import InputShares

ROLLOUT_EXAMPLES = """Examples

transom lens rollout runs/en-de "A man sleeps." --stack encoder --position 1

transom lens rollout runs/photos --input cat.jpg"""

FLOW_EXAMPLES = """Examples

transom lens flow runs/en-de "A man sleeps."

transom lens flow runs/gpt "To be, or not" --position 3 --json"""

MAX_SHOWN_SYMBOL = 16
"""Characters of a token that are printed."""


class ShareOptions(NamedTuple):
    """Options of both commands."""

    input_file: InputFileOption
    stack: Annotated[
        Literal["encoder", "decoder"] | None, typer.Option("--stack", help="Stack whose outputs are explained. Default: the last.")
    ]
    position: Annotated[int | None, typer.Option("--position", min=0, metavar="N", help="Only this output token, from 0. Default: all.")]


@expand_options
def rollout(
    run: RunArgument, text: TextArgument = None, *, options: ShareOptions, precision: PrecisionOption = "fp32", as_json: JsonOption = False
) -> None:
    """Multiply the attention of all layers, and print the share of each input token in each output (Abnar and Zuidema 2020).

    Each layer mixes tokens with (A + I) / 2: half the attention A, averaged over heads, and half the residual stream. The shares of a row
    sum to 1; in a translator's decoder they lead through cross-attention to source tokens, or end at target tokens. The row of a
    decoder's token belongs to the prediction of the next one. For images: the share of each patch in the vector that is classified.
    """
    _print_shares(run, text, options, precision, as_json, is_flow=False)


@expand_options
def flow(
    run: RunArgument, text: TextArgument = None, *, options: ShareOptions, precision: PrecisionOption = "fp32", as_json: JsonOption = False
) -> None:
    """Print the maximum flow from each output to each input token through the attention of all layers (Abnar and Zuidema 2020).

    The weights (A + I) / 2 of each layer are the capacities of pipes between tokens. A flow of 1 is the most that any token can get. Unlike
    the shares of rollout, the flows of a row are computed one by one and do not sum to 1. Long inputs need --position.
    """
    _print_shares(run, text, options, precision, as_json, is_flow=True)


def _print_shares(run: Path, text: str | None, options: ShareOptions, precision: Any, as_json: bool, *, is_flow: bool) -> None:
    """Compute rollout or flow for one input, and print it."""
    input_file, stack, position = options
    require_one_input(text, input_file)
    with gc_frozen_imports():
        from transom.config.vision import VisionTransformerConfig
        from transom.errors import ConfigError
        from transom.inspection.example_batch import build_example_batch
        from transom.inspection.lenses.rollout import attention_flow, attention_rollout, patch_shares
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress

    predictor = load(run, precision)
    example = build_example_batch(predictor, text, input_file)
    for note in example.notes:
        print_note(note)
    config = predictor.model.config
    is_image = isinstance(config, VisionTransformerConfig)
    if is_image and position is None and config.pooling == "cls":
        position = 0  # the class token
    if is_image and position != (0 if config.pooling == "cls" else None):
        raise ConfigError(f"--position: expected none for an image, whose pooled vector is explained, found {position}; leave it out")
    if is_flow:
        with show_progress("tokens", quiet=as_json) as notify:
            shares = attention_flow(predictor, example.batch, stack, None if position is None else [position], notify)
    else:
        shares = attention_rollout(predictor, example.batch, stack)
        n = len(shares.queries)
        if position is not None and position >= n:
            raise ConfigError(f"positions: expected indices from 0 to {n - 1}, found {position}")
    if is_image:
        patches = patch_shares(config, shares)[0]
        print_result({"patches": patches.tolist()}, as_json, _patch_lines(patches, is_flow))
        return
    rows = [i for i, query in enumerate(shares.queries) if position in (None, query)]
    print_result(_record(shares, rows), as_json, _token_lines(shares, rows))


def _record(shares: "InputShares", rows: list[int]) -> dict[str, Any]:
    """Return tokens and shares as JSON-serializable data."""
    sides = {side: x[0, rows].tolist() for side in ("source", "target") if (x := getattr(shares, side)) is not None}
    return {"tokens": shares.tokens, "positions": [shares.queries[row] for row in rows], **sides}


def _patch_lines(patches: "Tensor", is_flow: bool) -> list[str]:
    """Format the shares of patches as a grid in percent, and their sum for rollout."""
    grid = [[f"{100 * share:.1f}" for share in row] for row in patches.tolist()]
    whole = "maximum flow" if is_flow else f"share (all patches: {100 * float(patches.sum()):.1f}%)"
    return [f"{whole} of each patch in percent, rows from the top of the image", *align_columns(grid, n_left=0)]


def _token_lines(shares: "InputShares", rows: list[int]) -> list[str]:
    """Format one line per output token with its largest shares; target tokens are marked if there are source tokens too."""
    both = shares.source is not None and shares.target is not None
    sides = [side for side in ("source", "target") if getattr(shares, side) is not None]
    width = terminal_width() or 100
    n_shown = max((width - MAX_SHOWN_SYMBOL - 6) // (MAX_SHOWN_SYMBOL + 9), 1)
    found = list[list[str]]()
    for row in rows:
        query = shares.queries[row]
        inputs = [(share, side, i) for side in sides for i, share in enumerate(getattr(shares, side)[0, row].tolist()) if share > 0]
        largest = sorted(inputs, key=lambda each: -each[0])[:n_shown]
        cells = [f"{_symbol(shares, side, i)}{' (target)' * (both and side == 'target')} {share:.3f}" for share, side, i in largest]
        found.append([str(query), _symbol(shares, sides[-1], query), *cells, *[""] * (n_shown - len(cells))])
    heads = ["position", "token", "largest", *[""] * (n_shown - 1)]
    return align_columns([heads, *found], n_left=len(heads))


def _symbol(shares: "InputShares", side: str, position: int) -> str:
    """Return a token as printed: shortened, or its position in a model without a tokenizer."""
    symbols = shares.tokens.get(side, [])
    symbol = symbols[position] if position < len(symbols) else str(position)
    return symbol if len(symbol) <= MAX_SHOWN_SYMBOL else f"{symbol[: MAX_SHOWN_SYMBOL - 1]}…"
