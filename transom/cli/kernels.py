"""``transom kernels``: show which kernel computes each operation on this machine, and why."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import PrecisionOption
from transom.cli.output import JsonOption, print_result
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
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Run folder of a model. Default: print the dispatch table of all operations.")
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="With RUN: list the kernels of a training step instead of those of inference.")
    ] = False,
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print the dispatch table, or with RUN the kernel that each layer of a model uses on a typical batch.

    Each operation has a reference in plain PyTorch and faster kernels. The kernels are tried in the order of the table, and the first one
    that supports the input is used. "error" is the maximum relative error of a kernel's results and gradients, compared with the reference
    in float64. The environment variable TRANSOM_KERNELS=reference disables all faster kernels.
    """
    if run is None and training:
        raise ConfigError("--training: expected a RUN, found none; name a run folder")
    with gc_frozen_imports():
        import transom.decoding.backends.decoder_backend
        import transom.training.losses  # both register operations  # noqa: F401
        from transom.inspection.kernel_paths import reference_row
        from transom.layers.dispatch import REFERENCES, kernels_of

    if run is not None:
        _print_run_kernels(run, training, precision, as_json)
        return
    records = [
        {
            "operation": row.operation,
            "path": row.path,
            "when": row.when,
            "reason": row.reason,
            "error": row.error if row.path != "reference" else None,
            "missing": row.missing(),
        }
        for name in sorted(REFERENCES)
        for row in (*kernels_of(name), reference_row(name))
    ]
    print_result(records, as_json, _dispatch_table_lines(records))


def _dispatch_table_lines(records: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Format the dispatch table as one block of lines per operation."""
    operation = None
    for each in records:
        if each["operation"] != operation:
            yield from [""] * (operation is not None)
            operation = each["operation"]
            yield str(operation)
        if each["path"] == "reference":
            yield f"  reference: {each['when']}"
            continue
        here = f"not on this machine: {each['missing']}" if each["missing"] else f"{each['when']}; error {each['error']:.0e}"
        yield from (f"  {each['path']}: {here}", f"    {each['reason']}")


def _print_run_kernels(run: Path, training: bool, precision: str, as_json: bool) -> None:
    """Print the kernels that each layer of a run's model uses on a typical batch."""
    import torch

    from transom.decoding.backends.native_decoder import unsupported_reason
    from transom.inspection.kernel_paths import KernelPath, trace_kernel_paths, typical_batch
    from transom.tasks.load import load

    predictor = load(run, precision)  # type: ignore[call-overload]  # the option's choices
    model, chosen = predictor.model, predictor.precision
    dtype = torch.float32 if chosen is None else chosen.dtype
    if training:
        model.float()
    batch = typical_batch(model.config, model.unembedding.weight.dtype).to(model.device)
    with torch.autocast(model.device.type, dtype, enabled=training and dtype != torch.float32):
        found = trace_kernel_paths(model, batch, training)
    if not training:
        reason = unsupported_reason(model)
        why = reason or "the native decoder supports this model; it decodes in float32, bfloat16 or int8"
        found.append(KernelPath("decoder", "decoder_step", "reference" if reason else "C++", why, 1))
    lines = [f"{each.layer or '(model)'}  {each.operation}: {each.path} ({each.calls} per pass)" for each in found]
    reasons = {(each.operation, each.path): each.reason for each in found}
    lines += ["", *(f"{operation}: {path}, because {why}" for (operation, path), why in reasons.items())]
    print_result([each._asdict() for each in found], as_json, lines)
