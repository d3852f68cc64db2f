"""Checkpoints: everything a run needs to resume bit-identically."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from transom.checkpoints.peers import ALONE, Peers
from transom.checkpoints.piece_files import SavedTensors
from transom.checkpoints.tensors import Origin, hash_tensors, read_metadata, read_tensors, serialize_tensors, verify_tensors
from transom.config.migration import migrate_state
from transom.errors import CheckpointError, DiskError
from transom.files.atomic_io import (
    FORMAT_VERSION,
    SHARDED_FORMAT_VERSION,
    Entries,
    Entry,
    json_bytes,
    make_folder,
    new_folder,
    remove,
    remove_partial_files,
    write_manifest,
    write_new_file,
)
from transom.files.safe_read import describe_validation_error, read_json, read_manifest, require_regular_file, verify_files

TensorGroups = dict[str, dict[str, Tensor]]
"""Tensors by group and name; groups are "model", "ema", "optimizer" and "generators" (states of random number generators)."""

STATE, SUFFIX = "state.json", ".safetensors"
"""Name of the file with the state, and suffix of the files with tensors."""

_WEIGHTS = "model"
_GROUP = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RANK = re.compile(r"\.rank-[0-9]{4,9}")
_FILE = re.compile(rf"{_GROUP.pattern}(?:{_RANK.pattern})?{re.escape(SUFFIX)}|{re.escape(STATE)}")
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")
_Step = Annotated[int, Field(ge=0, lt=10**18)]
_Group = Annotated[str, Field(pattern=rf"^{_GROUP.pattern}$")]
_PieceFile = Annotated[str, Field(pattern=rf"^{_GROUP.pattern}{_RANK.pattern}{re.escape(SUFFIX)}$")]


class _StateDocument(BaseModel):
    """Content of a checkpoint's ``state.json``.

    Attributes:
        format_version: format of the checkpoint; in format 1, optimizer tensors are named by the number of their parameter.
        step: number of optimizer steps.
        run: id of the run, equal to the one in the metadata of every tensor file; None in format 1.
        groups: for each saved group of tensors, ``hash_tensors`` of its whole tensors, or the SHA-256 of each file with pieces of them; in
            format 1, only the names.
        state: further state for resuming, with the schema ``training.train_state.CheckpointState``.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    format_version: int
    step: _Step
    run: str | None = None
    groups: dict[_Group, str | dict[_PieceFile, str]] | list[_Group]
    state: dict[str, Any]

    @property
    def origin(self) -> Origin | None:
        """Run and step that the metadata of every tensor file must have; None in format 1."""
        return None if self.run is None else Origin(self.run, self.step)

    def sha256(self, file: str) -> str | None:
        """Return the recorded hash of a file: of its whole tensors, or of the file itself if it holds pieces; None in format 1."""
        found = self.groups.get(group_of(file)) if isinstance(self.groups, dict) else None
        return found.get(file) if isinstance(found, dict) else found

    def files(self, group: str) -> list[str]:
        """List the files of a group."""
        found = self.groups.get(group) if isinstance(self.groups, dict) else None
        return list(found) if isinstance(found, dict) else [group + SUFFIX]

    def wanted(self, manifest: Entries, only: Collection[str] | None) -> list[str]:
        """List the groups ``only``, by default those that are listed in the manifest."""
        return [group for group in self.groups if all(file in manifest for file in self.files(group))] if only is None else list(only)

    @property
    def present_state(self) -> dict[str, Any]:
        """The field ``state`` with former names replaced by the present ones."""
        return self.state if self.format_version >= FORMAT_VERSION else migrate_state(self.state)


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


