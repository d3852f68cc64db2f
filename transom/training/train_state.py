"""Training state that checkpoints store, so that a resumed run equals an uninterrupted one bit for bit."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor, nn

from transom.parallel.axes.sharding import local
from transom.parallel.processes.collectives import World
from transom.training.metrics_window import WINDOW_SUMS
from transom.training.time_limit import StepPlan

NonNegativeInt = Annotated[int, Field(ge=0)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
_LATER_FIELDS = {"best_weights", "n_averaged", "plan", "n_splits"}
"""Fields of ``TrainState`` that came with format 2 or later, which checkpoints may lack."""

_STRICT = ConfigDict(strict=True, extra="forbid")


class TrainState(BaseModel):
    """Progress of a run: the counters and metrics that a checkpoint stores as JSON.

    Attributes:
        step: number of optimizer steps so far, including skipped ones.
        position: position of the data loader: number of training samples read so far.
        seconds: training time in seconds, including the time before the run was resumed.
        n_target_tokens: number of target tokens so far, without padding.
        n_skipped: number of steps skipped because loss or gradient was not finite.
        consecutive_skips: number of skipped steps since the last step that was not skipped.
        best: validation metrics of the best weights, and the ``step`` of that validation; empty before the first validation.
        best_weights: the best weights, "raw" or "averaged"; None without weight averaging or before the first validation.
        validations_since_best: number of validations since the best one.
        last_validation_step: step of the last validation.
        window: sums of losses, token counts and seconds since the last line of metrics.jsonl.
        n_averaged: optimizer steps included in the weight average; 0 in checkpoints of earlier versions, whose average began with the
            initial weights.
        plan: the steps that a time limit leaves; None without a time limit, before the plan is made, and if all steps fit.
        n_splits: parts into which each micro-batch is split because memory ran out.
    """

    model_config = _STRICT

    step: NonNegativeInt = 0
    position: NonNegativeInt = 0
    seconds: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    n_target_tokens: NonNegativeInt = 0
    n_skipped: NonNegativeInt = 0
    consecutive_skips: NonNegativeInt = 0
    best: dict[str, int | float] = {}
    best_weights: Literal["raw", "averaged"] | None = None
    validations_since_best: NonNegativeInt = 0
    last_validation_step: NonNegativeInt = 0
    window: dict[str, int | FiniteFloat] = {}
    n_averaged: NonNegativeInt = 0
    plan: StepPlan | None = None
    n_splits: Annotated[int, Field(ge=1)] = 1

    @field_validator("best")
    @classmethod
    def _require_step_and_loss(cls, best: dict[str, int | float]) -> dict[str, int | float]:
        if best and not (isinstance(best.get("step"), int) and "loss" in best):
            raise ValueError(f"expected an integer step and a loss in the best validation, found {best}")
        return best

    @field_validator("window")
    @classmethod
    def _require_all_sums(cls, window: dict[str, int | float]) -> dict[str, int | float]:
        if window and not (window.keys() >= {*WINDOW_SUMS} and window["steps"] >= 1):
            raise ValueError(f"expected all of the sums {', '.join(WINDOW_SUMS)} or none, found {', '.join(window)}")
        return window

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if max(self.n_skipped, self.last_validation_step, self.best.get("step", 0)) > self.step:
            raise ValueError(f"expected n_skipped, last_validation_step and best.step of at most step = {self.step}, found a larger one")
        if self.n_averaged > self.step - self.n_skipped:
            raise ValueError(f"expected n_averaged of at most step - n_skipped = {self.step - self.n_skipped}, found {self.n_averaged}")
        if self.consecutive_skips > self.n_skipped:
            raise ValueError(f"expected consecutive_skips of at most n_skipped = {self.n_skipped}, found {self.consecutive_skips}")
        return self


class GradScalerState(BaseModel):
    """State of ``torch.amp.GradScaler``."""

    model_config = _STRICT

    scale: Annotated[FiniteFloat, Field(gt=0)]
    growth_factor: Annotated[FiniteFloat, Field(gt=1)]
    backoff_factor: Annotated[FiniteFloat, Field(gt=0, lt=1)]
    growth_interval: Annotated[int, Field(ge=1)]
    growth_tracker: NonNegativeInt = Field(alias="_growth_tracker")


class CheckpointState(BaseModel):
    """The file ``state.json`` of a checkpoint.

    Attributes:
        progress: counters and metrics of the run.
        scaler: state of the float16 loss scaler; None in other precisions, written as an empty object.
        snapshots: steps of the checkpoints whose weights are averaged.
        data: hash of the training and validation data; the first checkpoints of format 1 have none.
    """

    model_config = _STRICT

    progress: TrainState
    scaler: GradScalerState | None
    snapshots: list[NonNegativeInt]
    data: str | None = None

    @field_validator("progress", mode="before")
    @classmethod
    def _require_all_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and (missing := TrainState.model_fields.keys() - _LATER_FIELDS - value.keys()):
            raise ValueError(f"expected the field {min(missing)!r}, found none")
        return value

    @field_validator("scaler", mode="before")
    @classmethod
    def _empty_means_none(cls, value: Any) -> Any:
        return None if value == {} else value

    @model_validator(mode="after")
    def _check_snapshot_steps(self) -> Self:
        if self.snapshots != sorted(set(self.snapshots)) or max(self.snapshots, default=0) > self.progress.step:
            raise ValueError(f"expected ascending steps of at most {self.progress.step} in snapshots, found {self.snapshots}")
        return self


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return all tensors of the optimizer's state, named ``parameter.entry`` as in ``unembedding.weight.exp_avg``."""
    names = optimizer_parameter_names(model, optimizer)
    return {f"{names[number]}.{entry}": x for number, entries in optimizer.state_dict()["state"].items() for entry, x in entries.items()}


