"""Checkpoints: everything a run needs to resume bit-identically."""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from transom.checkpoints.tensors import Origin, hash_tensors, read_metadata, read_tensors, serialize_tensors
from transom.config.migration import migrate_state
from transom.errors import CheckpointError, DiskError
from transom.files.atomic_io import (
    FORMAT_VERSION,
    Content,
    json_bytes,
    make_folder,
    remove,
    remove_partial_files,
    write_folder,
    write_manifest,
)
from transom.files.safe_read import describe_validation_error, read_json, read_manifest, require_regular_file, verify_files

TensorGroups = dict[str, dict[str, Tensor]]
"""Tensors by group and name; groups are "model", "ema", "optimizer" and "generators" (states of random number generators)."""

_STATE, _SUFFIX, _WEIGHTS = "state.json", ".safetensors", "model.safetensors"
_GROUP = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FILE = re.compile(rf"{_GROUP.pattern}{re.escape(_SUFFIX)}|{re.escape(_STATE)}")
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")
_Step = Annotated[int, Field(ge=0, lt=10**18)]
_Group = Annotated[str, Field(pattern=rf"^{_GROUP.pattern}$")]


class _StateDocument(BaseModel):
    """Content of a checkpoint's ``state.json``.

    Attributes:
        format_version: format of the checkpoint; in format 1, optimizer tensors are named by the number of their parameter.
        step: number of optimizer steps.
        run: id of the run, equal to the one in the metadata of every tensor file; None in format 1.
        groups: ``hash_tensors`` of each saved group of tensors by name; in format 1, only the names.
        state: further state for resuming, with the schema ``training.train_state.CheckpointState``.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    format_version: int
    step: _Step
    run: str | None = None
    groups: dict[_Group, str] | list[_Group]
    state: dict[str, Any]

    @property
    def origin(self) -> Origin | None:
        """Run and step that the metadata of every tensor file must have; None in format 1."""
        return None if self.run is None else Origin(self.run, self.step)

    def sha256(self, group: str) -> str | None:
        """Return the recorded ``hash_tensors`` of a group; None in format 1."""
        return self.groups.get(group) if isinstance(self.groups, dict) else None


class LoadedCheckpoint(NamedTuple):
    """A checkpoint read from disk.

    Attributes:
        groups: tensors by group and name.
        state: field ``state`` of ``state.json``, with former names replaced by the present ones.
        format_version: format in which the checkpoint was written.
    """

    groups: TensorGroups
    state: dict[str, Any]
    format_version: int


class LatestCheckpoint(NamedTuple):
    """The latest checkpoint from which a run can resume.

    Attributes:
        step: its number of optimizer steps.
        rejected: for each newer checkpoint, one line with the reason why the run cannot resume from it.
    """

    step: int
    rejected: tuple[str, ...]


class Checkpoints:
    """The folder ``checkpoints`` of a run.

    A checkpoint is a folder ``step-N`` with a safetensors file per group of tensors, ``state.json`` and a manifest.
    """

    def __init__(self, folder: Path, run: Callable[[], str | None] = lambda: None) -> None:
        """Use ``folder``, which may not exist yet; ``run`` returns the id of the run that owns the folder, or None if the run has no id."""
        self.folder = folder
        self._run = run

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint of ``step``."""
        return self.folder / f"step-{step}"

    def steps(self) -> list[int]:
        """List the steps with a checkpoint, complete or not, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(match[1]) for entry in self.folder.iterdir() if (match := _STEP.fullmatch(entry.name)) and entry.is_dir())

    def save(self, step: int, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
        """Save a checkpoint durably.

        Afterwards, checkpoints of later steps are removed: the run left them unused when it resumed from an earlier step.

        Args:
            step: number of optimizer steps.
            groups: tensors by group and name; ``prune`` can keep the group "model" alone.
            state: further state for resuming, as JSON values.

        Raises:
            DiskError: the checkpoint could not be written; earlier checkpoints are unchanged.
        """
        assert all(_GROUP.fullmatch(name) for name in groups), f"expected plain group names, found {list(groups)}"
        make_folder(self.folder)
        remove_partial_files(self.folder)
        run = self._run()
        origin = None if run is None else Origin(run, step)
        hashes: dict[str, str] = {}
        document = {"format_version": FORMAT_VERSION, "step": step, "run": run, "groups": hashes, "state": dict(state)}

        def content(group: str) -> bytes:
            hashes[group] = hash_tensors(groups[group])
            return serialize_tensors(groups[group], origin, hashes[group])

        files: dict[str, Content] = {name + _SUFFIX: partial(content, name) for name in groups}
        try:  # the state comes last, when the hashes of all groups are known
            write_folder(self.path(step), files | {_STATE: lambda: json_bytes(document)})
        except DiskError as error:
            kept = [old for old in self.steps() if old < step]
            raise DiskError(
                f"{error}; {f'the checkpoint of step {kept[-1]} is kept' if kept else 'there is no earlier checkpoint'}"
            ) from error
        for later in self.steps():
            if later > step:
                remove(self.path(later))

    def latest(self, accept: Callable[[int], None] = lambda step: None) -> LatestCheckpoint | None:
        """Find the latest checkpoint that is complete, undamaged and accepted; return None if none was ever saved.

        Args:
            accept: called with the step of a checkpoint; raises CheckpointError if the checkpoint does not match the run.

        Raises:
            CheckpointError: there are checkpoints, but none is usable.
        """
        rejected: list[str] = []
        weights_only: list[str] = []
        for step in reversed(self.steps()):
            try:
                manifest, document = self._verify(step)
                if all(name + _SUFFIX in manifest for name in document.groups):
                    accept(step)
                    return LatestCheckpoint(step, (*rejected, *weights_only))
                weights_only.append(f"{self.path(step)}: holds weights only")
            except CheckpointError as error:
                rejected.append(str(error))
        if steps := self.steps():
            reason = rejected[0] if rejected else f"the checkpoints of steps {steps[0]} to {steps[-1]} hold weights only"
            raise CheckpointError(f"{self.folder}: no checkpoint to resume from: {reason}; start a new run with another --out")
        return None

    def load(self, step: int, only: Collection[str] | None = None) -> LoadedCheckpoint:
        """Read the tensors and the state of a checkpoint.

        Args:
            step: one of ``steps()``.
            only: groups to read; by default all.

        Raises:
            CheckpointError: the checkpoint or a group is missing or damaged.
        """
        manifest, document = self._verify(step, only)
        wanted = [name for name in document.groups if name + _SUFFIX in manifest] if only is None else only
        groups = {name: read_tensors(self.path(step) / (name + _SUFFIX)) for name in wanted}
        state = document.state if document.format_version >= FORMAT_VERSION else migrate_state(document.state)
        return LoadedCheckpoint(groups, state, document.format_version)

    def prune(self, keep_full: int, keep_weights: Collection[int] = ()) -> None:
        """Keep the latest ``keep_full`` checkpoints, and the weights (group "model") of the steps ``keep_weights``; delete the rest."""
        assert keep_full >= 1, "the newest checkpoint must stay"
        for step in self.steps()[:-keep_full]:
            if step in keep_weights:
                self._keep_weights_only(step)
            else:
                remove(self.path(step))

    def _keep_weights_only(self, step: int) -> None:
        """Reduce a checkpoint to its weights and ``state.json``: remove the other files from the manifest, then from disk."""
        folder = self.path(step)
        try:
            manifest = read_manifest(folder, _FILE)
        except CheckpointError:  # unreadable: no file of it is worth keeping
            return remove(folder)
        kept = {name: entry for name, entry in manifest.items() if name in (_STATE, _WEIGHTS)}
        if kept != manifest:
            write_manifest(folder, kept)
        remove_partial_files(folder)
        for file in list(folder.iterdir()):
            if _FILE.fullmatch(file.name) and file.name not in kept:
                remove(file)

    def _verify(self, step: int, only: Collection[str] | None = None) -> tuple[dict[str, Any], _StateDocument]:
        """Verify all files of a checkpoint, or its state and the groups ``only``; return its manifest and its state document."""
        folder = self.path(step)
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such checkpoint; the run has checkpoints of steps {self.steps()}")
        manifest = read_manifest(folder, _FILE)
        names = list(manifest) if only is None else [name + _SUFFIX for name in only] + [_STATE]
        if missing := [name for name in names if name not in manifest]:
            raise CheckpointError(f"{folder}: expected the file {missing[0]}, which this checkpoint does not have")
        verify_files(folder, manifest, names)
        if _STATE not in manifest:
            raise CheckpointError(f"{folder}: damaged, its manifest does not list {_STATE}")
        raw = read_json(require_regular_file(folder / _STATE))
        try:
            document = _StateDocument.model_validate(raw)
        except ValidationError as error:
            raise CheckpointError(f"{folder / _STATE}: {describe_validation_error(error)}") from error
        if document.step != step:
            raise CheckpointError(f"{folder}: expected the state of step {step}, found the state of step {document.step}")
        if (run := self._run()) is not None and document.run != run and (document.run or document.format_version > 1):
            raise CheckpointError(f"{folder}: expected a checkpoint of run {run[:8]}, found a checkpoint of run {str(document.run)[:8]}")
        for group in [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]:
            file = folder / (group + _SUFFIX)
            metadata, expected = read_metadata(file), document.sha256(group)
            if metadata.origin != document.origin:
                raise CheckpointError(
                    f"{file}: expected tensors of {_format_origin(document.origin)}, found tensors of {_format_origin(metadata.origin)}"
                )
            if expected is not None and metadata.sha256 != expected:
                raise CheckpointError(f"{file}: expected tensors with the hash in {_STATE}, found tensors with another hash")
        return manifest, document


def _format_origin(origin: Origin | None) -> str:
    return "no run" if origin is None else f"step {origin.step} of run {origin.run[:8]}"
