"""``transom rehearse``: what a training on many devices needs, before they are paid for."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import SetOption, expand_options
from transom.cli.output import JsonOption, print_note, print_result
from transom.cli.pictures import check_picture_path, save_picture
from transom.cli.plan import load_planned, parse_bytes
from transom.config.packaged import packaged_presets

if TYPE_CHECKING:
    from transom.config.architecture import ModelConfig
    from transom.config.parallel import ParallelConfig
    from transom.config.training import TrainingConfig
    from transom.planning.cluster import Cluster

EXAMPLES = """
transom rehearse python-stdlib --mesh data=2
transom rehearse llama-3-8b --mesh shard=64 --hardware h100 --batch-tokens 1048576
transom rehearse llama-2-70b --mesh data=8,tensor=8,pipeline=4 --micro-batches 16 --hardware a100
transom rehearse gpt2 --mesh data=2,tensor=4,pipeline=4 --micro-batches 8 --hardware h100 --plot mesh.svg
transom rehearse my.toml --mesh data=16 --device-flops 2e14 --inter-bandwidth 12.5GB --devices-per-node 4 --json
"""

app = typer.Typer(add_completion=False)


class BatchChoices(NamedTuple):
    """Options on the batch; None for a default."""

    context: Annotated[int | None, typer.Option("--context", min=1, help="Tokens per sequence. Default: as in transom plan.")]
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens",
            min=1,
            help="Tokens, or images, per step on all devices. Default: those of the recipe, at least a row per pass.",
        ),
    ]
    micro_batches: Annotated[
        int | None,
        typer.Option("--micro-batches", min=1, help="Micro-batches per step. Default: training.grad_accum_steps, at least one per stage."),
    ]

    def of(self, name: str, config: "ModelConfig", training: "TrainingConfig", layout: "ParallelConfig") -> "TrainingConfig":
        """Return settings with this batch; a published architecture, which comes without one, gets a row for each pass at least."""
        from transom.planning.layout import batch_size

        changes, size = dict[str, int](), self.batch_tokens
        is_preset = name in packaged_presets()
        if self.micro_batches is not None or is_preset:
            changes["grad_accum_steps"] = self.micro_batches or layout.pipeline
        if size is None and is_preset:
            length = getattr(config, "max_seq_len", 1) if self.context is None else self.context
            size = max(batch_size(training), layout.n_batch_parts * changes["grad_accum_steps"] * length)
        if size is not None:
            changes["batch_tokens" if hasattr(training, "batch_tokens") else "batch_size"] = size
        return training.model_copy(update=changes)


class HardwareChoices(NamedTuple):
    """Options on devices and links; None for those of ``--hardware``."""

    hardware: Annotated[
        Literal["cpu", "h100", "a100"] | None,
        typer.Option("--hardware", help="Devices with published rates, or cpu for processes of this machine. Default: cpu."),
    ]
    device_flops: Annotated[
        float | None, typer.Option("--device-flops", min=1, help="Peak rate of one device in FLOP/s, such as 1e15.", show_default=False)
    ]
    utilization: Annotated[
        float | None,
        typer.Option("--utilization", min=0.001, max=1, help="Fraction of the peak rate that computation reaches.", show_default=False),
    ]
    device_memory: Annotated[
        str | None, typer.Option("--device-memory", metavar="SIZE", help="Memory of one device, such as 80GiB.", show_default=False)
    ]
    devices_per_node: Annotated[int | None, typer.Option("--devices-per-node", min=1, help="Devices of one machine.", show_default=False)]
    intra_bandwidth: Annotated[
        str | None,
        typer.Option(
            "--intra-bandwidth",
            metavar="SIZE",
            help="Bytes per second from a device to others of its machine, such as 450GB.",
            show_default=False,
        ),
    ]
    inter_bandwidth: Annotated[
        str | None,
        typer.Option(
            "--inter-bandwidth", metavar="SIZE", help="Bytes per second from a device to other machines, such as 50GB.", show_default=False
        ),
    ]

    def build(self, layout: "ParallelConfig", training: "TrainingConfig", precision: str | None) -> "Cluster":
        """Return the devices and links."""
        from transom.planning.cluster import CLUSTERS

        name = self.hardware or "cpu"
        cluster = _this_machine(layout, training, precision, self) if name == "cpu" else CLUSTERS[name]
        intra, inter = parse_bytes(self.intra_bandwidth, "--intra-bandwidth"), parse_bytes(self.inter_bandwidth, "--inter-bandwidth")
        return replace(
            cluster,
            flops=self.device_flops or cluster.flops,
            utilization=self.utilization or cluster.utilization,
            device_bytes=parse_bytes(self.device_memory, "--device-memory") or cluster.device_bytes,
            devices_per_node=self.devices_per_node or cluster.devices_per_node,
            intra=cluster.intra._replace(bandwidth=float(intra)) if intra else cluster.intra,
            inter=cluster.inter._replace(bandwidth=float(inter)) if inter else cluster.inter,
        )


@app.command()
@expand_options
def rehearse(
    name: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="Published architecture, packaged recipe, or path of a recipe.")],
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            metavar="AXES",
            help="Processes per axis, such as data=8,tensor=4; axes that are left out are 1. Default: those of the recipe.",
        ),
    ] = None,
    overrides: SetOption = None,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", min=1, help="Symbols of each vocabulary. Default: as in transom plan.")
    ] = None,
    precision: Annotated[
        Literal["bf16", "fp32"] | None, typer.Option("--precision", help="Data type of matrix products. Default: bf16 on GPUs.")
    ] = None,
    *,
    batch: BatchChoices,
    hardware: HardwareChoices,
    no_steps: Annotated[
        bool, typer.Option("--no-steps", help="Take no steps of a small model; predict, and build the parts only.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the mesh and the timeline: .svg, .png, .html or .csv.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Try a training on a mesh of processes, and predict its memory, collectives and time. The model itself is not allocated.

    A mesh divides a training along six axes. data: copies of the model, each with a part of the batch. shard: the same, with weights,
    gradients and optimizer state divided too (FSDP). tensor: heads and hidden units. pipeline: stages of consecutive blocks. context: parts
    of each text. expert: experts of a mixture. A mesh that cannot divide the model is refused, with the nearest one that can.

    What each rank holds of the model is built with its real sizes, without values. Processes of this machine then take two steps of a small
    model on the mesh: it has the same components, heads, experts and stages. One process takes the same steps, which must be equal. What
    fails is named with its rank. A mesh of more than 64 processes is tried with fewer along data and shard.

    Times are computation at a fraction of the peak rate, plus collectives by latency and bandwidth, plus the wait for other stages.
    """
    check_picture_path(plot, [None if name in packaged_presets() else Path(name)])
    with gc_frozen_imports():
        from transom.cli.rehearse_table import rehearsal_lines
        from transom.inspection.plots.layout import layout_picture
        from transom.planning.layout import parse_layout
        from transom.training.rehearse import RehearsalOptions
        from transom.training.rehearse import rehearse as run_rehearsal

    config, training, layout = load_planned(name, overrides or (), vocab_size)
    layout = layout if mesh is None else parse_layout(mesh)
    training = batch.of(name, config, training, layout)
    precision = precision or ("bf16" if hardware.hardware in ("h100", "a100") else None)
    cluster = hardware.build(layout, training, precision)
    options = RehearsalOptions(cluster, batch.context, batch.batch_tokens, precision, not no_steps)
    found = run_rehearsal(name, config, training, layout, options, (lambda _: None) if as_json else print_note)
    if plot is not None:
        save_picture(layout_picture(found), plot)
    print_result(found.to_json(), as_json, rehearsal_lines(found))


def _this_machine(layout: "ParallelConfig", training: "TrainingConfig", precision: str | None, given: HardwareChoices) -> "Cluster":
    """Return the processors of this machine, whose rate and memory its processes share."""
    import torch

    from transom.planning.cluster import GLOO, GLOO_EFFICIENCY, Cluster
    from transom.planning.hardware import measure_peak
    from transom.planning.memory import device_memory
    from transom.planning.precision import choose_precision, choose_threads, num_threads_set_to
    from transom.training.plan_run import DEFAULT_UTILIZATION

    n, cpu = given.devices_per_node or layout.n_processes, torch.device("cpu")
    rate = given.device_flops
    if rate is None:
        dtype = choose_precision(precision or training.precision, cpu).dtype  # type: ignore[arg-type]
        with num_threads_set_to(choose_threads().count):
            rate = measure_peak().flops[dtype] / n
    source = "rate measured on this machine and shared by its processes; gloo over the loopback interface, measured 2026-11-28"
    memory = device_memory(cpu) // n
    return Cluster("CPU process", rate, memory, n, GLOO, GLOO, DEFAULT_UTILIZATION, source, GLOO_EFFICIENCY, overlaps=False)
