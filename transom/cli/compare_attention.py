"""``transom compare-attention``: error, time and memory of approximate attention on a trained model's queries, keys and values."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom.checkpoints.outputs import refuse_output
from transom.cli.answers import Json, answer, table
from transom.cli.imports import lasting_imports
from transom.cli.options import CompareTooLong, Precision, Run, refuse_with
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.comparison import Comparison

EXAMPLES = """
transom compare-attention runs/shakespeare-char --input play.txt
transom compare-attention runs/en-de --text "A man sleeps on a bench in the park."
transom compare-attention runs/stdlib --input module.py --lengths 256,1024,4096 --out attention.html
transom compare-attention runs/photos --input cat.jpg --json
"""

MOST = 65536
"""Upper limit of the numeric options."""

app = typer.Typer(add_completion=False)


@app.command()
def compare_attention(
    run: Run,
    text: Annotated[str | None, typer.Option("--text", help="Input text.")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Text file (.gz too), or an image for a model of images.")
    ] = None,
    lengths: Annotated[
        str, typer.Option("--lengths", metavar="N,N", help="Also measure at these lengths; the text's tokens are repeated or cut.")
    ] = "",
    features: Annotated[str, typer.Option("--features", metavar="N,N", help="Numbers of random features (Performer).")] = "16,64,256",
    ranks: Annotated[str, typer.Option("--ranks", metavar="N,N", help="Ranks (Linformer) and numbers of landmarks (Nystrom).")] = "16,64",
    windows: Annotated[str, typer.Option("--windows", metavar="N,N", help="Sizes of sliding windows in tokens.")] = "16,64",
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Number of timings per method; the median is reported.")] = 5,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random features.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Also write an HTML page with the results of every layer.")
    ] = None,
    too_long: CompareTooLong = None,
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Run the model on a text, then compute attention from its queries, keys and values with every applicable method.

    The error is |Z' - Z| / |Z|, where Z is the output of the model's exact attention, averaged over heads and layers; likewise for the
    attention weights. Nothing is retrained: a model trained with an approximation can do better than these errors suggest.
    """
    given_sizes = {"lengths": lengths, "features": features, "ranks": ranks, "windows": windows}
    sizes = {name: _numbers(name, numbers) for name, numbers in given_sizes.items()}
    if (text is None) == (input_file is None):
        raise ConfigError("expected --text or --input, found both or neither; give one of them")
    with lasting_imports():
        from transom.files.durable import write_file
        from transom.inspection.comparison import Settings, compare
        from transom.inspection.comparison_page import comparison_page
        from transom.inspection.given import ReadsFiles, given
        from transom.planning.precision import choose_threads, using_threads
        from transom.tasks.load import load
        from transom.tasks.progress import counting

    refuse_output(out, [run, input_file])
    loaded, threads = load(run, precision), choose_threads()
    if isinstance(loaded, ReadsFiles):
        refuse_with({"--too-long": too_long}, "a model of texts", f"a model of {loaded.NOUN}s")
    with using_threads(threads.count), counting("layers", quiet=as_json) as tell:
        read = given(loaded, text, input_file, too_long or "truncate")
        found = compare(loaded.model, read.batch, Settings(**sizes, rounds=rounds, seed=seed), tell)
    notes = [*read.notes, *found.notes, threads.reason]
    if out is not None:
        write_file(out, comparison_page(run.name, found, notes).encode())
    value = {
        "run": str(run),
        "tokens": found.tokens,
        "n_left_out": read.n_left_out,
        "kinds": [cost._asdict() for cost in found.kinds],
        "layers": {address: [cost._asdict() for cost in costs] for address, costs in found.layers.items()},
        "lengths": {str(length): [cost._asdict() for cost in costs] for length, costs in found.lengths.items()},
        "notes": notes,
    }
    answer(value, as_json, _lines(found, notes))


def _numbers(name: str, given: str) -> tuple[int, ...]:
    """Parse numbers separated by commas or spaces."""
    words = given.replace(",", " ").split()
    if not all(word.isdecimal() and len(word) <= len(str(MOST)) and 0 < int(word) <= MOST for word in words):
        raise ConfigError(f"--{name}: expected numbers from 1 to {MOST:,} separated by commas, as in 256,1024, found {given!r:.80}")
    return tuple(dict.fromkeys(int(word) for word in words))


def _lines(found: "Comparison", notes: list[str]) -> Iterator[str]:
    from transom.inspection.comparison_page import COLUMNS, cells, sections

    yield f"mean over {len(found.layers)} attention layers, {max(found.tokens.values()):,} tokens"
    yield from table([COLUMNS, *map(cells, found.kinds)])
    for title, costs in sections(found):
        yield from ("", title, *table([COLUMNS, *map(cells, costs)]))
    yield from ("", *notes)
