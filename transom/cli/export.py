"""``transom export``: write a run as a model folder of the transformers library."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import RunArgument
from transom.cli.output import JsonOption, print_result
from transom.errors import ConfigError

EXAMPLES = """
transom export runs/gpt --to huggingface exported/gpt
transom export runs/en-de --to huggingface exported/en-de --as marian
transom export runs/poet --to huggingface exported/poet --adapter --base exported/gpt
python -c 'from transformers import pipeline; print(pipeline("text-generation", "exported/gpt")("Once"))'
"""

app = typer.Typer(add_completion=False)


@app.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; it must not exist yet.")],
    *,
    to: Annotated[Literal["huggingface"], typer.Option("--to", help="Format of the folder: that of the transformers library.")],
    model_type: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="TYPE", help="Model type of the library, such as llama. Default: the one that fits with the fewest added zeros."
        ),
    ] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write only the LoRA adapter that RUN trained, in the format of the PEFT library.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="NAME", help="With --adapter: folder or hub name of the exported base model, for the file."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """OUT loads without transom and without code of its own, by AutoModel, AutoTokenizer, AutoImageProcessor and pipeline.

    The library loads OUT before the command reports success; the largest difference of the logits is printed. A model that no type of the
    library equals stays in transom's own format: the error names the components in the way, and the lines of the recipe that remove them.
    With --adapter, PEFT loads OUT onto the base model, which is exported from the run that training started from.
    """
    check_output_path(out, [run])
    with gc_frozen_imports():
        from transom.exchange.adapters.export_adapter import export_adapter
        from transom.exchange.export_run import export_run
        from transom.tasks.progress import show_progress

    if base is not None and not adapter:
        raise ConfigError("--base: expected --adapter beside it, found a whole model to export; add --adapter or omit --base")
    with show_progress("bytes", quiet=as_json) as notify:
        report = export_adapter(run, out, base, model_type) if adapter else export_run(run, out, model_type, notify)
    agreement = report.agreement
    use = f'pipeline("{report.pipeline}", "{out}")' if report.pipeline else f'{report.auto_class}.from_pretrained("{out}")'
    if adapter:
        use = f'PeftModel.from_pretrained({report.auto_class}.from_pretrained("{base or "BASE"}"), "{out}")'
    lines = [
        f"{report.architecture}: {agreement.n_logits:,} logits of random inputs computed by both libraries, largest difference"
        f" {agreement.max_difference:.1e} at logits up to {agreement.max_logit:.3g}",
        *report.notes,
        f"{'adapter' if adapter else 'model'} in {out}",
        f"use: {use}",
    ]
    print_result(report.to_json(), as_json, lines)
