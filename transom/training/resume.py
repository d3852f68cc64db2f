"""Read a checkpoint, and check that all of it fits the run before any tensor of the run is changed."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from transom.checkpoints.checkpoint import Checkpoints
from transom.checkpoints.peers import ALONE, Peers
from transom.checkpoints.piece_files import SavedTensors
from transom.checkpoints.tensors import TensorSpec, require_finite
from transom.config.training import EmaConfig
from transom.errors import CheckpointError, DataError
from transom.files.safe_read import describe_validation_error
from transom.parallel.local_pieces import local_piece, read_like
from transom.training.metrics_window import WINDOW_SUMS
from transom.training.objectives.objective import N_UPDATES
from transom.training.optimizer import state_specs
from transom.training.task_protocol import Task
from transom.training.train_state import CheckpointState, optimizer_parameter_names, trainable_tensors
from transom.training.train_step import TrainStep


class ResumeState(NamedTuple):
    """Content of a checkpoint that fits the run; the run's model and optimizer are not changed yet.

    Tensors are sharded as those of the run: of each, this rank has read its own block only.

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
    checkpoints: Checkpoints, step: int, train_step: TrainStep, task: Task, peers: Peers = ALONE, elsewhere: Collection[str] = ()
) -> ResumeState:
    """Read the checkpoint of ``step``, and check each tensor's name, shape and dtype and each counter against the run.

    Args:
        checkpoints: checkpoints of the run.
        step: step of the checkpoint.
        train_step: holds the model and the new optimizer that the checkpoint must fit.
        task: the task; the run must have been started with the data of this task.
        peers: the ranks that resume the run, in any layout; each verifies its part of the files.
        elsewhere: names of trainable tensors of which only other ranks hold pieces.

    Raises:
        CheckpointError: the checkpoint does not fit the run or is not of this step.
        DataError: the run was started with other data.
    """
    folder = checkpoints.path(step)
    groups, raw, version = checkpoints.open(step, peers=peers)
    try:
        state = CheckpointState.model_validate(raw)
    except ValidationError as error:
        raise CheckpointError(f"{folder / 'state.json'}: state.{describe_validation_error(error)}") from error
    if state.data is None and version > 1:
        raise CheckpointError(f"{folder / 'state.json'}: expected state.data, the hash of the run's data, found none")
    _check_state(folder, step, state, train_step, task)
    model, optimizer = train_step.model, train_step.optimizer
    expected = {"model", "optimizer", "generators"}
    if isinstance(train_step.training.average, EmaConfig) and (state.progress.n_averaged or version == 1):
        expected.add("ema")
    if groups.keys() != expected:
        raise CheckpointError(f"{folder}: expected the files {sorted(expected)} (.safetensors), found {sorted(groups)}")
    trainable = trainable_tensors(model)
    weights = _read_weights(groups["model"], trainable, elsewhere)
    ema = _read_weights(groups["ema"], trainable, elsewhere) if "ema" in groups else {}
    averages = {
        old: _read_weights(checkpoints.open(old, ["model"], peers).groups["model"], trainable, elsewhere) for old in state.snapshots
    }
    names = optimizer_parameter_names(model, optimizer)
    stored = {name: name for name in groups["optimizer"].specs}
    if version == 1:
        stored = _name_v1_entries(groups["optimizer"].path, stored, names)
    moments = _read_optimizer(groups["optimizer"], stored, state, model, optimizer, elsewhere)
    generators = groups["generators"].read_all()
    _check_rng_states(groups["generators"].path, generators)
    return ResumeState(state, weights, moments, generators, ema, averages)


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


def _read_weights(saved: SavedTensors, trainable: Mapping[str, Tensor], elsewhere: Collection[str]) -> dict[str, Tensor]:
    """Read this rank's blocks of weights, or of their average, after checking names, dtypes and shapes; the values must be finite."""
    _check_specs(saved.path, saved.specs, {name: TensorSpec.of(x) for name, x in trainable.items()}, elsewhere)
    tensors = {name: read_like(saved, name, x) for name, x in trainable.items()}
    require_finite(saved.path, {name: local_piece(x).tensor for name, x in tensors.items()})
    return tensors


def _check_specs(file: Path, found: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec], elsewhere: Collection[str] = ()) -> None:
    """Raise an error unless the tensors in ``file`` have exactly the expected names, dtypes and shapes."""
    if mismatched := sorted((found.keys() - {*elsewhere}) ^ expected.keys()):
        kind = "missing" if mismatched[0] in expected else "unexpected"
        raise CheckpointError(f"{file}: expected the {len(expected)} tensors of this run, found {mismatched[0][:200]!r} {kind}")
    for name, spec in expected.items():
        if found[name] != spec:
            raise CheckpointError(f"{file}: expected {name[:200]!r} as {_format_spec(spec)}, found {_format_spec(found[name])}")


