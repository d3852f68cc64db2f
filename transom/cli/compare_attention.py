"""``transom compare-attention``: measure the error, time and memory of attention approximations on a trained model."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import CompareAttentionTooLong, PrecisionOption, RunArgument, option_errors, reject_options
from transom.cli.output import JsonOption, align_columns, print_result
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.attention_comparison import AttentionComparison

EXAMPLES = """
transom compare-attention runs/shakespeare-char --input play.txt
transom compare-attention runs/en-de --text "A man sleeps on a bench in the park."
transom compare-attention runs/stdlib --input module.py --lengths 256,1024,4096 --out attention.html
transom compare-attention runs/photos --input cat.jpg --json
"""

MAX_NUMBER = 65536
"""Largest number in ``--lengths``, ``--features``, ``--ranks`` and ``--windows``."""

PAGE_LENGTHS = "64,256,1024"
"""Lengths measured for a page if none are given."""

LengthsOption = Annotated[
    str | None,
    typer.Option(
        "--lengths",
        metavar="N,N",
        help=f"Also measure at these lengths in tokens, with the input repeated or cut off. Default: {PAGE_LENGTHS} with --out, else none.",
    ),
]

app = typer.Typer(add_completion=False)


@app.command()
def compare_attention(
    run: RunArgument,
    text: Annotated[str | None, typer.Option("--text", help="Text to run the model on.")] = None,
    input_file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Text file (may be gzipped), or an image for an image model."),
    ] = None,
    lengths: LengthsOption = None,
    features: Annotated[str, typer.Option("--features", metavar="N,N", help="Numbers of random features (Performer).")] = "16,64,256",
    ranks: Annotated[str, typer.Option("--ranks", metavar="N,N", help="Ranks (Linformer) and numbers of landmarks (Nystrom).")] = "16,64",
    windows: Annotated[str, typer.Option("--windows", metavar="N,N", help="Sizes in tokens of the sliding windows to measure.")] = "16,64",
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=1000, help="Number of timings per method. The median is printed.")] = 5,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of the random features.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Also write an HTML page with all results and charts of the error over length."),
    ] = None,
    too_long: CompareAttentionTooLong = None,
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Run a model on one input, and compute attention from the model's queries, keys and values with every applicable method.

    The error of a method is |Z' - Z| / |Z|, where Z is the output of exact attention and Z' is the output of the method. The error is
    averaged over heads and layers. The error of the attention weights is computed in the same way. The model is not retrained. A model
    trained with an approximation can perform better than these errors suggest.
    """
    given_sizes = {
        "lengths": (PAGE_LENGTHS if out else "") if lengths is None else lengths,
        "features": features,
        "ranks": ranks,
        "windows": windows,
    }
    sizes = {name: _parse_numbers(name, numbers) for name, numbers in given_sizes.items()}
    if (text is None) == (input_file is None):
        raise ConfigError("expected --text or --input, found both or neither; give one of them")
    with gc_frozen_imports():
        from transom.files.atomic_io import write_file
        from transom.inspection.attention_comparison import ComparisonSettings, compare_attention_methods
        from transom.inspection.example_batch import SupportsFileInput, build_example_batch
        from transom.inspection.pages.attention_comparison_page import comparison_page
        from transom.planning.precision import choose_threads, num_threads_set_to
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress

    check_output_path(out, [run, input_file])
    loaded, threads = load(run, precision), choose_threads()
    if isinstance(loaded, SupportsFileInput):
        reject_options({"--too-long": too_long}, "a model of texts", f"a model of {loaded.NOUN}s")
    with num_threads_set_to(threads.count), show_progress("layers", quiet=as_json) as notify:
        with option_errors(text="--text"):
            read = build_example_batch(loaded, text, input_file, too_long or "truncate")
        comparison = compare_attention_methods(loaded.model, read.batch, ComparisonSettings(**sizes, repeats=repeats, seed=seed), notify)
    notes = [*read.notes, *comparison.notes, threads.reason]
    if out is not None:
        write_file(out, comparison_page(run.name, comparison, notes).encode())
    value = {"run": str(run), "tokens": comparison.tokens, "n_dropped_tokens": read.n_dropped_tokens, **_to_json(comparison)}
    print_result({**value, "notes": notes}, as_json, _format_lines(comparison, notes))


def _to_json(comparison: "AttentionComparison") -> dict[str, Any]:
    return {
        "kinds": [cost._asdict() for cost in comparison.averages],
        "layers": {address: [cost._asdict() for cost in costs] for address, costs in comparison.layers.items()},
        "lengths": {str(length): [cost._asdict() for cost in costs] for length, costs in comparison.lengths.items()},
    }


def _parse_numbers(name: str, value: str) -> tuple[int, ...]:
    """Parse positive integers separated by commas or spaces."""
    words = value.replace(",", " ").split()
    if not all(word.isdecimal() and len(word) <= len(str(MAX_NUMBER)) and 0 < int(word) <= MAX_NUMBER for word in words):
        raise ConfigError(f"--{name}: expected numbers from 1 to {MAX_NUMBER:,} separated by commas, as in 256,1024, found {value!r:.80}")
    return tuple(dict.fromkeys(int(word) for word in words))


def _format_lines(comparison: "AttentionComparison", notes: list[str]) -> Iterator[str]:
    from transom.inspection.pages.attention_comparison_page import cells, columns, sections

    yield f"mean over {len(comparison.layers)} attention layers, {max(comparison.tokens.values()):,} tokens"
    yield from align_columns([columns(), *map(cells, comparison.averages)])
    for title, costs in sections(comparison):
        yield from ("", title, *align_columns([columns(), *map(cells, costs)]))
    yield from ("", *notes)