def optimizer_parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """List the names of an optimizer's parameters in the order in which its ``state_dict`` numbers them."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the result of ``optimizer_tensors``, whose names, shapes and dtypes ``load_resume_state`` has checked."""
    numbers = {name: number for number, name in enumerate(optimizer_parameter_names(model, optimizer))}
    state: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        parameter, entry = name.rsplit(".", 1)
        state.setdefault(numbers[parameter], {})[entry] = x
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def gather_rng_states(world: World) -> dict[str, Tensor]:
    """Return the random generator states of all processes by name; a collective operation that every process must call."""
    first, *others = world.all_gather(torch.get_rng_state())
    states = {"cpu": first, **{f"rank-{rank}.cpu": x for rank, x in enumerate(others, 1)}}
    if torch.cuda.is_available():
        first, *others = world.all_gather(torch.cuda.get_rng_state())
        states |= {"cuda.0": first, **{f"rank-{rank}.cuda": x for rank, x in enumerate(others, 1)}}
    return states


def restore_rng_states(states: Mapping[str, Tensor], rank: int = 0, seed: Sequence[int] = ()) -> None:
    """Set the random generators of this process to the states that ``gather_rng_states`` returned for its rank.

    Args:
        states: states of the processes that wrote the checkpoint.
        rank: rank of this process.
        seed: numbers from which the state is derived if fewer processes wrote the checkpoint: seed, rank and step.
    """
    if (state := states.get(f"rank-{rank}.cpu" if rank else "cpu")) is not None:
        torch.set_rng_state(state)
    else:
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))
    if torch.cuda.is_available() and (x := states.get(f"rank-{rank}.cuda" if rank else "cuda.0")) is not None:
        torch.cuda.set_rng_state(x)


def trainable_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that training changes, by name: parameters that require gradients (tied ones once), and persistent buffers."""
    saved = model.state_dict().keys()
    trainable_parameters = {name: x for name, x in model.named_parameters() if x.requires_grad}
    return {**trainable_parameters, **{name: x for name, x in model.named_buffers() if name in saved}}


@torch.no_grad()
def load_trainable(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy ``tensors`` into the model's trainable tensors, which must have the same names, shapes and shards."""
    trainable = trainable_tensors(model)
    assert trainable.keys() == tensors.keys(), f"expected the trainable tensors, found a difference at {trainable.keys() ^ tensors.keys()}"
    for name, x in trainable.items():
        local(x).copy_(local(tensors[name]))