def _name_v1_entries(file: Path, stored: Mapping[str, str], names: list[str]) -> dict[str, str]:
    """Convert ``number.entry``, the keys of optimizer tensors in checkpoints of format 1, to ``parameter.entry``."""
    named: dict[str, str] = {}
    for key in stored:
        number, _, entry = key.partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number) < len(names)):
            raise CheckpointError(f"{file}: expected keys such as '0.exp_avg' with a number below {len(names)}, found {key[:200]!r}")
        named[f"{names[int(number)]}.{entry}"] = key
    return named


def _read_optimizer(
    saved: SavedTensors,
    stored: Mapping[str, str],
    state: CheckpointState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    elsewhere: Collection[str],
) -> dict[str, Tensor]:
    """Read this rank's blocks of the optimizer's state, after checking names, dtypes, shapes and the numbers of updates.

    Each parameter must have all of its state, or none before its first gradient.

    Args:
        saved: the saved state.
        stored: key in ``saved`` by ``parameter.entry``.
        state: progress of the run.
        model: the model.
        optimizer: the new optimizer.
        elsewhere: names of parameters of which only other ranks hold pieces.
    """
    file, parameters = saved.path, dict(model.named_parameters())
    found = {name: saved.specs[key] for name, key in stored.items() if name.rpartition(".")[0] not in elsewhere}
    present = {name.rpartition(".")[0] for name in found}
    owned = {name: state_specs(optimizer, parameters[name]) for name in optimizer_parameter_names(model, optimizer)}
    if unexpected := sorted(present - owned.keys()):
        raise CheckpointError(f"{file}: expected state of this run's parameters, found state of {unexpected[0][:200]!r}")
    _check_specs(file, found, {f"{name}.{entry}": spec for name in owned if name in present for entry, spec in owned[name].items()})
    tensors = dict[str, Tensor]()
    for name, spec in found.items():
        parameter = parameters[name.rpartition(".")[0]]
        is_split = spec.shape == parameter.shape
        tensors[name] = read_like(saved, stored[name], parameter) if is_split else saved.read(stored[name])
    progress = state.progress
    n_updates = progress.step - progress.n_skipped
    if n_updates and not present and any(owned.values()):
        raise CheckpointError(f"{file}: expected the optimizer's state after {n_updates:,} updates, found none")
    counts = [x.item() for name, x in tensors.items() if name.endswith(".step")]
    if counts and not all(1 <= count <= progress.step and count == int(count) for count in counts):
        raise CheckpointError(f"{file}: expected 1 to {progress.step:,} updates per parameter, found {min(counts):g} to {max(counts):g}")
    if counts and max(counts) < n_updates:
        raise CheckpointError(f"{file}: expected the optimizer's state after {n_updates:,} updates, found that after {max(counts):g}")
    return tensors


def _check_rng_states(file: Path, found: Mapping[str, Tensor]) -> None:
    """Raise an error unless there is a valid random generator state for each of the processes that wrote the checkpoint."""
    n_processes = 1 + sum(name.startswith("rank-") and name.endswith(".cpu") for name in found)
    expected = {"cpu", *(f"rank-{rank}.cpu" for rank in range(1, n_processes))}
    if missing := sorted(expected - found.keys()):
        raise CheckpointError(f"{file}: expected random generator states of {n_processes} processes, found none under {missing[0]!r}")
    on_gpus = {f"rank-{rank}.cuda" for rank in range(1, n_processes)}
    for name, x in found.items():
        if name not in expected | on_gpus and not (name.startswith("cuda.") and name[5:].isdigit()):
            raise CheckpointError(f"{file}: expected random generator states of {n_processes} processes only, found {name[:200]!r}")
        if x.dtype != torch.uint8 or x.ndim != 1:
            raise CheckpointError(f"{file}: expected {name!r} as a vector of uint8, found {_format_spec(TensorSpec.of(x))}")
        if name in expected:
            try:
                torch.Generator().set_state(x)
            except RuntimeError as error:
                raise CheckpointError(f"{file}: expected the state of a torch.Generator under {name!r}, found other bytes") from error


def _format_spec(spec: TensorSpec) -> str:
    return f"{str(spec.dtype).removeprefix('torch.')}{list(spec.shape)}"
