"""Plan the training of a recipe or of a published architecture: ``transom plan``."""

import math
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch

from transom.config.architecture import EncoderDecoderConfig, ModelConfig, TextModelConfig, TransformerConfig
from transom.config.moe import MoeConfig
from transom.config.parallel import ParallelConfig
from transom.config.patterns import block_patterns
from transom.config.training import AdamWConfig, NoAverageConfig, TextTrainingConfig, TrainingConfig
from transom.config.vision import ImageClassifierConfig, VisionTransformerConfig
from transom.errors import ConfigError
from transom.models.build import build_model
from transom.planning.cache_size import cache_size
from transom.planning.memory import device_memory
from transom.planning.parameters import count_parameters
from transom.planning.plan import Fit, Plan, TimePlan, compute_budget, flops_per_token
from transom.planning.precision import choose_precision
from transom.planning.sharding_advice import sharding_advice
from transom.planning.training_bytes import (
    LIBRARY_BYTES,
    WORKSPACE_FRACTION,
    Sharding,
    StepMemory,
    TrainingBytes,
    can_recompute,
    count_training_bytes,
)
from transom.training.activation_checkpointing import checkpoint_activations
from transom.training.optimizer import build_optimizer
from transom.training.simulated_step import BatchShape, build_batch, run_step, simulate_step

PAIR_LENGTH = 64
"""Tokens per side of a pair of texts, unless a length is given."""

DEFAULT_UTILIZATION = 0.4
"""Fraction of the peak rate that training is expected to reach, unless a run or the user says otherwise."""

MAX_DEVICES = 4096
"""Largest number of devices that is tried."""


@dataclass(frozen=True)
class PlanOptions:
    """Choices of the user of a plan; None for a default.

    Attributes:
        context: tokens per sequence. Default: ``max_seq_len``, or 64 per side of a pair.
        batch: tokens, or images, per step on all devices. Default: that of the recipe, at least a row per device.
        precision: bf16 or fp32. Default: that of the recipe on this machine.
        devices: number of devices.
        batch_parts: processes per device among which the recipe divides each batch.
        device_bytes: memory of one device. Default: the memory of this machine.
        sharding: what the devices divide among themselves.
        tokens: tokens, or images, of the training. Default: steps of the recipe times its batch.
        utilization: fraction of the peak rate that training reaches.
        flops_per_second: peak rate of one device in FLOP/s; None for no times.
        rate_source: where the rate comes from.
        on_cpu: whether the devices are processors, on which a process holds more than its tensors.
        unsharded: the layout of the recipe without its shards; None if it has none.
    """

    context: int | None = None
    batch: int | None = None
    precision: Literal["bf16", "fp32"] | None = None
    devices: int = 1
    batch_parts: int = 1
    device_bytes: int | None = None
    sharding: Sharding = "none"
    tokens: int | None = None
    utilization: float | None = None
    flops_per_second: float | None = None
    rate_source: str = "given"
    on_cpu: bool = True
    unsharded: ParallelConfig | None = None


NO_OPTIONS = PlanOptions()
"""All defaults."""


def preset_training() -> TextTrainingConfig:
    """Return the settings of a published architecture's plan, which comes without a recipe: AdamW, and transom's batch."""
    return TextTrainingConfig(optimizer=AdamWConfig(), average=NoAverageConfig())


