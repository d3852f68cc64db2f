"""``transom plot``: draw attention maps, probabilities, norms, embeddings or the architecture of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from transom.checkpoints.output_paths import check_output_file
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
from transom.cli.output import JsonOption, print_note, print_result
from transom.cli.trace import indices_option
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.plots.picture import Picture

EXAMPLES = """
transom plot heads runs/en-de "A man sleeps." --out heads.svg
transom plot head runs/gpt "To be, or not to be" --block 3 --head 1
transom plot alignment runs/en-de "A man sleeps." --out alignment.png
transom plot probabilities runs/gpt "To be, or not to" --temperatures 0.5,1,2
transom plot head runs/photos --input cat.jpg --block 5 --out head.html
transom plot positions runs/en-de --length 100
transom plot formation runs/gpt
transom plot architecture runs/gpt
"""

app = typer.Typer(add_completion=False)

KindName = Literal[
    "heads",
    "head",
    "alignment",
    "probabilities",
    "lens",
    "rollout",
    "similarity",
    "formation",
    "norms",
    "experts",
    "positions",
    "embeddings",
    "architecture",
]


class PlotOptions(NamedTuple):
    """Options of single kinds of pictures; None for a default."""

    attention: Annotated[
        Literal["encoder", "decoder", "cross"] | None,
        typer.Option("--attention", help="heads, head: self-attention of a stack, or cross-attention. Default: cross if there is any."),
    ]
    block: Annotated[int | None, typer.Option("--block", min=0, help="head: block, from 0. Default: 0.")]
    head: Annotated[int | None, typer.Option("--head", min=0, help="head: attention head, from 0. Default: 0.")]
    blocks: Annotated[str | None, typer.Option("--blocks", metavar="N,N", help="heads: blocks to draw, from 0. Default: all.")]
    layer: Annotated[int | None, typer.Option("--layer", min=0, help="alignment: decoder layer. Default: the closest to one-to-one.")]
    target: Annotated[str | None, typer.Option("--target", metavar="TEXT", help="alignment: the translation. Default: the model's own.")]
    position: Annotated[
        int | None, typer.Option("--position", help="probabilities: position whose next token is predicted. Default: -1, the last.")
    ]
    temperatures: Annotated[
        str | None, typer.Option("--temperatures", metavar="T,T", help="probabilities: temperatures. Default: 0.5,1,2.")
    ]
    top: Annotated[int | None, typer.Option("--top", min=1, help="probabilities: number of tokens. Default: 12.")]
    length: Annotated[int | None, typer.Option("--length", min=2, help="positions: number of positions. Default: 64.")]
    stack: Annotated[
        Literal["encoder", "decoder"] | None, typer.Option("--stack", help="positions: whose position encoding. Default: the first.")
    ]
    words: Annotated[
        str | None, typer.Option("--words", metavar="WORD,WORD", help="embeddings: words to draw. Default: the first 120 tokens.")
    ]

    def of(self, kind: str, known: Sequence[str]) -> dict[str, Any]:
        """Return the options that are given, by name.

        Args:
            kind: kind of picture.
            known: names of its options.

        Raises:
            ConfigError: an option belongs to other kinds, or is malformed.
        """
        given = {name: value for name, value in self._asdict().items() if value is not None}
        for name in given:
            if name not in known:
                of = ", ".join(f"--{each}" for each in known) or "none"
                raise ConfigError(f"--{name}: expected an option of {kind}, found one of another kind; {kind} has {of}")
        parsed = {
            "blocks": indices_option("blocks", self.blocks),
            "temperatures": _numbers(self.temperatures),
            "words": None if self.words is None else [word.strip() for word in self.words.split(",") if word.strip()],
        }
        return given | {name: value for name, value in parsed.items() if value is not None}


@app.command()
@expand_options
def plot(
    kind: Annotated[KindName, typer.Argument(metavar="KIND", help="What to draw; the kinds are listed above.")],
    run: RunArgument,
    text: TextArgument = None,
    *,
    input_file: InputFileOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write: .svg, .png, .html or .csv. Default: KIND.svg.")
    ] = None,
    options: PlotOptions,
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    r"""Draw a picture of a model, and write the numbers that it shows to a CSV file beside it.

    Attention maps are certified: their weights give the output that the model's kernel computed. The text that is printed describes the
    picture for those who cannot see it. The same command writes the same bytes.

    \b
    heads          attention maps of all heads, one row per block.
    head           the attention map of one head, with its tokens.
    alignment      which source words each word of a translation attends to.
    probabilities  the most probable next tokens or classes at several temperatures.
    lens           the most probable token after each block: the logit lens.
    rollout        share of each input token, or patch, in the output.
    similarity     similarity of all pairs of heads.
    formation      heads forming during training: scores of their roles by step.
    norms          lengths of the residual stream and of its gradient by depth.
    experts        share of tokens that each expert receives.
    positions      the position encoding and its dot products.
    embeddings     token embeddings on the plane of largest variance.
    architecture   the layers of the model with shapes and numbers of parameters.
    """
    path = Path(f"{kind}.svg") if out is None else out
    numbers = path.with_suffix(".csv")
    for each in (path, numbers):
        check_output_file(each, [run, input_file])
    with gc_frozen_imports():
        from transom.inspection.plots.kinds import KINDS
        from transom.inspection.plots.picture import check_suffix
        from transom.tasks.load import load

    check_suffix(path)
    given = options.of(kind, KINDS[kind].options)
    if kind == "formation":
        if text is not None and input_file is not None:
            raise ConfigError("expected TEXT or --input, found both; give one of them, or neither for the validation data")
    elif KINDS[kind].has_input:
        require_one_input(text, input_file)
    elif text is not None or input_file is not None:
        raise ConfigError(f"expected no TEXT and no --input for {kind}, which shows the model alone, found one; leave it out")
    predictor, named = load(run, precision), {name: f"--{name}" for name in KINDS[kind].options}
    named |= {"blocks": "--block", "heads": "--head"} if kind == "head" else {}
    with option_errors(text="TEXT", **named):
        if kind == "formation":
            picture = _draw_formation(run, predictor, text, input_file, precision)
        else:
            picture = _draw(kind, predictor, text, input_file, given)
    for each in dict.fromkeys((path, numbers)):
        picture.save(each)
    record = {"title": picture.title, "alt": picture.alt, "columns": picture.columns, "rows": picture.rows} if as_json else None
    print_result(record, as_json, [picture.title, picture.alt])
    print_note(f"wrote {path}{f' and {numbers}' if numbers != path else ''}")


def _draw(kind: str, predictor: Any, text: str | None, input_file: Path | None, options: dict[str, Any]) -> "Picture":
    """Draw the picture of a run, and print the notes on its input."""
    from transom.inspection.example_batch import build_example_batch
    from transom.inspection.plots.kinds import KINDS
    from transom.inspection.plots.kinds import plot as draw

    if not KINDS[kind].has_input:
        return draw(kind, predictor, **options)
    if kind == "alignment":
        if text is None:
            raise ConfigError("expected TEXT for alignment, found --input; give the sentence")
        return draw(kind, predictor, text, **options)
    example = build_example_batch(predictor, text, input_file)
    for note in example.notes:
        print_note(note)
    return draw(kind, predictor, example.batch, **options)


def _draw_formation(run: Path, predictor: Any, text: str | None, input_file: Path | None, precision: Any) -> "Picture":
    """Draw the heads of a run's checkpoints and of its weights, on a text, a file or the run's validation data."""
    from transom.inspection.lenses.head_statistics import attention_layers
    from transom.inspection.plots.kinds import plot as draw
    from transom.tasks.load_checkpoint import kept_steps, load_steps
    from transom.tasks.run_data import first_batches, load_inputs

    attention_layers(predictor.model)  # refuses other models before the data are read
    kept_steps(run)  # as are runs without checkpoints
    batches = list(first_batches(load_inputs(predictor, run, text, input_file), N_TEXTS))
    print_note(f"measured over {sum(len(batch.sample_ids) for batch in batches):,} rows of the data")
    return draw("formation", load_steps(run, precision), [batch.to(predictor.model.device) for batch in batches])


N_TEXTS = 64
"""Texts or images of the validation data over which heads are measured, at least."""


def _numbers(given: str | None) -> list[float] | None:
    """Parse numbers above 0, separated by commas.

    Raises:
        ConfigError: one is no number above 0.
    """
    if given is None:
        return None
    try:
        found = [float(each) for each in given.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < each <= 1e6 for each in found):
        raise ConfigError(f"--temperatures: expected numbers above 0, separated by commas, found {given!r}; such as 0.5,1,2")
    return found
