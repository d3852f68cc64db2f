"""``transom explain``: write out by hand how a model computes its numbers for one token."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from transom.checkpoints.output_paths import check_output_file
from transom.cli.edits import EditOption, edits_in_force
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import (
    InputFileOption,
    RunArgument,
    SampleOption,
    TextArgument,
    expand_options,
    option_errors,
    read_sample,
    require_one_input_or_sample,
)
from transom.cli.output import print_note
from transom.cli.terminal_width import terminal_width
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.explain.explanation import Explanation

EXAMPLES = """
transom explain runs/en-de "A man sleeps." --block 0 --head 2 --query 3 --key 1
transom explain runs/en-de "A man sleeps." --stack decoder --target "Ein Mann schläft."
transom explain runs/gpt "To be, or not" --dim 7 --temperature 0.7 --temperature 1
transom explain runs/photos --input cat.jpg --query 5 --format latex
transom explain runs/photos --sample 12 --query 5
transom explain runs/gpt "To be, or not" --edit without-head-2.json
"""

Format = Literal["text", "markdown", "latex", "html", "json"]

SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".md": "markdown",
    ".tex": "latex",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
}
"""Format of a file by its suffix."""

app = typer.Typer(add_completion=False)


class StepOptions(NamedTuple):
    """Options that choose what is worked out; None for a default."""

    block: Annotated[int, typer.Option("--block", min=0, help="Block, or layer of a recurrent model, from 0. Default: 0.")]
    head: Annotated[int, typer.Option("--head", min=0, help="Attention head, from 0. Default: 0.")]
    query: Annotated[
        int | None,
        typer.Option(
            "--query", min=0, help="Position of the token, from 0. Default: the last token, or the class token if the model pools it."
        ),
    ]
    key: Annotated[
        int | None, typer.Option("--key", min=0, help="Position of a key to work out, from 0. Default: those with the largest weights.")
    ]
    target: Annotated[
        str | None, typer.Option("--target", metavar="TEXT", help="Target text of a translator. Default: its own translation.")
    ]
    stack: Annotated[Literal["encoder", "decoder"] | None, typer.Option("--stack", help="One side of a translator. Default: both.")]
    dim: Annotated[
        int,
        typer.Option(
            "--dim", min=0, help="Element of each vector that is worked out; in narrower vectors, modulo their width. Default: 0."
        ),
    ]
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            "--temperature", min=1e-6, max=1e6, help="Divisor of the logits before the probabilities. Repeatable. Default: 0.5, 1 and 2."
        ),
    ]
    top: Annotated[
        int,
        typer.Option("--top", min=1, help="Candidates whose logits and probabilities are worked out; all if there are fewer. Default: 5."),
    ]
    candidate: Annotated[
        str | None, typer.Option("--candidate", metavar="TOKEN", help="Token or class to work out beside the best candidates.")
    ]
    every: Annotated[
        bool | None, typer.Option("--every", help="Also work out logsumexp, scales of norms, heads through W_O, and log-probabilities.")
    ]

    def of(self, predictor: Any) -> dict[str, Any]:
        """Return the arguments of ``explain`` that are given.

        Args:
            predictor: the run, which knows the index of the candidate.

        Raises:
            ConfigError: the candidate is not one token or class.
        """
        from transom.inspection.lenses.question import symbol_index

        given = {name: value for name, value in self._asdict().items() if value is not None}
        if self.candidate is not None:
            given["candidate"] = symbol_index(predictor, self.candidate)
        if (temperatures := given.pop("temperature", None)) is not None:
            given["temperatures"] = temperatures
        return given


@app.command()
@expand_options
def explain(
    run: RunArgument,
    text: TextArgument = None,
    *,
    input_file: InputFileOption = None,
    sample: SampleOption = None,
    steps: StepOptions,
    format_: Annotated[
        Format | None, typer.Option("--format", help="Format of the output. Default: that of the suffix of --out, else text.")
    ] = None,
    edit: EditOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to a file instead: .txt, .md, .tex, .html or .json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all operands: the same as --format json.")] = False,
) -> None:
    """Print every step in the order of the data, as on paper: tokens, embeddings, mean and variance, query, key and value, dot products.

    Then come the division by sqrt(d_k), mask, exponentials, weights, weighted values, concatenation, W_O, residual sums, feed-forward
    network, logits, and probabilities at several temperatures. One element of each vector is worked out. Each line is label = expression =
    result, and a calculator gives the printed result from the printed operands. Long sums end with the exact sum of the terms that are not
    printed. Every step is compared with what the model computed. With --edit, lines that begin with "edited" show what an edit changes.
    """
    require_one_input_or_sample(text, input_file, sample, steps.target)
    check_output_file(out, [run, input_file])
    chosen = _format(format_, out, as_json)
    with gc_frozen_imports():
        from transom.files.atomic_io import write_file
        from transom.inspection.explain.explain import explain_run
        from transom.tasks.load import load

    predictor, batch = load(run, "fp32"), read_sample(run, sample)
    named = {name: f"--{name}" for name in (*StepOptions._fields, "temperatures")}
    with option_errors(text="TEXT", **named), edits_in_force(predictor, edit):
        found = explain_run(predictor, text, input_file, batch=batch, **steps.of(predictor))
    if out is not None:
        write_file(out, _written(found, chosen, color=False, width=None).encode())
        n = sum(len(section.steps) for section in found.sections)
        print_note(f"wrote {n:,} steps to {out}")
    else:
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        print(_written(found, chosen, color, terminal_width()), end="")


def _format(given: Format | None, out: Path | None, as_json: bool) -> Format:
    """Return the format of the output.

    Raises:
        ConfigError: ``--json`` and ``--format`` contradict each other, or no format belongs to the suffix of the file.
    """
    if as_json and given not in (None, "json"):
        raise ConfigError(f"--format: expected json with --json, found {given}; leave one of them out")
    implied = None if out is None else SUFFIXES.get(out.suffix.lower())
    if implied not in (None, "json" if as_json else given or implied):
        wanted = "json" if as_json else given
        raise ConfigError(f"--out: expected a file for the format {wanted}, found {out}; rename it, or leave the format out")
    if as_json or given is not None:
        return "json" if as_json or given is None else given
    if out is None:
        return "text"
    if (suffix := out.suffix.lower()) not in SUFFIXES:
        raise ConfigError(f"--out: expected a file that ends in {', '.join(SUFFIXES)}, found {out}; rename it, or give --format")
    return SUFFIXES[suffix]


def _written(found: "Explanation", chosen: Format, color: bool, width: int | None) -> str:
    """Return the hand calculation in a format; plain text is wrapped."""
    if chosen == "text":
        return found.text(color, width)
    written: str = getattr(found, chosen)()
    return written
