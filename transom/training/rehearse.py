"""Rehearse a training on a mesh of processes: ``transom rehearse``."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from transom.config.architecture import ModelConfig
from transom.config.parallel import ParallelConfig
from transom.config.training import TrainingConfig
from transom.errors import ConfigError
from transom.planning.cluster import Cluster, rank_group
from transom.planning.communication import Collective, MicroBatches, NumberBytes, list_collectives
from transom.planning.layout import batch_size, check_layout, format_layout, layouts_by_distance
from transom.planning.memory import free_memory
from transom.planning.parameters import count_parameters
from transom.planning.plan import flops_per_token
from transom.planning.precision import choose_precision
from transom.planning.rank_memory import RankBytes, count_rank_bytes, rank_activations
from transom.planning.sharding_advice import sharding_advice
from transom.planning.shrink import shrink, shrink_layout
from transom.planning.stages import Stage, StageParameters, count_stage_parameters, divide_stages
from transom.planning.step_time import StageSeconds, StepSeconds, predict_stage_seconds, stage_flops
from transom.planning.training_bytes import FLOAT32, can_recompute
from transom.training.activation_bytes import measure_activations
from transom.training.built_parts import BuiltParts, build_parts
from transom.training.plan_run import PlanOptions, batch_shape
from transom.training.trial_steps import N_STEPS, StepTrial, try_steps

MAX_LARGER = 64
"""Largest factor of processes that is tried to find a layout that fits into memory."""

MAX_PROCESSES = 64
"""Most processes that take steps of a small model."""

PROCESS_BYTES = 64 << 20
"""Memory that a process of the trial needs for itself, beside what it shares with the others.