def plan_run(name: str, config: ModelConfig, training: TrainingConfig, options: PlanOptions = NO_OPTIONS) -> Plan:
    """Plan the training of a model; no weight and no activation is allocated.

    Args:
        name: name of the recipe or preset.
        config: model configuration with known vocabulary sizes.
        training: settings of the training.
        options: what the user chooses.

    Raises:
        ConfigError: a sequence is longer than the model can read, or a batch has no row for each device.
    """
    precision = choose_precision(options.precision or training.precision, torch.device("cpu"))
    shape, batch = batch_shape(config, training, options)
    device_bytes = options.device_bytes or device_memory(torch.device("cpu"))
    steps = _Steps(config, training, precision.dtype, options.devices, options.sharding, options.on_cpu)
    step = steps.of(shape)
    memory = steps.bytes(step)
    flops = flops_per_token(config, shape.source, shape.target, shape.labeled)
    per_step = batch * flops.executed(training.recompute)
    n_steps = training.max_steps if options.tokens is None else math.ceil(options.tokens / batch)
    timing = None
    if options.flops_per_second is not None:
        utilization = options.utilization or DEFAULT_UTILIZATION
        seconds = per_step / (options.devices * options.flops_per_second * utilization)
        timing = TimePlan(per_step, options.flops_per_second, options.rate_source, utilization, seconds, n_steps, options.devices)
    count = count_parameters(config)
    notes = _notes(config, training, step, options.on_cpu)
    if step is not None and memory.total > device_bytes and can_recompute(config, training):
        again = replace(steps, training=training.model_copy(update={"activation_checkpointing": "blocks"}))
        needed = again.bytes(again.of(shape)).total
        notes += (f"it does not fit: with training.activation_checkpointing = 'blocks' it needs {needed / 2**30:.3g} GiB",)
    if timing is not None and 2 * options.batch_parts * steps.bytes(step, 1, "none").total <= device_bytes:
        notes += _sharding_notes(
            config, options, timing, shape.rows * (1 if flops.unit == "image" else shape.target or shape.source) * flops.training
        )
    return Plan(
        name=name,
        family=config.FAMILY,
        parameters=count,
        flops=flops,
        precision=precision.name,
        rows=shape.rows,
        source=shape.source,
        target=shape.target,
        batch=batch,
        sharding=options.sharding,
        memory=memory,
        step=step,
        cache=cache_size(config, precision.dtype.itemsize),
        budget=compute_budget(count.active, n_steps * batch, flops.training) if config.STACK == "a decoder" else None,
        time=timing,
        fit=Fit(device_bytes, memory.total <= device_bytes, steps.largest_rows(shape, device_bytes), steps.fewest(shape, device_bytes)),
        notes=notes,
    )


def _sharding_notes(config: ModelConfig, options: PlanOptions, timing: TimePlan, flops: float) -> tuple[str, ...]:
    """Say when not to shard a model that fits a device twice over, where a micro-batch has ``flops``."""
    whole = ParallelConfig(data=options.devices) if options.sharding == "full" and options.devices > 1 else options.unsharded
    seconds = flops * options.batch_parts / (timing.flops_per_second * timing.utilization)
    return () if whole is None else tuple(sharding_advice(whole, seconds, sum(config.stacks)))


def predict_bytes(config: ModelConfig, training: TrainingConfig, shape: BatchShape, dtype: torch.dtype) -> TrainingBytes:
    """Predict the memory of a training on this machine's processors, in a single process, above that after importing PyTorch."""
    steps = _Steps(config, training, dtype, 1, "none", True)
    return steps.bytes(steps.of(shape))


def measure_seconds_per_flop(config: ModelConfig, training: TrainingConfig, shape: BatchShape, precision: str, seconds: float) -> float:
    """Return the seconds that a training step takes per FLOP, measured on real steps with random weights; allocates the whole model.

    Args:
        config: model configuration with known vocabulary sizes.
        training: settings of the optimizer.
        shape: shape of the batch of one forward pass.
        precision: dtype of the matrix products: fp32 or bf16.
        seconds: time to measure, at least; the median of at least three steps is returned.
    """
    dtype = choose_precision(precision, torch.device("cpu")).dtype  # type: ignore[arg-type]
    model, times = build_model(config).train(), list[float]()
    if training.recompute:
        checkpoint_activations(model)
    optimizer, batch = build_optimizer(model, training.optimizer, dtype), build_batch(config, shape)
    start = time.perf_counter()
    while len(times) < 4 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        run_step(model, batch, dtype, shape)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begin)
    flops = flops_per_token(config, shape.source, shape.target, shape.labeled)
    length = 1 if flops.unit == "image" else shape.target or shape.source
    return statistics.median(times[1:]) / (shape.n_micro_batches * shape.rows * length * flops.executed(training.recompute))


