"""Find the largest micro-batch that fits into memory, and the gradient accumulation that keeps the batch: ``transom find-batch``."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from transom.config.architecture import ModelConfig
from transom.config.training import TrainingConfig
from transom.errors import ConfigError
from transom.planning.memory import data_memory, device_memory
from transom.planning.precision import choose_precision
from transom.planning.training_bytes import can_recompute
from transom.training.memory_trial import Trial, try_steps
from transom.training.plan_run import NO_OPTIONS, PlanOptions, batch_shape, plan_run
from transom.training.simulated_step import BatchShape

MAX_TRIALS = 6
"""Largest number of trials."""

_FEWER = 7 / 8
"""Most rows of a trial, and of a plan, as a fraction of those of the last one, which did not fit."""

TryRows = Callable[[BatchShape], Trial]
"""Takes steps on batches of a shape under the limit."""


@dataclass(frozen=True)
class FoundBatch:
    """The largest micro-batch that fits.

    Attributes:
        limit: bytes that the process may have.
        unit: what a row is: "row" or "image".
        length: tokens per row; 1 for images.
        rows: rows of the micro-batch of one process.
        grad_accum_steps: micro-batches per step and process, with which the batch stays that of the recipe.
        batch: rows per step, of all processes.
        field: the recipe's field of the batch, such as "training.batch_tokens".
        size: value of this field.
        predicted: predicted bytes of the process.
        trials: outcome by rows, in the order in which they were tried; empty if none was.
    """

    limit: int
    unit: str
    length: int
    rows: int
    grad_accum_steps: int
    batch: int
    field: str
    size: int
    predicted: int
    trials: tuple[tuple[int, Trial], ...]

    @property
    def settings(self) -> tuple[str, str]:
        """The two arguments of ``--set``."""
        return f"{self.field}={self.size}", f"training.grad_accum_steps={self.grad_accum_steps}"

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-serializable data."""
        trials = [{"rows": rows} | asdict(trial) for rows, trial in self.trials]
        return asdict(self) | {"trials": trials, "set": list(self.settings)}


def find_batch(
    config: ModelConfig,
    training: TrainingConfig,
    memory: int | None = None,
    options: PlanOptions = NO_OPTIONS,
    try_rows: TryRows | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> FoundBatch:
    """Predict the largest micro-batch of a training that fits, and confirm it by a few steps with random weights in a child process.

    Args:
        config: model configuration with known vocabulary sizes.
        training: settings of the training, whose batch is kept.
        memory: bytes that the training may have, on this machine's processors. Default: the memory that the system lets this process have.
        options: tokens per row, batch and precision, if they are not those of the recipe.
        try_rows: takes the steps of a trial; by default ``memory_trial.try_steps``.
        notify: called with a short description of each trial.

    Raises:
        ConfigError: not even one row fits, or the activations of the model cannot be predicted.
    """
    limit, base = memory or device_memory(torch.device("cpu")), data_memory()
    precision = choose_precision(options.precision or training.precision, torch.device("cpu"))
    share = limit // options.batch_parts
    whole, _ = batch_shape(config, training.model_copy(update={"grad_accum_steps": 1}), options)
    copies = 2 if getattr(training, "r_drop", 0) else 1
    rows, unit = whole.rows // copies, "image" if whole.target == 0 and hasattr(training, "batch_size") else "row"
    length = 1 if unit == "image" else whole.target or whole.source
    less = ", set training.activation_checkpointing = 'blocks'" if can_recompute(config, training) else ""

    def plan_rows(micro: int, n_micro_batches: int) -> tuple[int, int]:
        """Return the predicted bytes of the process, and the largest number of rows that are predicted to fit, which is exact nearby."""
        fields = training.model_copy(update={"grad_accum_steps": n_micro_batches})
        size = micro * n_micro_batches * options.batch_parts * length
        plan = plan_run("", config, fields, replace(options, batch=size, device_bytes=max(share - base, 1)))
        if plan.step is None:
            raise ConfigError(
                "model: expected a model whose activations can be predicted, found a recurrent one, or a PyTorch without tensors that have"
                " no values; set training.grad_accum_steps by hand"
            )
        return base + plan.memory.total, plan.fit.largest_rows // copies

    def accumulation(most: int) -> tuple[int, int]:
        """Return the fewest micro-batches that have at most ``most`` rows each, and the predicted bytes."""
        while True:
            steps = _fewest(rows, most, limit, length, unit, less)
            size = plan_rows(-(-rows // steps), min(steps, 2))[0]
            if size <= share:
                return steps, size
            most = min(-(-rows // steps) - 1, int(most * _FEWER))

    steps, trials = 1, list[tuple[int, Trial]]()
    predicted, most = plan_rows(rows, 1)
    if most < rows:
        most = plan_rows(max(most, 1), 2)[1]  # a second micro-batch meets the gradients of the first
        steps, predicted = accumulation(min(most, -(-rows // 2)))
    attempt = try_rows or (lambda shape: try_steps(config, training, shape, precision.name, share))
    while True:
        micro = -(-rows // steps)
        notify(f"trying {micro:,} {unit}{'' if micro == 1 else 's'} per forward pass, {steps:,} per step")
        trial = attempt(replace(whole, rows=copies * micro, n_micro_batches=min(steps, 2)))
        trials.append((micro, trial))
        if trial.fits:
            break
        if len(trials) == MAX_TRIALS:
            raise ConfigError(f"--memory: expected a micro-batch that fits, found none in {MAX_TRIALS} trials; raise it")
        steps, predicted = accumulation(int(micro * _FEWER))
    field = "training.batch_size" if hasattr(training, "batch_size") else "training.batch_tokens"
    batch = rows * options.batch_parts
    return FoundBatch(limit, unit, length, micro, steps, batch, field, batch * length, predicted, tuple(trials))


def _fewest(rows: int, most: int, limit: int, length: int, unit: str, less: str) -> int:
    """Return the fewest micro-batches that have at most ``most`` rows each.

    Raises:
        ConfigError: not even one row fits.
    """
    if most < 1:
        what = "one image" if unit == "image" else f"one row of {length:,} tokens"
        raise ConfigError(
            f"--memory: expected memory for {what}, found {limit / 2**30:.3g} GiB, which are too little; raise it{less}, or lower"
            " --context, the model's widths or layers, or tokenizer.vocab_size"
        )
    return -(-rows // most)
