"""The run folder: output of a training, and everything needed to load the model."""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from transom.checkpoints.checkpoint import Checkpoints
from transom.checkpoints.evaluation_access_log import EvaluationAccessLog
from transom.checkpoints.metrics_log import MetricsLog
from transom.checkpoints.run_files import (
    ACCESS_LOG,
    CHECKPOINTS,
    CONFIG,
    FILES,
    LOCK,
    METRICS,
    RECIPE,
    WEIGHTS,
    contains_run,
    is_run_folder,
)
from transom.checkpoints.tensors import Origin, load_weights_into, read_metadata, read_specs, read_weights, serialize_tensors
from transom.config.architecture import ModelConfig
from transom.config.error_messages import error_path
from transom.config.migration import migrate_tables
from transom.config.model import AnyModel
from transom.config.plugins import PluginRecord, require_plugins
from transom.config.task_registry import recipes_by_task
from transom.errors import CheckpointError, ConfigError
from transom.files.atomic_io import (
    FORMAT_VERSION,
    Content,
    convert_disk_errors,
    json_bytes,
    make_folder,
    remove,
    remove_partial_files,
    write_file,
)
from transom.files.file_lock import lock_file, require_file_locks
from transom.files.limits import MAX_CONFIG_BYTES
from transom.files.safe_read import read_bytes, read_json
from transom.planning.parameters import count_parameters, position_table_error

_RUN_ID = re.compile(r"[0-9a-f]{32}")


