"""``transom ablate``: measure how the answer of a model changes if each head, neuron, position or key is edited on its own."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from transom.checkpoints.output_paths import check_output_file
from transom.cli.edits import EditOption, edits_in_force
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import (
    InputFileOption,
    PrecisionOption,
    RunArgument,
    TextArgument,
    expand_options,
    option_errors,
    require_one_input,
)
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.cli.terminal_width import fit_text, split_columns
from transom.cli.trace import indices_option
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.edits.sweep import SweepResult

EXAMPLES = """
transom ablate runs/gpt "To be, or not to"
transom ablate runs/gpt "To be, or not to" --answer " be" --value mean --reference "A rose is a rose."
transom ablate runs/en-de "A man sleeps." --part cross --out heads.json
transom ablate runs/en-de "A man sleeps." --over positions --patch-from "A dog sleeps." --stack encoder
transom ablate runs/sst2 "A fine film." --over keys --json
transom ablate runs/photos --input cat.jpg --over neurons --blocks 3
"""

MAX_NEURONS_SHOWN = 20
"""Number of neurons that are printed, those with the largest changes."""

OPTION_OF = {"stack": "--stack", "blocks": "--blocks", "part": "--part", "texts": "--reference", "value": "--value"}
"""Option of each argument of ``sweep`` that its errors name."""

app = typer.Typer(add_completion=False)


class SweepOptions(NamedTuple):
    """Options of ``transom ablate``: the edits of the sweep; None for a default."""

    over: Annotated[
        Literal["heads", "neurons", "positions", "keys"] | None,
        typer.Option("--over", help="Ablate each head or neuron, patch each position from --patch-from, or hide each key. Default: heads."),
    ]
    source: Annotated[
        str | None, typer.Option("--patch-from", metavar="TEXT", help="Text from which positions are patched, or a file for such a model.")
    ]
    stack: Annotated[
        Literal["encoder", "decoder"] | None,
        typer.Option("--stack", help="Stack of the blocks; needed for translators, except with --part cross."),
    ]
    part: Annotated[
        Literal["attn", "cross"] | None, typer.Option("--part", help="Self-attention or cross-attention of heads and keys. Default: attn.")
    ]
    site: Annotated[
        Literal["resid_pre", "resid_mid", "resid_post"] | None,
        typer.Option("--site", help="With --over positions: residual stream to patch. Default: resid_post."),
    ]
    blocks: Annotated[str | None, typer.Option("--blocks", metavar="N,N", help="Blocks, from 0. Default: all.")]
    value: Annotated[
        Literal["zero", "mean", "resample"] | None,
        typer.Option("--value", help="Replaces a head or neuron: 0, the mean of the text or references, or a reference. Default: zero."),
    ]
    references: Annotated[
        list[str] | None, typer.Option("--reference", metavar="TEXT", help="Reference text for --value mean or resample. Repeatable.")
    ]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``sweep``.

        Raises:
            ConfigError: an option does not fit --over, a text is empty, or the blocks are no whole numbers.
        """
        over = self.over or "heads"
        for name, chosen, fitting in (
            ("--part", self.part, ("heads", "keys")),
            ("--value", self.value, ("heads", "neurons")),
            ("--site", self.site, ("positions",)),
        ):
            if chosen is not None and over not in fitting:
                raise ConfigError(f"{name}: expected it with --over {' or '.join(fitting)} only, found --over {over}; leave it out")
        for name, text in (("--patch-from", self.source), *(("--reference", text) for text in self.references or ())):
            if text is not None and not text.strip():
                raise ConfigError(f"{name}: expected a text of at least one token, found none; give one")
        if (self.source is None) == (self.over == "positions"):
            raise ConfigError(f"--patch-from: expected a text with --over positions, and none with the others, found --over {over}")
        if self.references and self.value not in ("mean", "resample"):
            raise ConfigError(f"--reference: expected --value mean or resample, found --value {self.value or 'zero'}; give one of these")
        given = {name: value for name, value in self._asdict().items() if value is not None and name not in ("references", "blocks")}
        return {"over": "heads", **given, "blocks": indices_option("blocks", self.blocks), "texts": tuple(self.references or ())}


