"""Read a checkpoint to resume from, and compare all of it with the run before any tensor is assigned."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from transom.checkpoints.checkpoint import Checkpoints
from transom.checkpoints.tensors import Spec, require_finite
from transom.config.training import Ema
from transom.errors import CheckpointError, DataError
from transom.files.checked import explain
from transom.training.objectives.objective import UPDATES
from transom.training.optimizer import state_specs
from transom.training.record import SUMS
from transom.training.state import SavedState, learned_tensors, optimizer_names
from transom.training.step import Stepper
from transom.training.task import Task


class SavedRun(NamedTuple):
    """A checkpoint that fits the run, not yet applied to it.

    Attributes:
        state: its validated JSON.
        model: the learned tensors.
        optimizer: tensors by ``parameter.entry``.
        generators: states of the random generators.
        ema: the moving average; empty where the run keeps none.
        snapshots: learned tensors of the checkpoints whose weights are averaged, by step.
    """

    state: SavedState
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    generators: dict[str, Tensor]
    ema: dict[str, Tensor]
    snapshots: dict[int, dict[str, Tensor]]


def read_run(checkpoints: Checkpoints, step: int, stepper: Stepper, task: Task) -> SavedRun:
    """Read the checkpoint of ``step`` and compare every name, shape, type and count with the run's.

    Args:
        checkpoints: of the run.
        step: whose checkpoint is read.
        stepper: holds the model and the fresh optimizer that the checkpoint must fit.
        task: whose data the run was begun with.

    Raises:
        CheckpointError: something in it is not of this run, or not of this step.
        DataError: it was written by a run on other data.
    """
    folder = checkpoints.path(step)
    groups, raw, version = checkpoints.load(step)
    try:
        state = SavedState.model_validate(raw)
    except ValidationError as error:
        raise CheckpointError(f"{folder / 'state.json'}: state.{explain(error)}") from error
    if state.data is None and version > 1:
        raise CheckpointError(f"{folder / 'state.json'}: expected state.data, the hash of the run's data, found none")
    _check_state(folder, step, state, stepper, task)
    model, optimizer = stepper.model, stepper.optimizer
    expected = {"model", "optimizer", "generators"}
    if isinstance(stepper.training.average, Ema) and (state.progress.n_averaged or version == 1):
        expected.add("ema")
    if groups.keys() != expected:
        raise CheckpointError(f"{folder}: expected the groups {sorted(expected)}, found {sorted(groups)}")
    learned = {name: Spec.of(x) for name, x in learned_tensors(model).items()}
    averages = {old: checkpoints.load(old, ["model"]).groups["model"] for old in state.snapshots}
    weights = {"model": (folder, groups["model"]), "ema": (folder, groups.get("ema"))}
    weights |= {f"snapshot {old}": (checkpoints.path(old), tensors) for old, tensors in averages.items()}
    for name, (where, tensors) in weights.items():
        if tensors is not None:
            file = where / f"{'ema' if name == 'ema' else 'model'}.safetensors"
            _compare(file, tensors, learned)
            require_finite(file, tensors)
    file, named = folder / "optimizer.safetensors", groups["optimizer"]
    if version == 1:
        named = _by_name(file, named, optimizer_names(model, optimizer))
    _check_optimizer(file, named, state, model, optimizer)
    _check_generators(folder / "generators.safetensors", groups["generators"], stepper.world.size)
    return SavedRun(state, groups["model"], named, groups["generators"], groups.get("ema", {}), averages)


def _check_state(folder: Path, step: int, state: SavedState, stepper: Stepper, task: Task) -> None:
    """Compare steps, position, loss scaler, best figures and measurements with the run's."""
    file, progress, n_samples = folder / "state.json", state.progress, task.loader.n_samples
    if progress.step != step:
        raise CheckpointError(f"{file}: expected progress.step = {step}, found {progress.step}")
    # A batch holds one sample at least and never reaches into the next epoch.
    if not step <= progress.position <= step * n_samples:
        raise CheckpointError(
            f"{file}: expected a position of {step:,} to {step * n_samples:,} samples after {step:,} steps, found {progress.position:,}"
        )
    if stepper.scaler.is_enabled() != (state.scaler is not None):
        wanted = "the state of the loss scaler" if stepper.scaler.is_enabled() else "no loss scaler outside float16"
        raise CheckpointError(f"{file}: expected {wanted}, found {state.scaler}")
    if progress.best and stepper.training.select_by not in progress.best:
        raise CheckpointError(
            f"{file}: expected {stepper.training.select_by!r} among the best validation's figures, found {sorted(progress.best)}"
        )
    measured = {name for ratio in stepper.figures.values() for name in ratio if name not in (None, UPDATES)}
    if (found := progress.window.keys() - {*SUMS}) not in (set(), measured):
        raise CheckpointError(f"{file}: expected progress.window with the sums {sorted(map(str, measured))}, found {sorted(found)}")
    if state.data not in (task.data, None):
        raise DataError(
            f"{folder.parent.parent}: expected the data that the run was begun with, found others in the same files;"
            " a resumed run keeps its data: put them back or give another --out"
        )


