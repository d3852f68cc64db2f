"""Read a checkpoint, and check that all of it fits the run before any tensor of the run is changed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from transom.checkpoints.checkpoint import Checkpoints
from transom.checkpoints.tensors import TensorSpec, require_finite
from transom.config.training import EmaConfig
from transom.errors import CheckpointError, DataError
from transom.files.safe_read import describe_validation_error
from transom.training.metrics_window import WINDOW_SUMS
from transom.training.objectives.objective import N_UPDATES
from transom.training.optimizer import state_specs
from transom.training.task_protocol import Task
from transom.training.train_state import CheckpointState, optimizer_parameter_names, trainable_tensors
from transom.training.train_step import TrainStep


class ExpectedTensors(NamedTuple):
    """Tensors that a checkpoint of a run must have.

    Attributes:
        trainable: parameters and buffers that training changes, by name.
        optimizer: state of each parameter by its name, in the order in which the optimizer numbers the parameters.
    """

    trainable: dict[str, TensorSpec]
    optimizer: dict[str, dict[str, TensorSpec]]

    @classmethod
    def of(cls, model: nn.Module, optimizer: torch.optim.Optimizer) -> "ExpectedTensors":
        """List the tensors of a whole model and its optimizer."""
        parameters = dict(model.named_parameters())
        owned = {name: state_specs(optimizer, parameters[name]) for name in optimizer_parameter_names(model, optimizer)}
        return cls({name: TensorSpec.of(x) for name, x in trainable_tensors(model).items()}, owned)


class ResumeState(NamedTuple):
    """Content of a checkpoint that fits the run; the run's model and optimizer are not changed yet.

    Attributes:
        state: the validated ``state.json``.
        model: trainable parameters and persistent buffers, by name.
        optimizer: state tensors of the optimizer, by ``parameter.entry``.
        generators: states of the random generators of all processes.
        ema: moving average of the weights; empty if the run keeps none.
        snapshots: trainable tensors of the earlier checkpoints that weight averaging needs, by step.
    """

    state: CheckpointState
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    generators: dict[str, Tensor]
    ema: dict[str, Tensor]
    snapshots: dict[int, dict[str, Tensor]]


def load_resume_state(
    checkpoints: Checkpoints, step: int, train_step: TrainStep, task: Task, expected_tensors: ExpectedTensors
) -> ResumeState:
    """Read the checkpoint of ``step``, and check each tensor's name, shape and dtype and each counter against the run.

    Args:
        checkpoints: checkpoints of the run.
        step: step of the checkpoint.
        train_step: the run's step, whose settings the checkpoint must fit.
        task: the task; the run must have been started with the data of this task.
        expected_tensors: the tensors of the whole model and its optimizer.

    Raises:
        CheckpointError: the checkpoint does not fit the run or is not of this step.
        DataError: the run was started with other data.
    """
    folder = checkpoints.path(step)
    groups, raw, version = checkpoints.load(step)
    try:
        state = CheckpointState.model_validate(raw)
    except ValidationError as error:
        raise CheckpointError(f"{folder / 'state.json'}: state.{describe_validation_error(error)}") from error
    if state.data is None and version > 1:
        raise CheckpointError(f"{folder / 'state.json'}: expected state.data, the hash of the run's data, found none")
    _check_state(folder, step, state, train_step, task)
    expected = {"model", "optimizer", "generators"}
    if isinstance(train_step.training.average, EmaConfig) and (state.progress.n_averaged or version == 1):
        expected.add("ema")
    if groups.keys() != expected:
        raise CheckpointError(f"{folder}: expected the files {sorted(expected)} (.safetensors), found {sorted(groups)}")
    averages = {old: checkpoints.load(old, ["model"]).groups["model"] for old in state.snapshots}
    weights = {"model": (folder, groups["model"]), "ema": (folder, groups.get("ema"))}
    weights |= {f"snapshot {old}": (checkpoints.path(old), tensors) for old, tensors in averages.items()}
    for name, (where, tensors) in weights.items():
        if tensors is not None:
            file = where / f"{'ema' if name == 'ema' else 'model'}.safetensors"
            _check_tensors(file, tensors, expected_tensors.trainable)
            require_finite(file, tensors)
    file, named = folder / "optimizer.safetensors", groups["optimizer"]
    if version == 1:
        named = _name_v1_entries(file, named, list(expected_tensors.optimizer))
    _check_optimizer(file, named, state, expected_tensors.optimizer)
    _check_rng_states(folder / "generators.safetensors", groups["generators"])
    return ResumeState(state, groups["model"], named, groups["generators"], groups.get("ema", {}), averages)


def _check_state(folder: Path, step: int, state: CheckpointState, train_step: TrainStep, task: Task) -> None:
    """Raise an error if the progress, loss scaler or data hash in ``state`` do not fit the run and the checkpoint's step."""
    file, progress, n_samples = folder / "state.json", state.progress, task.loader.n_samples
    if progress.step != step:
        raise CheckpointError(f"{file}: expected progress.step = {step}, found {progress.step}")
    # A batch holds one sample at least and never reaches into the next epoch.
    if not step <= progress.position <= step * n_samples:
        raise CheckpointError(
            f"{file}: expected progress.position from {step:,} to {step * n_samples:,} samples at step {step:,}, found {progress.position}"
        )
    if train_step.scaler.is_enabled() != (state.scaler is not None):
        expected_scaler = "the state of the float16 loss scaler" if train_step.scaler.is_enabled() else "no loss scaler without float16"
        raise CheckpointError(f"{file}: expected {expected_scaler} under 'scaler', found {state.scaler}")
    if progress.best and train_step.training.best_checkpoint_metric not in progress.best:
        raise CheckpointError(
            f"{file}: expected {train_step.training.best_checkpoint_metric!r} among the metrics of the best validation,"
            f" found {sorted(progress.best)}"
        )
    measured = {name for ratio in train_step.metrics.values() for name in ratio if name not in (None, N_UPDATES)}
    if (found := progress.window.keys() - {*WINDOW_SUMS}) not in (set(), measured):
        raise CheckpointError(f"{file}: expected progress.window with the sums {sorted(map(str, measured))}, found {sorted(found)}")
    if state.data not in (task.data_hash, None):
        raise DataError(
            f"{folder.parent.parent}: expected the run's original data, found changed files;"
            " restore the files, or start a new run with another --out"
        )


