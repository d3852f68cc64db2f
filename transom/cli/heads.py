"""``transom heads``: statistics and roles of the attention heads of a model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import InputFileOption, PrecisionOption, RunArgument, TextArgument
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.lenses.head_roles import HeadScores
    from transom.inspection.lenses.head_statistics import HeadReport

EXAMPLES = """
transom heads runs/gpt
transom heads runs/gpt "To be, or not to be, that is the question."
transom heads runs/gpt --input lines.txt --texts 500 --json
transom heads runs/photos --texts 50
"""

N_SIMILAR = 5
"""Number of pairs of heads that are printed, those with the most similar maps."""

app = typer.Typer(add_completion=False)


@app.command()
def heads(
    run: RunArgument,
    text: TextArgument = None,
    input_file: InputFileOption = None,
    texts: Annotated[
        int, typer.Option("--texts", min=1, metavar="N", help="Number of validation texts or images, or of lines of --input, at least.")
    ] = 100,
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Print statistics and roles of each attention head over the run's validation data, a text, the lines of a file, or an image.

    entropy: of the attention, in nats; share: of its maximum, 1 is uniform attention. dist: mean distance between query and key, in tokens,
    or in pixels. prev: weight of the token before. pos: share of the variance of the weights that relative position explains. delim: weight
    of special tokens and punctuation. ind, dup: in random tokens that are repeated, the weight of the token after the earlier occurrence of
    the query's token (induction), and of that occurrence. copy: from -1 to 1, whether the head makes the tokens that it attends to more
    probable. A head has a role if its score is 0.5 or more; positional and copying heads need 0.75.
    """
    if text is not None and input_file is not None:
        raise ConfigError("expected TEXT or --input, found both; remove one")
    with gc_frozen_imports():
        from transom.inspection.lenses.head_roles import head_scores
        from transom.inspection.lenses.head_statistics import attention_layers, head_statistics
        from transom.tasks.load import load

    predictor = load(run, precision)
    attention_layers(predictor.model)  # refuses other models before the data are read
    report = head_statistics(predictor, _batches(run, predictor, text, input_file, texts))
    scores = head_scores(predictor, report.heads)
    record = {
        "heads": [{**each._asdict(), **of_head._asdict()} for each, of_head in zip(report.heads, scores, strict=True)],
        "similarity": report.similarity.tolist(),
    }
    config = predictor.model.config
    pixels = config.image_size // config.grid if hasattr(config, "grid") else None
    print_result(record, as_json, _lines(report, scores, pixels))


def _batches(run: Path, predictor: Any, text: str | None, input_file: Path | None, n: int) -> Iterator[Any]:
    """Yield the batches of the texts or images that the options name."""
    from transom.data.text.text_io import read_lines
    from transom.inspection.example_batch import SupportsFileInput, build_example_batch
    from transom.tasks.run_data import first_batches, load_run_data

    if text is None and input_file is None:
        yield from (batch.to(predictor.model.device) for batch in first_batches(load_run_data(run, print_note).valid, n))
        return
    is_text_file = input_file is not None and not isinstance(predictor, SupportsFileInput)
    lines = [line for line in read_lines(input_file) if line.strip()][:n] if is_text_file and input_file is not None else [text]
    for line in lines:
        example = build_example_batch(predictor, line, None if is_text_file else input_file)
        for note in example.notes if len(lines) == 1 else ():
            print_note(note)
        yield example.batch


def _lines(report: "HeadReport", scores: "Sequence[HeadScores]", pixels: int | None) -> list[str]:
    """Format one line per head, without columns that have no values, and the most similar pairs; ``pixels`` is the side of a patch."""
    columns: dict[str, list[str]] = {
        "head": [f"{each.address} {each.head}" for each in scores],
        "entropy": [f"{each.entropy:.2f}" for each in report.heads],
        "share": [f"{each.entropy_share:.2f}" for each in report.heads],
        "dist": [f"{each.distance * (pixels or 1):.1f}" for each in report.heads],
    }
    shown = {
        "prev": "previous-token",
        "pos": "positional",
        "delim": "delimiter",
        "ind": "induction",
        "dup": "duplicate-token",
        "copy": "copying",
    }
    for name, role in shown.items():
        values = [each.score(role) for each in scores]
        if any(value is not None for value in values):
            columns[name] = ["-" if value is None else f"{value:.2f}" for value in values]
    columns["roles"] = [", ".join(each.roles) for each in scores]
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    numbers = align_columns([row[:-1] for row in rows])
    unit = "pixels" if pixels else "tokens"
    return [
        f"{max(each.n_queries for each in report.heads):,} query tokens; entropy in nats, distance in {unit}",
        *(f"{line}  {row[-1]}".rstrip() for line, row in zip(numbers, rows, strict=True)),
        "",
        "most similar heads (mean cosine of their maps)",
        *_similar(report),
    ]


def _similar(report: "HeadReport") -> list[str]:
    """Format the pairs of heads with the most similar maps."""
    n, similarity = len(report.heads), report.similarity.tolist()
    pairs = [(similarity[i][j], i, j) for i in range(n) for j in range(i) if similarity[i][j] == similarity[i][j]]
    names = [f"{each.address} {each.head}" for each in report.heads]
    best = sorted(pairs, reverse=True)[:N_SIMILAR]
    return align_columns([[names[j], names[i], f"{cosine:.3f}"] for cosine, i, j in best], n_left=2) if best else ["none"]
