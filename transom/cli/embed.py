"""``transom embed``: embed texts and print their pairwise cosine similarity."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import TRUNCATED_NOTE, WINDOWS_NOTE, EmbedTooLong, PrecisionOption, RunArgument
from transom.cli.output import JsonOption, note_too_long, print_result
from transom.errors import ConfigError

EXAMPLES = """
transom embed runs/sentences "A man sleeps." "Someone is asleep." "Two dogs run."
transom embed runs/masked --input texts.txt --output vectors.safetensors
transom embed runs/masked --input texts.txt --json > vectors.jsonl
"""

app = typer.Typer(add_completion=False)


@app.command()
def embed(
    run: RunArgument,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="Texts; prints their pairwise cosine similarities.")] = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Texts, one per line (.gz too).")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the vectors to a safetensors file, under the key embeddings.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not normalize the vectors to unit length.")] = False,
    too_long: EmbedTooLong = "truncate",
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print the cosine similarities of the texts, or write their vectors to a file.

    A vector is the mean of the encoder's last hidden states. Runs of task embedding work best; masked language models and classifiers
    work too.
    """
    if bool(texts) == (input_file is not None):
        raise ConfigError("expected TEXT or --input, found both or neither; give one of them")
    if input_file is not None and output is None and not as_json:
        raise ConfigError("expected --output FILE or --json with --input, found neither; give one of them")
    with gc_frozen_imports():
        from transom.data.text.text_io import check_text, read_lines
        from transom.tasks.load import load_embedder
        from transom.tasks.progress import show_progress

    check_output_path(output, [run, input_file])
    embedder = load_embedder(run, precision)
    texts_to_embed = (
        read_lines(input_file, allow_empty=True) if input_file is not None else [check_text(text, "TEXT") for text in texts or []]
    )
    with show_progress("texts", quiet=as_json or input_file is None) as notify:
        found = embedder.embed_with_details(texts_to_embed, not raw, too_long, notify)
    vectors, max_tokens, treatment = (
        found.vectors,
        embedder.model.config.max_seq_len - 1,
        TRUNCATED_NOTE if too_long == "truncate" else WINDOWS_NOTE,
    )
    if not as_json:
        note_too_long(found.n_too_long, len(texts_to_embed), "texts", max_tokens, treatment, sum(found.n_dropped_tokens))
    if output is not None:
        from transom.checkpoints.tensors import serialize_tensors
        from transom.files.atomic_io import write_file

        write_file(output, lambda: serialize_tensors({"embeddings": vectors}))
        counts = {"texts": len(texts_to_embed), "n_too_long": found.n_too_long, "n_dropped_tokens": sum(found.n_dropped_tokens)}
        print_result(
            {"file": str(output), **counts, "d_model": vectors.shape[1]}, as_json, [f"wrote {output}: {len(texts_to_embed):,} vectors"]
        )
    elif as_json:
        for text, vector, left_out, windows in zip(texts_to_embed, vectors.tolist(), found.n_dropped_tokens, found.windows, strict=True):
            record = {"text": text, "embedding": vector, "n_dropped_tokens": left_out, "windows": windows}
            json.dump(record, sys.stdout, ensure_ascii=False)
            print()
    else:
        cosines = (vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)) @ vectors.T
        lines = [
            "  ".join(f"{cosine:6.3f}" for cosine in row) + f"  {text}" for row, text in zip(cosines.tolist(), texts_to_embed, strict=True)
        ]
        print_result(None, False, lines)