class OpenCheckpoint(NamedTuple):
    """A checkpoint of whose tensors any block can be read.

    Attributes:
        groups: tensors by group; only their headers are read.
        state: as in ``LoadedCheckpoint``.
        format_version: as in ``LoadedCheckpoint``.
    """

    groups: dict[str, SavedTensors]
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

    A checkpoint is a folder ``step-N`` with ``state.json``, a manifest, and one safetensors file per group of tensors or, if several ranks
    hold the tensors in pieces, one per group and rank.
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
        hashes: dict[str, str] = {}
        with self.removing_later_than(step):
            run = self.prepare()
            origin = None if run is None else Origin(run, step)
            with new_folder(self.path(step)) as (folder, entries):
                for name, tensors in groups.items():
                    entries[name + SUFFIX], hashes[name] = write_group(folder / (name + SUFFIX), tensors, origin)
                entries[STATE] = write_new_file(folder / STATE, state_bytes(FORMAT_VERSION, step, run, hashes, state))

    def prepare(self) -> str | None:
        """Create the folder and remove what a killed process left in it; return the run's id."""
        make_folder(self.folder)
        remove_partial_files(self.folder)
        return self._run()

    @contextmanager
    def removing_later_than(self, step: int) -> Iterator[None]:
        """Remove checkpoints of later steps after the block has saved that of ``step``; a DiskError of the block says what is kept."""
        try:
            yield
        except DiskError as error:
            kept = [old for old in self.steps() if old < step]
            raise DiskError(
                f"{error}; {f'the checkpoint of step {kept[-1]} is kept' if kept else 'there is no earlier checkpoint'}"
            ) from error
        for later in self.steps():
            if later > step:
                remove(self.path(later))

    def latest(self, accept: Callable[[int], None] = lambda step: None, peers: Peers = ALONE) -> LatestCheckpoint | None:
        """Find the latest checkpoint that is complete, undamaged and accepted by all ranks; return None if none was ever saved.

        Args:
            accept: called with the step of a checkpoint; raises CheckpointError if the checkpoint does not match the run.
            peers: the ranks that resume the run, each of which must call this function and verifies its part of the files.

        Raises:
            CheckpointError: there are checkpoints, but none is usable.
        """
        rejected: list[str] = []
        weights_only: list[str] = []
        steps = peers.on_all(self.steps)[0]
        for step in reversed(steps):
            reasons = peers.on_all(lambda step=step: self._examine(step, accept, peers))  # type: ignore[misc]
            if all(reason is None for reason in reasons):
                return LatestCheckpoint(step, (*rejected, *weights_only))
            found = next((reason for reason in reasons if reason), "")
            if found:
                rejected.append(found)
            else:
                weights_only.append(f"{self.path(step)}: holds weights only")
        if steps:
            reason = rejected[0] if rejected else f"the checkpoints of steps {steps[0]} to {steps[-1]} hold weights only"
            raise CheckpointError(f"{self.folder}: no checkpoint to resume from: {reason}; start a new run with another --out")
        return None

    def _examine(self, step: int, accept: Callable[[int], None], peers: Peers) -> str | None:
        """Return the reason why a checkpoint cannot be used, empty if it holds weights only, or None if it can be used."""
        try:
            manifest, document = self._verify(step, peers=peers)
            if not all(file in manifest for group in document.groups for file in document.files(group)):
                return ""
            accept(step)
        except CheckpointError as error:
            return str(error)
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
        groups = {group: self._read_group(step, document.files(group)) for group in document.wanted(manifest, only)}
        return LoadedCheckpoint(groups, document.present_state, document.format_version)

    def open(self, step: int, only: Collection[str] | None = None, peers: Peers = ALONE) -> OpenCheckpoint:
        """Read the state and the headers of a checkpoint, of whose tensors any block can then be read.

        Args:
            step: one of ``steps()``.
            only: groups to open; by default all.
            peers: the ranks that open it; each compares the hashes of its part of the files only.

        Raises:
            CheckpointError: the checkpoint or a group is missing or damaged.
        """
        folder = self.path(step)
        manifest, document = self._verify(step, only, peers)
        groups = {group: [folder / file for file in document.files(group)] for group in document.wanted(manifest, only)}
        for file in [file for files in groups.values() for file in files][peers.rank :: peers.size]:
            verify_tensors(file)
        return OpenCheckpoint(
            {group: SavedTensors(files) for group, files in groups.items()}, document.present_state, document.format_version
        )

    def _read_group(self, step: int, files: list[str]) -> dict[str, Tensor]:
        paths = [self.path(step) / file for file in files]
        return read_tensors(paths[0]) if files[0] == group_of(files[0]) + SUFFIX else SavedTensors(paths).read_all()

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
        kept = {name: entry for name, entry in manifest.items() if name == STATE or group_of(name) == _WEIGHTS}
        if kept != manifest:
            in_pieces = any(_RANK.search(name) for name in kept)
            write_manifest(folder, kept, SHARDED_FORMAT_VERSION if in_pieces else FORMAT_VERSION)
        remove_partial_files(folder)
        for file in list(folder.iterdir()):
            if _FILE.fullmatch(file.name) and file.name not in kept:
                remove(file)

    def _verify(self, step: int, only: Collection[str] | None = None, peers: Peers = ALONE) -> tuple[Entries, _StateDocument]:
        """Verify all files of a checkpoint, or its state and the groups ``only``; return its manifest and its state document.

        Of several peers, each compares the hashes of its part of the files.
        """
        folder = self.path(step)
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such checkpoint; the run has checkpoints of steps {self.steps()}")
        manifest = read_manifest(folder, _FILE)
        names = [name for name in manifest if name != STATE and (only is None or group_of(name) in only)]
        if missing := [group for group in only or () if group not in map(group_of, names)]:
            raise CheckpointError(f"{folder}: expected the file {missing[0]}{SUFFIX}, which this checkpoint does not have")
        part = names[peers.rank :: peers.size]
        verify_files(folder, manifest, [*part, *([STATE] if STATE in manifest else [])])
        if STATE not in manifest:
            raise CheckpointError(f"{folder}: damaged, its manifest does not list {STATE}")
        document = self._read_state(step)
        for group in document.groups if only is None else only:
            files = document.files(group)
            if absent := [name for name in files if name not in manifest and any(other in manifest for other in files)]:
                raise CheckpointError(f"{folder}: damaged, its manifest does not list {absent[0]}")
        for name in names:
            file, expected, metadata = folder / name, document.sha256(name), read_metadata(folder / name)
            if metadata.origin != document.origin:
                raise CheckpointError(
                    f"{file}: expected tensors of {_format_origin(document.origin)}, found tensors of {_format_origin(metadata.origin)}"
                )
            if expected is not None and (metadata.sha256 if metadata.pieces is None else manifest[name]["sha256"]) != expected:
                raise CheckpointError(f"{file}: expected tensors with the hash in {STATE}, found tensors with another hash")
        return manifest, document

    def _read_state(self, step: int) -> _StateDocument:
        """Read ``state.json`` of a checkpoint, and check that it is of this step and run."""
        folder = self.path(step)
        raw = read_json(require_regular_file(folder / STATE), newest=SHARDED_FORMAT_VERSION)
        try:
            document = _StateDocument.model_validate(raw)
        except ValidationError as error:
            raise CheckpointError(f"{folder / STATE}: {describe_validation_error(error)}") from error
        if document.step != step:
            raise CheckpointError(f"{folder}: expected the state of step {step}, found the state of step {document.step}")
        if (run := self._run()) is not None and document.run != run and (document.run or document.format_version > 1):
            raise CheckpointError(f"{folder}: expected a checkpoint of run {run[:8]}, found a checkpoint of run {str(document.run)[:8]}")
        return document


def group_of(file: str) -> str:
    """Return the group of a file of tensors."""
    return file.partition(".")[0]


def write_group(path: Path, tensors: Mapping[str, Tensor], origin: Origin | None) -> tuple[Entry, str]:
    """Write the whole tensors of a group into one new file; return its entry in the manifest and the hash of the tensors."""
    sha256 = hash_tensors(tensors)
    return write_new_file(path, lambda: serialize_tensors(tensors, origin, sha256)), sha256


def state_bytes(format_version: int, step: int, run: str | None, hashes: Mapping[str, Any], state: Mapping[str, Any]) -> bytes:
    """Return the content of ``state.json``."""
    return json_bytes({"format_version": format_version, "step": step, "run": run, "groups": dict(hashes), "state": dict(state)})


def _format_origin(origin: Origin | None) -> str:
    return "no run" if origin is None else f"step {origin.step} of run {origin.run[:8]}"