Measured 2026-11-28 with PyTorch 2.13 on Linux, after two steps of six shrunken models in 8 to 16 processes: 32 to 46 MiB (proc(5), smaps).
"""


@dataclass(frozen=True)
class RehearsalOptions:
    """Choices of the user of a rehearsal; None for a default.

    Attributes:
        cluster: devices and links.
        context: tokens per sequence. Default: as in ``PlanOptions``.
        batch: tokens, or images, per step. Default: that of the recipe, at least a row per part of the batch.
        precision: bf16 or fp32. Default: that of the recipe on this machine.
        steps: whether steps of a small model are taken.
    """

    cluster: Cluster
    context: int | None = None
    batch: int | None = None
    precision: Literal["bf16", "fp32"] | None = None
    steps: bool = True


@dataclass(frozen=True)
class RankCost:
    """Needs of one rank of a stage; all ranks of a stage are equal.

    Attributes:
        stage: the stage.
        parameters: parameters of the rank, before sharding.
        memory: bytes of the rank.
        collectives: collectives of a step.
        seconds: times of a micro-batch.
    """

    stage: Stage
    parameters: StageParameters
    memory: RankBytes
    collectives: tuple[Collective, ...]
    seconds: StageSeconds


@dataclass(frozen=True)
class Rehearsal:
    """The needs of a training in a layout, computed before it starts.

    Attributes:
        name: preset or recipe.
        family: kind of model.
        layout: the layout.
        cluster: devices and links.
        precision: dtype of the matrix products.
        micro: micro-batches of a step.
        unit: what a batch counts: tokens or images.
        batch: tokens or images per step.
        flops: FLOPs of a step on all devices.
        ranks: one rank of each stage.
        seconds: time of a step.
        fitting: nearest layout that fits into the memory of a device; None if this one fits, or if none was found.
        built: parts of the ranks that were built with their real sizes.
        trial: steps of a small model; None if none were taken.
        notes: sentences on what to change, and on what is predicted otherwise than it runs.
    """

    name: str
    family: str
    layout: ParallelConfig
    cluster: Cluster
    precision: str
    micro: MicroBatches
    unit: str
    batch: int
    flops: float
    ranks: tuple[RankCost, ...]
    seconds: StepSeconds
    fitting: ParallelConfig | None
    built: BuiltParts
    trial: StepTrial | None
    notes: tuple[str, ...]

    @property
    def largest(self) -> RankCost:
        """The rank that needs the most memory."""
        return max(self.ranks, key=lambda rank: rank.memory.total)

    @property
    def fits(self) -> bool:
        """Whether every rank fits into the memory of its device."""
        return self.largest.memory.total <= self.cluster.device_bytes

    @property
    def utilization(self) -> float:
        """Model FLOPs utilization: FLOPs of a step / (seconds x peak rate of all devices) (Chowdhery et al. 2022, section 4.1)."""
        return self.flops / (self.seconds.total * self.layout.n_processes * self.cluster.flops)

    def to_json(self) -> dict[str, Any]:
        """Return the rehearsal as JSON-serializable data; bytes, FLOPs and seconds are numbers."""
        n, seconds = self.micro.n, self.seconds
        ranks = [
            {
                "stage": rank.stage.index,
                "blocks": rank.stage.blocks,
                "parameters": {"total": rank.parameters.total, "sharded": rank.parameters.sharded},
                "memory": asdict(rank.memory) | {"total": rank.memory.total, "peak": rank.memory.peak},
                "collectives": [
                    asdict(each) | {"per_step_count": each.per_step_count(n), "sent_bytes": each.sent(self.layout, n)}
                    for each in rank.collectives
                ],
                "seconds": asdict(rank.seconds) | {"micro_batch": rank.seconds.micro_batch},
            }
            for rank in self.ranks
        ]
        return {
            "name": self.name,
            "family": self.family,
            "mesh": dict(zip(self.layout.AXES, self.layout.sizes, strict=True)),
            "processes": self.layout.n_processes,
            "cluster": asdict(self.cluster),
            "precision": self.precision,
            "micro_batches": self.micro._asdict(),
            "batch": self.batch,
            "unit": self.unit,
            "flops": self.flops,
            "ranks": ranks,
            "bubble": seconds.bubble,
            "seconds_per_step": seconds.total,
            f"{self.unit}_per_second": self.batch / seconds.total,
            "model_flops_utilization": self.utilization,
            "fits": self.fits,
            "fitting_mesh": None if self.fitting is None else format_layout(self.fitting),
            "built": asdict(self.built),
            "steps": None if self.trial is None else self.trial.to_json(),
            "notes": list(self.notes),
        }


def rehearse(
    name: str,
    config: ModelConfig,
    training: TrainingConfig,
    layout: ParallelConfig,
    options: RehearsalOptions,
    notify: Callable[[str], None] = lambda line: None,
) -> Rehearsal:
    """Rehearse a training; no weight and no activation of the model itself is allocated.

    The part of each rank is built with its real sizes, without values, and processes of this machine take two steps of a small model.

    Args:
        name: name of the recipe or preset.
        config: model configuration with known vocabulary sizes.
        training: settings of the training.
        layout: the layout.
        options: what the user chooses.
        notify: called with lines that say what is done.

    Raises:
        ConfigError: the model cannot be trained in the layout, or a sequence is longer than the model can read; or a rank fails, which the
            message names.
    """
    check_layout(config, layout, training)
    precision = choose_precision(options.precision or training.precision, torch.device("cpu"))
    costs = _Costs(config, training, options, precision.dtype)
    ranks, micro, batch = costs.of(layout)
    flops = costs.flops
    seconds = StepSeconds(tuple(rank.seconds for rank in ranks), micro.n)
    fits = all(rank.memory.total <= options.cluster.device_bytes for rank in ranks)
    built = build_parts(config, layout, notify)
    trial, left_out = _try_steps(config, training, layout, notify) if options.steps else (None, [])
    return Rehearsal(
        name=name,
        family=config.FAMILY,
        layout=layout,
        cluster=options.cluster,
        precision=precision.name,
        micro=micro,
        unit="images" if flops.unit == "image" else "tokens",
        batch=batch,
        flops=batch * flops.training,
        ranks=tuple(ranks),
        seconds=seconds,
        fitting=None if fits else costs.nearest_that_fits(layout),
        built=built,
        trial=trial,
        notes=(*costs.notes(layout, ranks, seconds), *left_out),
    )


def _try_steps(
    config: ModelConfig, training: TrainingConfig, layout: ParallelConfig, notify: Callable[[str], None]
) -> tuple[StepTrial | None, list[str]]:
    """Take steps of a small model in the layout, or in one of fewer processes; return them, and sentences on what was not tried."""
    if layout.n_processes == 1:
        return None, []
    free = free_memory()
    most = min(MAX_PROCESSES, free // PROCESS_BYTES)
    smaller = shrink_layout(layout, most)
    limit = f"at most {most} processes are started"
    if most < MAX_PROCESSES:
        limit += f" with {free / 2**30:.1f} GiB of free memory"
    if smaller.n_processes > most:
        return None, [f"no steps were taken, since {format_layout(smaller)} still has {smaller.n_processes:,} processes: {limit}"]
    small = shrink(config, smaller)
    notify(f"taking {N_STEPS} steps of a model of {count_parameters(small).total:,} parameters in {smaller.n_processes} processes")
    notes = [] if smaller == layout else [f"the steps were taken on {format_layout(smaller)}: {limit}"]
    return try_steps(small, training, smaller), notes


class _Costs:
    """Costs of several layouts of one training."""

    def __init__(self, config: ModelConfig, training: TrainingConfig, options: RehearsalOptions, dtype: torch.dtype) -> None:
        self._config, self._training, self._options, self._dtype = config, training, options, dtype
        one_row = PlanOptions(context=options.context, batch=max(config.n_positions if hasattr(config, "n_positions") else 1, 2))
        self._shape, _ = batch_shape(config, training.model_copy(update={"grad_accum_steps": 1}), one_row)
        self.flops = flops_per_token(config, self._shape.source, self._shape.target, self._shape.labeled)
        self._length = 1 if self.flops.unit == "image" else self._shape.target or self._shape.source
        self._saved = measure_activations(config, self._shape, dtype, training.recompute)

    def of(self, layout: ParallelConfig) -> tuple[list[RankCost], MicroBatches, int]:
        """Return one rank of each stage, the micro-batches, and the tokens or images per step."""
        config, cluster, dtype = self._config, self._options.cluster, self._dtype
        micro, batch = self._batch(layout)
        forward = {part: micro.rows * self._length * flops for part, flops in self.flops.parts.items()}
        size, ranks, recompute = NumberBytes(activation=dtype.itemsize), list[RankCost](), self._training.recompute
        for stage in divide_stages(config, layout.pipeline):
            parameters = count_stage_parameters(config, layout, stage)
            collectives = tuple(list_collectives(config, layout, stage, parameters, micro, size, recompute))
            kept = 0
            if self._saved is not None:
                kept = rank_activations(config, layout, stage, micro, self._saved, dtype.itemsize)
            memory = count_rank_bytes(config, self._training, layout, stage, parameters, kept)
            seconds = predict_stage_seconds(stage_flops(config, forward, layout, stage), collectives, layout, cluster, recompute)
            ranks.append(RankCost(stage, parameters, memory, collectives, seconds))
        return ranks, micro, batch

    def nearest_that_fits(self, layout: ParallelConfig) -> ParallelConfig | None:
        """Return the nearest layout whose ranks fit into memory, of as many processes or of a multiple by a power of two."""
        if 2 * FLOAT32 * count_parameters(self._config).total > self._options.cluster.device_bytes:
            return None  # rank 0 of every layout has the whole model, and another one that validates
        factor = 1
        while factor <= MAX_LARGER:
            for candidate in layouts_by_distance(self._config, layout, self._training, factor * layout.n_processes):
                if self._options.batch and self._options.batch < candidate.n_batch_parts * self._training.grad_accum_steps * self._length:
                    continue
                if all(rank.memory.total <= self._options.cluster.device_bytes for rank in self.of(candidate)[0]):
                    return candidate
            factor *= 2
        return None

    def notes(self, layout: ParallelConfig, ranks: list[RankCost], seconds: StepSeconds) -> list[str]:
        """Return sentences on what to change, and on what is predicted otherwise than it runs."""
        cluster, notes = self._options.cluster, list[str]()
        if layout.shard > 1:
            notes += self._sharding_notes(layout, ranks)
        if layout.tensor > 1 and rank_group(layout, "tensor", cluster.devices_per_node).per_node < layout.tensor:
            notes.append(
                f"tensor = {layout.tensor} leaves a machine of {cluster.devices_per_node} devices: its collectives wait for the slower"
                " links; keep tensor parallelism within a machine (Narayanan et al. 2021, section 3.2)"
            )
        if max(rank.memory.total for rank in ranks) > cluster.device_bytes and can_recompute(self._config, self._training):
            fields = self._training.model_copy(update={"activation_checkpointing": "blocks"})
            largest = max(rank.memory.total for rank in _Costs(self._config, fields, self._options, self._dtype).of(layout)[0])
            notes.append(f"with training.activation_checkpointing = 'blocks' a rank needs at most {largest / 2**30:.3g} GiB")
        if seconds.bubble > 0.2:
            notes.append(f"the bubble is {seconds.bubble:.0%} of a step: raise training.grad_accum_steps or lower pipeline")
        if self._saved is None:
            notes.append("activations are not predicted: for recurrent networks, and by a PyTorch without tensors that have no values")
        else:
            notes.append("activations are those of the kernels of a CPU, which keep the attention weights of rows of up to 1,024 tokens")
        return notes

    def _sharding_notes(self, layout: ParallelConfig, ranks: list[RankCost]) -> list[str]:
        """Say when not to shard: the model fits several times, and sharding takes longer than the computation beside it."""
        whole = layout.model_copy(update={"data": layout.data * layout.shard, "shard": 1})
        if any(2 * rank.memory.total > self._options.cluster.device_bytes for rank in self.of(whole)[0]):
            return []
        slowest = max(ranks, key=lambda rank: rank.seconds.sharding - rank.seconds.compute)
        return sharding_advice(whole, slowest.seconds.compute, slowest.stage.n_blocks, slowest.seconds.sharding)

    def _batch(self, layout: ParallelConfig) -> tuple[MicroBatches, int]:
        """Return the micro-batches of a layout, and the tokens or images per step; each micro-batch has a row at least.

        Raises:
            ConfigError: the batch that the user gives has fewer rows.
        """
        shape, training = self._shape, self._training
        length = self._length
        n_micro_batches = max(training.grad_accum_steps, layout.pipeline)
        n_passes = layout.n_batch_parts * n_micro_batches
        batch = self._options.batch or max(batch_size(training), n_passes * length)
        if batch < n_passes * length:
            raise ConfigError(
                f"--batch-tokens: expected a row of {length:,} tokens for each of {n_passes:,} micro-batches, found"
                f" {batch:,} tokens; raise it"
            )
        rows = batch // (length * n_passes)
        copies = 2 if getattr(training, "r_drop", 0) else 1
        return MicroBatches(n_micro_batches, copies * rows, shape.source, shape.target), rows * n_passes * length