def _check_tensors(file: Path, found: Mapping[str, Tensor], expected: Mapping[str, TensorSpec]) -> None:
    """Raise an error unless the tensors in ``file`` have exactly the expected names, dtypes and shapes."""
    if mismatched := sorted(found.keys() ^ expected.keys()):
        kind = "missing" if mismatched[0] in expected else "unexpected"
        raise CheckpointError(f"{file}: expected the {len(expected)} tensors of this run, found {mismatched[0][:200]!r} {kind}")
    for name, spec in expected.items():
        if (found_spec := TensorSpec.of(found[name])) != spec:
            raise CheckpointError(f"{file}: expected {name[:200]!r} as {_format_spec(spec)}, found {_format_spec(found_spec)}")


def _name_v1_entries(file: Path, tensors: Mapping[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """Convert ``number.entry``, the keys of optimizer tensors in checkpoints of format 1, to ``parameter.entry``."""
    named: dict[str, Tensor] = {}
    for key, x in tensors.items():
        number, _, entry = key.partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number) < len(names)):
            raise CheckpointError(f"{file}: expected keys such as '0.exp_avg' with a number below {len(names)}, found {key[:200]!r}")
        named[f"{names[int(number)]}.{entry}"] = x
    return named


def _check_optimizer(
    file: Path, found: Mapping[str, Tensor], state: CheckpointState, owned: Mapping[str, Mapping[str, TensorSpec]]
) -> None:
    """Raise an error unless each parameter has all of its optimizer state, or none before its first gradient, and valid step counts."""
    present = {name.rpartition(".")[0] for name in found}
    if unexpected := sorted(present - owned.keys()):
        raise CheckpointError(f"{file}: expected state of this run's parameters, found state of {unexpected[0][:200]!r}")
    _check_tensors(file, found, {f"{name}.{entry}": spec for name in owned if name in present for entry, spec in owned[name].items()})
    progress = state.progress
    n_updates = progress.step - progress.n_skipped
    if n_updates and not present and any(owned.values()):
        raise CheckpointError(f"{file}: expected the optimizer's state after {n_updates:,} updates, found none")
    counts = [x.item() for name, x in found.items() if name.endswith(".step")]
    if counts and not all(1 <= count <= progress.step and count == int(count) for count in counts):
        raise CheckpointError(f"{file}: expected 1 to {progress.step:,} updates per parameter, found {min(counts):g} to {max(counts):g}")
    if counts and max(counts) < n_updates:
        raise CheckpointError(f"{file}: expected the optimizer's state after {n_updates:,} updates, found that after {max(counts):g}")


def _check_rng_states(file: Path, found: Mapping[str, Tensor]) -> None:
    """Raise an error unless there is a valid random generator state of rank 0, and all others are valid.

    A run may continue on more or fewer ranks. A rank without a state keeps the one with which it started.
    """
    if "cpu" not in found:
        raise CheckpointError(f"{file}: expected the random generator states of all ranks, found none under 'cpu'")
    for name, x in found.items():
        if not re.fullmatch(r"cpu|rank-[1-9][0-9]{0,5}\.cpu|cuda\.[0-9]{1,3}", name):
            raise CheckpointError(f"{file}: expected random generator states such as 'cpu' and 'rank-1.cpu', found {name[:200]!r}")
        if x.dtype != torch.uint8 or x.ndim != 1:
            raise CheckpointError(f"{file}: expected {name!r} as a vector of uint8, found {_format_spec(TensorSpec.of(x))}")
        if name.endswith("cpu"):
            try:
                torch.Generator().set_state(x)
            except RuntimeError as error:
                raise CheckpointError(f"{file}: expected the state of a torch.Generator under {name!r}, found other bytes") from error


def _format_spec(spec: TensorSpec) -> str:
    return f"{str(spec.dtype).removeprefix('torch.')}{list(spec.shape)}"