class RunFolder:
    """A run folder: ``create`` opens it for writing and locks it until ``close`` or exit; ``open`` opens it for reading."""

    def __init__(self, path: Path, lock_file: int | None = None, created: bool = False) -> None:
        """Use ``create`` or ``open`` instead; a ``created`` folder is removed on ``close`` if it is still empty."""
        self.path = path
        self.checkpoints = Checkpoints(path / CHECKPOINTS, lambda: self.run_id)
        self.metrics = MetricsLog(path / METRICS)
        self.access_log = EvaluationAccessLog(path / ACCESS_LOG)
        self._lock, self._created = lock_file, created

    @cached_property
    def run_id(self) -> str | None:
        """Id of the run, which is in every tensor file it writes; None before ``config.json`` is written and in format 1.

        Raises:
            CheckpointError: ``config.json`` is damaged.
        """
        if not (self.path / CONFIG).exists():
            return None
        run = read_json(self.path / CONFIG, MAX_CONFIG_BYTES).get("run")
        if run is not None and not (isinstance(run, str) and _RUN_ID.fullmatch(run)):
            raise CheckpointError(f"{self.path / CONFIG}: run: expected 32 hexadecimal digits, found {run!r:.80}")
        return run

    @property
    def has_recipe(self) -> bool:
        """Whether the folder has a recipe; a broken link is an unreadable recipe, not a missing one."""
        return os.path.lexists(self.path / RECIPE)

    @classmethod
    def create(cls, path: Path, resume: bool = False, overwrite: bool = False) -> Self:
        """Create a run folder, or open an existing one for writing.

        Args:
            path: the folder, new or empty; its parents are created.
            resume: continue an existing run.
            overwrite: remove an existing run, except its access log and files that are not a run's.

        Raises:
            ConfigError: the folder holds a run and neither option is set, another training is writing it, it is not a run folder, or this
                system cannot lock files.
            DiskError: the folder cannot be written.
        """
        if re.search("[\ud800-\udfff]", str(path)):
            raise ConfigError(f"{str(path)!a}: expected a folder whose name is UTF-8, found other bytes in it; give another --out")
        require_file_locks()
        lock_descriptor = None
        while lock_descriptor is None:  # another process may remove what it made between any two of these lines
            created = not path.exists()
            make_folder(path)
            names = _list_names(path)
            if names and LOCK not in names and not is_run_folder(path):
                raise ConfigError(f"{path} is not empty and not a run's folder (it holds {names[0][:80]!r}); give another --out")
            lock_descriptor = _acquire_lock(path)
        run = cls(path, lock_descriptor, created)
        try:
            for folder in (path, run.checkpoints.folder):
                if folder.is_dir():
                    remove_partial_files(folder)
            if contains_run(path) and not resume:
                if not overwrite:
                    raise ConfigError(
                        f"{path} holds a run already ({run._checkpoint_summary()}); add --resume to continue it or give another --out"
                    )
                for name in (*FILES, CHECKPOINTS):
                    if name != ACCESS_LOG and os.path.lexists(path / name):
                        remove(path / name)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a run folder for reading, without a lock.

        Raises:
            CheckpointError: there is no run folder.
        """
        if not path.is_dir():
            raise CheckpointError(
                f"{path}: expected a run's folder (the --out of transom train), found {'a file' if path.exists() else 'nothing'}"
            )
        if not (path / CONFIG).exists():
            raise CheckpointError(f"{path}: not a run's folder, or one whose training has not begun: it has no {CONFIG}")
        return cls(path)

    def close(self) -> None:
        """Release the lock, and remove the folder if this run created it and wrote nothing.

        The lock file is deleted while locked: another process that has opened it finds, once it holds the lock, that the file has no name.
        """
        if self._lock is None:
            return
        if self._created and _list_names(self.path) == [LOCK] and _is_named(self.path / LOCK, self._lock):
            (self.path / LOCK).unlink()
            with suppress(OSError):  # another process has put its own lock there
                self.path.rmdir()
        os.close(self._lock)
        self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release the lock."""
        self.close()

    def write(self, name: str, content: Content) -> None:
        """Write one of the run's files durably and atomically.

        Args:
            name: one of ``FILES``.
            content: its bytes, or a function that returns them.
        """
        assert name in FILES, f"expected one of {FILES}, found {name!r}"
        write_file(self.path / name, content)

    def read(self, name: str) -> bytes:
        """Read one of the run's files if it is a regular file within the size limit."""
        assert name in FILES, f"expected one of {FILES}, found {name!r}"
        return read_bytes(self.path / name)

    def require_plugins(self) -> None:
        """Raise an error if a plugin that the run was trained with is not loaded or has changed; call this before reading its recipe.

        Raises:
            CheckpointError: ``config.json`` is damaged.
            ConfigError: a plugin is missing or has changed.
        """
        if (path := self.path / CONFIG).exists() and (raw := read_json(path, MAX_CONFIG_BYTES).get("plugins")) is not None:
            try:
                require_plugins(TypeAdapter(list[PluginRecord]).validate_python(raw), str(self.path))
            except ValidationError as error:
                raise CheckpointError(f"{path}: plugins: expected a list of name and sha256 each, found {raw!r:.80}") from error

    def write_config(self, config: ModelConfig, run_id: str, plugins: Sequence[PluginRecord] = ()) -> None:
        """Write ``config.json``, which defines the model's shape.

        Args:
            config: the model's configuration.
            run_id: 32 hexadecimal digits; a resumed run keeps its own.
            plugins: plugins that are needed to load the run.

        Raises:
            ConfigError: the resumed run has another model.
        """
        if (self.path / CONFIG).exists():
            old, new = self._read_config().model_dump(mode="json"), config.model_dump(mode="json")
            if changed := [name for name in new if old.get(name) != new[name]]:
                name = changed[0]
                raise ConfigError(
                    f"{self.path / CONFIG}: the run has model.{name} = {json.dumps(old.get(name))}, the recipe {json.dumps(new[name])};"
                    " a resumed run keeps its model: change the recipe back or give another --out"
                )
        document: dict[str, Any] = {"format_version": FORMAT_VERSION, "run": self.run_id or run_id, "model": config.model_dump(mode="json")}
        if plugins:
            document["plugins"] = [plugin.model_dump() for plugin in plugins]
        self.write(CONFIG, json_bytes(document))
        vars(self).pop("run_id", None)  # read anew from now on

    def load_config(self) -> ModelConfig:
        """Read the model's configuration, and check that it needs no more memory than the weights file justifies.

        Raises:
            CheckpointError: the file is damaged, there are no weights yet, or it defines more parameters or a larger table of positions
                than the weights file has.
            ConfigError: a plugin is missing or has changed.
        """
        config, weights = self._read_config(), self._weights_path()
        try:
            asked = count_parameters(config).total
        except ConfigError as error:
            raise CheckpointError(f"{self.path / CONFIG}: {error}") from None
        found = sum(math.prod(spec.shape) for spec in read_specs(weights).values())
        if asked > found:
            raise CheckpointError(f"{weights}: expected {asked:,} parameters by {CONFIG}, found {found:,}; they belong to different models")
        if (problem := position_table_error(config)) is not None:
            raise CheckpointError(f"{self.path / CONFIG}: {problem}")
        return config

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], step: int) -> None:
        """Write a file of tensors, with their hash, the run's id and ``step`` in its metadata."""
        origin = None if self.run_id is None else Origin(self.run_id, step)
        self.write(name, lambda: serialize_tensors(tensors, origin))

    def read_weights(self, name: str) -> dict[str, Tensor]:
        """Read one of the run's files of weights.

        Raises:
            CheckpointError: the file is missing, damaged, of another run, or has non-finite values.
        """
        self._require_same_run(name)
        return read_weights(self.path / name)

    def load_weights(self, model: nn.Module) -> None:
        """Copy the run's weights into ``model``, built from ``load_config``.

        Raises:
            CheckpointError: the weights are missing, damaged, or of another model.
        """
        path = self._weights_path()
        self._require_same_run(WEIGHTS)
        load_weights_into(model, path)

    def _weights_path(self) -> Path:
        if not (self.path / WEIGHTS).exists():
            raise CheckpointError(
                f"{self.path}: no {WEIGHTS} yet; it is written at the first validation; continue the training with --resume"
            )
        return self.path / WEIGHTS

    def _require_same_run(self, name: str) -> None:
        """Raise an error if another run wrote a file of tensors; files of format 1 have no run id."""
        origin = read_metadata(self.path / name).origin
        if origin is not None and self.run_id is not None and origin.run != self.run_id:
            raise CheckpointError(
                f"{self.path / name}: expected weights of run {self.run_id[:8]}, as {CONFIG} says, found those of another run"
                f" ({origin.run[:8]}); put the run's own file back"
            )

    def _read_config(self) -> ModelConfig:
        self.require_plugins()
        recipes_by_task()  # each registers the networks that it alone has
        path = self.path / CONFIG
        raw = read_json(path, MAX_CONFIG_BYTES).get("model")
        try:
            config: ModelConfig = TypeAdapter(AnyModel).validate_python(migrate_tables(raw, ("model",)) if isinstance(raw, dict) else raw)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(["model", *error_path(first, raw if isinstance(raw, dict) else {})])
            raise CheckpointError(
                f"{path}: {field[:200]}: expected what transom writes, found {first['input']!r:.80} ({first['msg'][:200]})"
            ) from error
        if missing := [name for name in (*config.VOCABULARIES, *config.FROM_DATA) if not getattr(config, name)]:
            raise CheckpointError(f"{path}: expected model.{missing[0]}, found none")
        return config

    def _checkpoint_summary(self) -> str:
        steps = self.checkpoints.steps()
        return f"newest checkpoint: step {steps[-1]}" if steps else "no checkpoint yet"


def _list_names(path: Path) -> list[str]:
    """List the names in a folder; empty if it does not exist."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except FileNotFoundError:
        return []


def _is_named(path: Path, descriptor: int) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _acquire_lock(path: Path) -> int | None:
    """Lock a run folder for this process and return the descriptor of the lock file; None if the folder or the file was removed.

    A lock belongs to a file, not to its name. The name is therefore looked up again once the lock is held: if it is gone or names another
    file, the next process would lock that other file.
    """
    with convert_disk_errors(path / LOCK):
        try:
            descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            return None
        try:
            lock_file(descriptor, wait=False)
            if not _is_named(path / LOCK, descriptor):
                os.close(descriptor)
                return None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}".encode())
        except BlockingIOError as error:
            holder = os.read(descriptor, 100).decode(errors="replace")
            os.close(descriptor)
            raise ConfigError(
                f"{path}: another training is writing it ({holder!r}); wait for it, stop it, or give another --out"
            ) from error
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
