"""``transom embed``: embed texts and print their pairwise cosine similarity."""

from pathlib import Path
from typing import Annotated

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.edits import EditOption, edits_in_force
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.inputs import InputOptions, answer_inputs, read_inputs
from transom.cli.options import EmbedTooLong, InferencePrecisionOption, RunArgument, expand_options
from transom.cli.output import JsonOption
from transom.errors import ConfigError

EXAMPLES = """
transom embed runs/sentences "A man sleeps." "Someone is asleep." "Two dogs run."
transom embed runs/sentences --nearest answers.txt "How do I reset my password?"
transom embed runs/masked --input texts.txt --output vectors.safetensors
transom embed runs/masked --input texts.txt --json > vectors.jsonl
"""

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def embed(
    run: RunArgument,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="Texts to embed.")] = None,
    *,
    sources: InputOptions,
    nearest: Annotated[
        Path | None,
        typer.Option(
            "--nearest", metavar="FILE", help="File of texts, one per line (may be gzipped). Prints those most similar to each input."
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top-k", min=1, metavar="N", help="Number of similar texts to print per input.")] = 5,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="safetensors file to write the vectors to, as a tensor named embeddings."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not normalize the vectors to unit length.")] = False,
    too_long: EmbedTooLong = "truncate",
    edit: EditOption = None,
    precision: InferencePrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print the pairwise cosine similarities of texts, search a file for similar texts, or write the vectors of texts to a file.

    The vector of a text is the mean of the encoder's last hidden states. Models trained with task = "embedding" work best. Masked language
    models and classifiers work too.

    Lines that are typed, or read with --line-buffered, are compared one by one with the texts of --nearest. Without --nearest, each line is
    compared with the lines before it.
    """
    if nearest is not None and output is not None:
        raise ConfigError("expected --nearest or --output, found both; give one of them")
    with gc_frozen_imports():
        from transom.cli.text_search import TextSearch
        from transom.data.text.text_io import read_lines
        from transom.planning.freed_memory import restored_malloc
        from transom.tasks.load import load_embedder
        from transom.tasks.progress import show_progress

    if sources.is_stream(texts) and not (output or nearest or as_json):
        raise ConfigError(
            "expected --output FILE, --nearest FILE or --json, found none of them; give one of them to embed the lines of a file or pipe"
        )
    inputs = read_inputs(texts, sources, "TEXT", "texts")
    if inputs.given is None and output is not None:
        raise ConfigError("expected --input or a pipe with --output, found lines that are answered one by one; leave --output out")
    check_output_path(output, [run, sources.input_file])
    embedder = load_embedder(run, precision)
    search = TextSearch(embedder, not raw, too_long, top)
    with edits_in_force(embedder, edit, precision):
        if nearest is not None:
            with show_progress("texts", quiet=as_json) as notify, restored_malloc():
                search.index(read_lines(nearest), notify)
        if output is not None:
            with show_progress("texts", quiet=as_json) as notify, restored_malloc():
                search.add(inputs.given or [], notify)
            search.write(output, as_json)
        else:
            answer = search.nearest if nearest is not None or inputs.given is None else search.compare
            answer_inputs(inputs, answer, run=run, noun="texts", as_json=as_json, json_lines=True)
    if not as_json:
        search.note_too_long()