@app.command()
@expand_options
def ablate(
    run: RunArgument,
    text: TextArgument = None,
    *,
    input_file: InputFileOption = None,
    options: SweepOptions,
    answer: Annotated[
        str | None,
        typer.Option("--answer", metavar="TEXT", help="Continuation, translation or class to watch. Default: the model's own answer."),
    ] = None,
    edit: EditOption = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Save the result as a JSON file, with each edit.")] = None,
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Print the change of the answer's log-probability in nats for each edit. A negative change makes the answer less probable.

    --over positions is activation patching: the residual stream of one token after one block is replaced by that of the --patch-from text.
    The answer of a language model is a continuation, by default the most probable token; that of a translator is a whole translation.
    Many edited copies of the input are computed as one batch.
    """
    require_one_input(text, input_file)
    arguments = options.arguments()
    check_output_file(out, [run, input_file])
    with gc_frozen_imports():
        from transom.files.atomic_io import json_bytes, write_file
        from transom.inspection.edits.answers import ask
        from transom.inspection.edits.sweep import sweep
        from transom.inspection.trace import token_symbols
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress

    loaded = load(run, precision)
    decodes = hasattr(loaded, "translate")
    if decodes and options.stack is None and options.part != "cross":
        raise ConfigError("--stack: expected encoder or decoder for a translator, found none; give one of them, or --part cross")
    with edits_in_force(loaded, edit, decodes=decodes) as edits, show_progress("edits", quiet=as_json) as notify:
        with option_errors(text="TEXT"):
            question = ask(loaded, text, input_file, answer)
        with option_errors(**OPTION_OF):
            found = sweep(loaded, question.batch, target=question.target, notify=notify, **arguments)
    for note in question.notes:
        print_note(note)
    tokens = token_symbols(loaded, question.batch)
    record = {"answer": question.answer, "log_p": found.log_p, "over": arguments["over"], "tokens": tokens}
    record |= {"rows": [row.to_json() for row in found.rows], **({"edits": edits} if edits else {})}
    if out is not None:
        write_file(out, json_bytes(record))
        print_note(f"wrote {len(found.rows):,} edits to {out}")
    print_result(record, as_json, _lines(found, arguments["over"], options.part or "attn", question.answer, tokens))


def _lines(found: "SweepResult", over: str, part: str, answer: str, tokens: dict[str, list[str]]) -> Iterator[str]:
    """Format the changes as a table, one row per block and one column per head, position or key; neurons as a list."""
    yield fit_text(f"answer {answer!r}: log p {found.log_p:.4f}; change of log p by each edit, in nats")
    yield ""
    if over == "neurons":
        largest = sorted(found.rows, key=lambda row: -abs(row.change))[:MAX_NEURONS_SHOWN]
        rows = [["block", "neuron", "change"], *([row.block, str(row.number), f"{row.change:+.4f}"] for row in largest)]
        yield from align_columns(rows)
        if len(found.rows) > len(largest):
            yield fit_text(f"{len(found.rows):,} neurons; the {len(largest)} with the largest changes are shown, --out FILE has all")
        return
    numbers = sorted({row.number for row in found.rows})
    changes = {(row.block, row.number): row.change for row in found.rows}
    blocks = list(dict.fromkeys(row.block for row in found.rows))
    if over == "heads":
        yield from split_columns(
            [["block", *(f"head {n}" for n in numbers)], *([block, *(f"{changes[block, n]:+.4f}" for n in numbers)] for block in blocks)]
        )
        return
    labels = _labels(over, part, blocks[0], tokens, len(numbers))
    rows = [["position", "token", *blocks], *([str(n), labels[n], *(f"{changes[b, n]:+.4f}" for b in blocks)] for n in numbers)]
    yield from split_columns(rows, n_left=2)


def _labels(over: str, part: str, block: str, tokens: dict[str, list[str]], n: int) -> Sequence[str]:
    """Return the tokens at the positions of a sweep, or empty labels for images and sounds."""
    side = "target" if block.startswith("decoder") and not (over == "keys" and part == "cross") else "source"
    found: Any = tokens.get(side, tokens.get("target", []))
    return found if len(found) >= n else [""] * n
