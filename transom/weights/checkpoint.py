"""Checkpoints: all that a run needs to go on as if it had never stopped."""

import json
import re
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from transom.errors import CheckpointError, DiskError
from transom.weights.checked import plain_file, read_json, read_manifest, verify
from transom.weights.durable import FORMAT_VERSION, json_bytes, make_folder, remove, remove_leftovers, write_folder, write_manifest
from transom.weights.tensors import pack, read_tensors

Groups = dict[str, dict[str, Tensor]]
"""Tensors by group (model, average, optimizer, generators, ...) and name."""

_STATE, _SUFFIX, _WEIGHTS = "state.json", ".safetensors", "model.safetensors"
_GROUP = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FILE = re.compile(rf"{_GROUP.pattern}{re.escape(_SUFFIX)}|{re.escape(_STATE)}")
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")


class Latest(NamedTuple):
    """The newest checkpoint to go on from.

    Attributes:
        step: its step.
        passed_over: one line for each newer one that is damaged, saying how.
    """

    step: int
    passed_over: tuple[str, ...]


class Checkpoints:
    """The folder ``checkpoints`` of a run: one folder ``step-N`` a checkpoint, with a file a group of tensors, state and manifest."""

    def __init__(self, folder: Path) -> None:
        """Look at ``folder``, which may not exist yet."""
        self.folder = folder

    def path(self, step: int) -> Path:
        """Return where the checkpoint of ``step`` is."""
        return self.folder / f"step-{step}"

    def steps(self) -> list[int]:
        """List the steps with a checkpoint, whole or not, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(match[1]) for entry in self.folder.iterdir() if (match := _STEP.fullmatch(entry.name)) and entry.is_dir())

    def save(self, step: int, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
        """Save everything; when this returns, it is on the disk.

        Checkpoints of later steps are then removed: they are of a history that the run left when it went on from an earlier one.

        Args:
            step: optimizer steps done.
            groups: tensors by group and name; "model" is what ``prune`` keeps longest.
            state: what else resuming needs, as JSON.

        Raises:
            DiskError: it could not be written; earlier checkpoints are untouched.
        """
        assert all(_GROUP.fullmatch(name) for name in groups), f"expected plain group names, found {list(groups)}"
        make_folder(self.folder)
        remove_leftovers(self.folder)
        document = {"format_version": FORMAT_VERSION, "step": step, "groups": list(groups), "state": dict(state)}
        files = {name + _SUFFIX: partial(pack, tensors) for name, tensors in groups.items()}
        try:
            write_folder(self.path(step), files | {_STATE: partial(json_bytes, document)})
        except DiskError as error:
            kept = [old for old in self.steps() if old < step]
            raise DiskError(
                f"{error}; {f'the checkpoint of step {kept[-1]} is kept' if kept else 'there is no earlier checkpoint'}"
            ) from error
        for later in self.steps():
            if later > step:
                remove(self.path(later))

    def latest(self) -> Latest | None:
        """Find the newest checkpoint that is whole and undamaged; None if none was ever saved.

        Raises:
            CheckpointError: there are checkpoints, but none to go on from.
        """
        passed_over: list[str] = []
        for step in reversed(self.steps()):
            try:
                manifest, groups = self._check(step)
            except CheckpointError as error:
                passed_over.append(str(error))
                continue
            if all(name + _SUFFIX in manifest for name in groups):
                return Latest(step, tuple(passed_over))
        if steps := self.steps():
            reason = passed_over[0] if passed_over else f"those of steps {steps[0]} to {steps[-1]} hold weights only"
            raise CheckpointError(f"{self.folder}: no checkpoint to go on from: {reason}; begin anew with another --out")
        return None

    def load(self, step: int, only: Collection[str] | None = None) -> tuple[Groups, dict[str, Any]]:
        """Read the tensors and the state that were saved at ``step``.

        Args:
            step: one of ``steps()``.
            only: groups to read; left out, all that are there.

        Raises:
            CheckpointError: it is missing or damaged, or holds no such group.
        """
        manifest, groups = self._check(step, only)
        wanted = [name for name in groups if name + _SUFFIX in manifest] if only is None else list(only)
        document = read_json(self.path(step) / _STATE)
        return {name: read_tensors(self.path(step) / (name + _SUFFIX)) for name in wanted}, document["state"]

    def prune(self, keep_full: int, keep_weights: Collection[int] = ()) -> None:
        """Make room: the newest ``keep_full`` stay whole, those before them of ``keep_weights`` keep only group "model", the rest go."""
        assert keep_full >= 1, "the newest checkpoint must stay"
        for step in self.steps()[:-keep_full]:
            if step in keep_weights:
                self._strip(step)
            else:
                remove(self.path(step))

    def _strip(self, step: int) -> None:
        """Keep only the weights: first the manifest lets go of the other files, then they go."""
        folder = self.path(step)
        try:
            manifest = read_manifest(folder, _FILE)
        except CheckpointError:  # not to be read any more: nothing in it is worth its room
            return remove(folder)
        kept = {name: entry for name, entry in manifest.items() if name in (_STATE, _WEIGHTS)}
        if kept != manifest:
            write_manifest(folder, kept)
        remove_leftovers(folder)
        for file in list(folder.iterdir()):
            if _FILE.fullmatch(file.name) and file.name not in kept:
                remove(file)

    def _check(self, step: int, only: Collection[str] | None = None) -> tuple[dict[str, Any], list[str]]:
        """Verify the files of a checkpoint, or of some of its groups; return its manifest and the names of the groups it was saved with."""
        folder = self.path(step)
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such checkpoint; there are those of steps {self.steps()}")
        manifest = read_manifest(folder, _FILE)
        names = list(manifest) if only is None else [name + _SUFFIX for name in only] + [_STATE]
        if missing := [name for name in names if name not in manifest]:
            raise CheckpointError(f"{folder}: expected {missing[0]}, which is not in this checkpoint")
        verify(folder, manifest, names)
        if _STATE not in manifest:
            raise CheckpointError(f"{folder}: damaged, no {_STATE} in its manifest")
        document = read_json(plain_file(folder / _STATE))
        groups, state = document.get("groups"), document.get("state")
        if document.get("step") != step or not isinstance(groups, list) or not isinstance(state, dict):
            raise CheckpointError(
                f"{folder}: expected the state of step {step}, found that of step {json.dumps(document.get('step'))[:40]}"
            )
        return manifest, [str(name) for name in groups]