def _compare(file: Path, found: Mapping[str, Tensor], expected: Mapping[str, Spec]) -> None:
    """Compare the names, types and shapes of tensors."""
    if odd := sorted(found.keys() ^ expected.keys()):
        kind = "missing" if odd[0] in expected else "unexpected"
        raise CheckpointError(f"{file}: expected the {len(expected)} tensors of this run, found {odd[0][:200]!r} {kind}")
    for name, spec in expected.items():
        if (is_ := Spec.of(found[name])) != spec:
            raise CheckpointError(f"{file}: expected {name[:200]!r} as {_spell(spec)}, found {_spell(is_)}")


def _by_name(file: Path, tensors: Mapping[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """Name an optimizer's tensors of format 1, which numbered the parameters, by the parameters' names."""
    named: dict[str, Tensor] = {}
    for key, x in tensors.items():
        number, _, entry = key.partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number) < len(names)):
            raise CheckpointError(f"{file}: expected tensors of {len(names)} parameters, found {key[:200]!r}")
        named[f"{names[int(number)]}.{entry}"] = x
    return named


def _check_optimizer(
    file: Path, found: Mapping[str, Tensor], state: SavedState, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Compare the optimizer's tensors with its parameters: all entries of a parameter, or none before its first gradient."""
    parameters = dict(model.named_parameters())
    present = {name.rpartition(".")[0] for name in found}
    owned = {name: state_specs(optimizer, parameters[name]) for name in optimizer_names(model, optimizer)}
    if foreign := sorted(present - owned.keys()):
        raise CheckpointError(f"{file}: expected state of this run's parameters, found some of {foreign[0][:200]!r}")
    _compare(file, found, {f"{name}.{entry}": spec for name in owned if name in present for entry, spec in owned[name].items()})
    progress = state.progress
    made = progress.step - progress.n_skipped
    if made and not present and any(owned.values()):
        raise CheckpointError(f"{file}: expected the optimizer's state after {made:,} steps, found none")
    counts = [x.item() for name, x in found.items() if name.endswith(".step")]
    if counts and not all(1 <= count <= progress.step and count == int(count) for count in counts):
        raise CheckpointError(f"{file}: expected 1 to {progress.step:,} steps of every parameter, found {min(counts):g} to {max(counts):g}")
    if counts and max(counts) < made:
        raise CheckpointError(f"{file}: expected an optimizer after {made:,} steps, found one after {max(counts):g}")


def _check_generators(file: Path, found: Mapping[str, Tensor], n_processes: int) -> None:
    """Check that a generator of every process can take its state."""
    expected = {"cpu", *(f"rank-{rank}.cpu" for rank in range(1, n_processes))}
    if missing := sorted(expected - found.keys()):
        raise CheckpointError(f"{file}: expected generators of {n_processes} processes, found none under {missing[0]!r}")
    for name, x in found.items():
        if name not in expected and not (name.startswith("cuda.") and name[5:].isdigit()):
            raise CheckpointError(f"{file}: expected generators of {n_processes} processes, found {name[:200]!r}")
        if x.dtype != torch.uint8 or x.ndim != 1:
            raise CheckpointError(f"{file}: expected {name!r} as a row of bytes, found {_spell(Spec.of(x))}")
        if name in expected:
            try:
                torch.Generator().set_state(x)
            except RuntimeError as error:
                raise CheckpointError(f"{file}: expected the state of a generator under {name!r}, found other bytes") from error


def _spell(spec: Spec) -> str:
    return f"{str(spec.dtype).removeprefix('torch.')}{list(spec.shape)}"
