"""``transom embed``: embed texts and print their pairwise cosine similarity."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from transom.checkpoints.outputs import refuse_output
from transom.cli.answers import Json, answer, note_longer
from transom.cli.imports import lasting_imports
from transom.cli.options import IN_WINDOWS, TRUNCATED, EmbedTooLong, Precision, Run
from transom.errors import ConfigError

EXAMPLES = """
transom embed runs/sentences "A man sleeps." "Someone is asleep." "Two dogs run."
transom embed runs/masked --input texts.txt --output vectors.safetensors
transom embed runs/masked --input texts.txt --json > vectors.jsonl
"""

app = typer.Typer(add_completion=False)


@app.command()
def embed(
    run: Run,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="Texts; prints their pairwise cosine similarities.")] = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Texts, one per line (.gz too).")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the vectors to a safetensors file, under the key embeddings.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not normalize the vectors to unit length.")] = False,
    too_long: EmbedTooLong = "truncate",
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """Print the cosine similarities of the texts, or write their vectors to a file.

    A vector is the mean of the encoder's last hidden states. Runs of task embedding work best; masked language models and classifiers
    work too.
    """
    if bool(texts) == (input_file is not None):
        raise ConfigError("expected TEXT or --input, found both or neither; give one of them")
    if input_file is not None and output is None and not as_json:
        raise ConfigError("expected --output FILE or --json with --input, found neither; give one of them")
    with lasting_imports():
        from transom.data.text.text import check_text, read_lines
        from transom.tasks.load import load_embedder
        from transom.tasks.progress import counting

    refuse_output(output, [run, input_file])
    embedder = load_embedder(run, precision)
    rows = read_lines(input_file, empty=True) if input_file is not None else [check_text(text, "TEXT") for text in texts or []]
    with counting("texts", quiet=as_json or input_file is None) as tell:
        found = embedder.embedded(rows, not raw, too_long, tell)
    vectors, most, fate = found.vectors, embedder.model.config.max_seq_len - 1, TRUNCATED if too_long == "truncate" else IN_WINDOWS
    if not as_json:
        note_longer(found.n_longer, len(rows), "texts", most, fate, sum(found.n_left_out))
    if output is not None:
        from transom.checkpoints.tensors import pack
        from transom.files.durable import write_file

        write_file(output, lambda: pack({"embeddings": vectors}))
        counts = {"texts": len(rows), "n_longer": found.n_longer, "n_left_out": sum(found.n_left_out)}
        answer({"file": str(output), **counts, "d_model": vectors.shape[1]}, as_json, [f"wrote {output}: {len(rows):,} vectors"])
    elif as_json:
        for text, vector, left_out, windows in zip(rows, vectors.tolist(), found.n_left_out, found.windows, strict=True):
            record = {"text": text, "embedding": vector, "n_left_out": left_out, "windows": windows}
            json.dump(record, sys.stdout, ensure_ascii=False)
            print()
    else:
        cosines = (vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)) @ vectors.T
        lines = ["  ".join(f"{cosine:6.3f}" for cosine in row) + f"  {text}" for row, text in zip(cosines.tolist(), rows, strict=True)]
        answer(None, False, lines)
