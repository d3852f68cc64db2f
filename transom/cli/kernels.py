"""``transom kernels``: list the kernel that computes each operation on this machine, with the reason."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.answers import Json, answer
from transom.cli.imports import lasting_imports
from transom.cli.options import Precision
from transom.errors import ConfigError

EXAMPLES = """
transom kernels
transom kernels runs/en-de
transom kernels runs/en-de --training
TRANSOM_KERNELS=reference transom kernels --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def kernels(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder. Default: print the dispatch table.")] = None,
    training: Annotated[bool, typer.Option("--training", help="Kernels of a training step, with gradients and dropout.")] = False,
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """Each operation has a reference in plain PyTorch and faster kernels, tried in table order; the first supported one is used.

    The error is the maximum relative error of results and gradients against the reference in float64. With RUN, its model runs on a
    typical batch, and each layer is listed with the kernel it used. TRANSOM_KERNELS=reference disables all kernels.
    """
    if run is None and training:
        raise ConfigError("--training: expected a RUN, found none; name a run folder")
    with lasting_imports():
        import transom.decoding.backends.searcher
        import transom.training.loss  # both register operations  # noqa: F401
        from transom.inspection.kernel_paths import reference_row
        from transom.layers.dispatch import REFERENCES, rows_of

    if run is not None:
        _answer_for(run, training, precision, as_json)
        return
    records = [
        {
            "operation": row.operation,
            "path": row.path,
            "serves": row.when,
            "why": row.why,
            "error": row.error if row.path != "reference" else None,
            "missing": row.missing(),
        }
        for name in sorted(REFERENCES)
        for row in (*rows_of(name), reference_row(name))
    ]
    answer(records, as_json, _lines_of_table(records))


def _lines_of_table(records: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Format the dispatch table: a block per operation, a line per kernel."""
    operation = None
    for each in records:
        if each["operation"] != operation:
            yield from [""] * (operation is not None)
            operation = each["operation"]
            yield str(operation)
        if each["path"] == "reference":
            yield f"  reference: {each['serves']}"
            continue
        here = f"not on this machine: {each['missing']}" if each["missing"] else f"{each['serves']}; error {each['error']:.0e}"
        yield from (f"  {each['path']}: {here}", f"    {each['why']}")


def _answer_for(run: Path, training: bool, precision: str, as_json: bool) -> None:
    """Print the kernels used by each layer of a run's model."""
    import torch

    from transom.decoding.backends.compiled import why_not
    from transom.inspection.kernel_paths import Taken, paths_taken, typical_batch
    from transom.tasks.load import load

    answering = load(run, precision)  # type: ignore[arg-type]  # the option's choices
    model, chosen = answering.model, answering.precision
    dtype = torch.float32 if chosen is None else chosen.dtype
    if training:
        model.float()
    batch = typical_batch(model.config, model.unembedding.weight.dtype).to(model.device)
    with torch.autocast(model.device.type, dtype, enabled=training and dtype != torch.float32):
        found = paths_taken(model, batch, training)
    if not training:
        reason = why_not(model)
        why = reason or "the native decoder supports this model; it decodes in bfloat16 or int8"
        found.append(Taken("decoder", "decoder_step", "reference" if reason else "C++", why, 1))
    lines = [f"{each.layer or '(model)'}  {each.operation}: {each.path} ({each.calls} per pass)" for each in found]
    reasons = {(each.operation, each.path): each.why for each in found}
    lines += ["", *(f"{operation}: {path}, because {why}" for (operation, path), why in reasons.items())]
    answer([each._asdict() for each in found], as_json, lines)