def batch_shape(config: ModelConfig, training: TrainingConfig, options: PlanOptions) -> tuple[BatchShape, int]:
    """Return the shape of one forward pass on one device, and the tokens or images per step on all devices."""
    t: Any = training
    if isinstance(config, ImageClassifierConfig):
        batch, length = options.batch or getattr(t, "batch_size", 0) or 64, 1
        source, target = (config.n_positions if isinstance(config, VisionTransformerConfig) else 0), 0
    else:
        assert isinstance(config, TextModelConfig)
        limit = config.max_seq_len
        is_pair = isinstance(config, EncoderDecoderConfig) or config.kind == "text-embedder"
        length = options.context or (min(limit, PAIR_LENGTH) if is_pair else limit)
        if length > limit and isinstance(config, TransformerConfig) and config.position_table:
            raise ConfigError(f"--context: expected at most model.max_seq_len = {limit:,} tokens, found {length:,}; set model.max_seq_len")
        batch = options.batch or max(t.batch_tokens, options.devices * options.batch_parts * length)
        source, target = (0 if config.STACK == "a decoder" else length), (length if is_pair or config.STACK == "a decoder" else 0)
    micro, n_rows = training.grad_accum_steps, max(1, batch // length)
    devices = options.devices * options.batch_parts
    if n_rows < devices:
        raise ConfigError(
            f"--batch-tokens: expected a row of {length:,} tokens for each of {devices} devices, found {batch:,} tokens; raise it"
        )
    copies = 2 if getattr(t, "r_drop", 0) else 1
    labeled = getattr(t, "mlm_probability", 1.0)
    return BatchShape(copies * max(1, n_rows // (devices * micro)), source, target, labeled, micro), n_rows * length


@dataclass(frozen=True)
class _Steps:
    """Memory of steps of several shapes, all else equal."""

    config: ModelConfig
    training: TrainingConfig
    dtype: torch.dtype
    devices: int
    sharding: Sharding
    on_cpu: bool

    def of(self, shape: BatchShape) -> StepMemory | None:
        return simulate_step(self.config, shape, self.dtype, self.training.recompute)

    def bytes(self, step: StepMemory | None, devices: int | None = None, sharding: Sharding | None = None) -> TrainingBytes:
        """Return the bytes of training with a step of this memory."""
        sharding = sharding or self.sharding
        activations = 0 if step is None else step.activations(sharding, self.training.recompute)
        found = count_training_bytes(self.config, self.training, activations, devices or self.devices, sharding)
        if not self.on_cpu:
            return found
        return replace(found, workspace=round(WORKSPACE_FRACTION * found.tensors), libraries=LIBRARY_BYTES)

    def largest_rows(self, shape: BatchShape, device_bytes: int) -> int:
        """Return the most rows that fit, from the bytes of two numbers of rows, between which memory grows linearly."""
        few, more = self.of(shape), self.of(replace(shape, rows=2 * shape.rows))
        if few is None or more is None:
            return 0
        base = self.bytes(few).total
        per_row = max(1.0, (self.bytes(more).total - base) / shape.rows)
        rows = shape.rows + math.floor((device_bytes - base) / per_row)
        return max(rows, 0) if rows >= 1 else int(self.bytes(self.of(replace(shape, rows=1))).total <= device_bytes)

    def fewest(self, shape: BatchShape, device_bytes: int) -> dict[Sharding, int | None]:
        """Return the number of devices that are needed for one row each, by sharding, as a power of two."""
        one = self.of(replace(shape, rows=1))
        counts = [2**i for i in range(int(math.log2(MAX_DEVICES)) + 1)]
        return {
            sharding: next((n for n in counts if self.bytes(one, n, sharding).total <= device_bytes), None)
            for sharding in get_args(Sharding)
        }


def _notes(config: ModelConfig, training: TrainingConfig, step: StepMemory | None, on_cpu: bool) -> tuple[str, ...]:
    """Return sentences on what is predicted otherwise than it runs."""
    notes = [
        "memory is what training needs above importing PyTorch, without its data; where twice as much fits, it keeps freed memory, to be"
        " faster, and holds up to twice as much"
        if on_cpu
        else "memory is that of tensors, without PyTorch's own and what its allocator keeps",
        "activations are those of the kernels of a CPU, which keep the attention weights of rows of up to 1,024 tokens",
    ]
    if step is None:
        notes.append("activations are not predicted: for recurrent networks, and by a PyTorch without tensors that have no values")
    if isinstance(config, TransformerConfig):
        if isinstance(config.feed_forward, MoeConfig):
            notes.append("activations of experts are those of one network of top_k times the width, as if no expert were chosen more often")
        if any(pattern.kind != "full" for pattern in block_patterns(config.attention.pattern)):
            notes.append("activations are those of full attention: sparse patterns need less on long rows")
    if training.recompute:
        notes.append("blocks compute their activations again in the backward pass: a step has one more forward pass of the blocks")
    if training.adapter is not None:
        notes.append("activations are those of training all weights; an adapter needs about as many")
    if getattr(training, "early_exit_loss", None) is not None and training.early_exit_loss.kind != "none":  # type: ignore[attr-defined]
        notes.append("the losses after earlier blocks are not counted")
    return tuple(notes)
