"""``transom import``: read a model folder of the transformers library as a run folder."""

from pathlib import Path
from typing import Annotated

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.output import JsonOption, print_note, print_result

EXAMPLES = """
transom import models/gpt2 runs/gpt2
transom generate runs/gpt2 "The meaning of life is"
transom import adapters/poet runs/poet --base runs/gpt2
transom train text-bpe --init-from runs/gpt2 --text my-text.txt --out runs/mine
"""

app = typer.Typer(add_completion=False)


@app.command(name="import")
def import_model(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder with config.json, safetensors files and a tokenizer, from save_pretrained.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Run folder to write.")],
    *,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="RUN", help="Imported base model of FOLDER, which is a LoRA adapter of the PEFT library."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Every command then works on OUT: generate, translate, classify, embed, explain, plot, doctor, and train --init-from OUT.

    Families: GPT-2, GPT-NeoX, Llama 1 to 3, Mistral, Mixtral, Qwen 2 and 3, Gemma 2, Phi, BERT, RoBERTa, DistilBERT, sentence embedders of
    these, ViT, DeiT, Marian, BART and T5. Nothing in FOLDER is executed, and nothing is downloaded. Weights keep their dtype. Settings
    without an equal are printed. The page docs/exchange.md lists the classes.
    """
    check_output_path(out, [folder, *([] if base is None else [base])])
    with gc_frozen_imports():
        from transom.exchange.adapters.adapter_folder import require_base
        from transom.exchange.adapters.import_adapter import import_adapter
        from transom.exchange.import_folder import import_folder
        from transom.inspection.pages.number_format import format_count
        from transom.tasks.progress import show_progress

    with show_progress("bytes", quiet=as_json) as notify:
        require_base(folder, base)
        report = import_folder(folder, out, notify) if base is None else import_adapter(folder, base, out, notify)
    rate = report.n_bytes / max(report.seconds, 1e-9) / 1e9
    lines = [
        f"{report.architecture}: {format_count(report.n_parameters)} parameters, {', '.join(report.dtypes)},"
        f" {report.seconds:.1f} s ({rate:.2f} GB/s)",
        *report.notes,
        f"model for task {report.task} in {out}",
    ]
    print_result(report.to_json(), as_json, lines)
    if not as_json:
        print_note(f"next: transom names {out}")
