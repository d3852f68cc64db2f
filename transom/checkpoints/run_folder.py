"""The run folder: the output of a training run, with all files that are needed to load its model."""

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
    """A run folder.

    ``create`` opens a folder for writing and locks it until ``close`` or the end of a ``with`` block. ``open`` opens it for reading.
    """

    def __init__(self, path: Path, lock_file: int | None = None, created: bool = False) -> None:
        """Use ``create`` or ``open`` instead; ``close`` removes a ``created`` folder that is still empty."""
        self.path = path
        self.checkpoints = Checkpoints(path / CHECKPOINTS, lambda: self.run_id)
        self.metrics = MetricsLog(path / METRICS)
        self.access_log = EvaluationAccessLog(path / ACCESS_LOG)
        self._lock, self._created = lock_file, created

    @cached_property
    def run_id(self) -> str | None:
        """Id of the run, which the metadata of its tensor files repeats; None before ``config.json`` is written and in format 1.

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
        """Whether the folder has a ``recipe.toml``, even if that is a broken link."""
        return os.path.lexists(self.path / RECIPE)

    @classmethod
    def create(cls, path: Path, resume: bool = False, overwrite: bool = False, job: str = "") -> Self:
        """Create a run folder, or open an existing one for writing.

        Args:
            path: a new or empty folder, or the folder of an existing run; missing parents are created.
            resume: continue the existing run.
            overwrite: remove the files of the existing run, except its access log; other files stay.
            job: identifies what has started this process and may start it again; empty if nothing has. If another process of ``job`` was
                the last to write to the folder, this one resumes its run, as with ``resume``.

        Raises:
            ConfigError: the folder holds a run and neither ``resume`` nor ``overwrite`` is set, another training run is writing to it, it
                holds other files and no run, or this system cannot lock files.
            DiskError: the folder cannot be written.
        """
        if re.search("[\ud800-\udfff]", str(path)):
            raise ConfigError(f"{str(path)!a}: expected a folder name in UTF-8, found other bytes; give another --out")
        require_file_locks()
        lock = None
        while lock is None:  # another process may remove what it made between any two of these lines
            created = not path.exists()
            make_folder(path)
            names = _list_names(path)
            if names and LOCK not in names and not is_run_folder(path):
                raise ConfigError(f"{path}: expected an empty folder or a run folder, found the file {names[0][:80]!r}; give another --out")
            lock = _acquire_lock(path)
        descriptor, last_holder = lock
        if job and last_holder.endswith(f", {job}") and last_holder != f"{_holder()}, {job}":
            resume, overwrite = True, False
        run = cls(path, descriptor, created)
        try:
            for folder in (path, run.checkpoints.folder):
                if folder.is_dir():
                    remove_partial_files(folder)
            if resume and (path / CONFIG).exists() and "average" in read_json(path / CONFIG, MAX_CONFIG_BYTES):
                raise ConfigError(f"{path}: expected a run to resume, found the average of checkpoints; train on from it with --init-from")
            if contains_run(path) and not resume:
                if not overwrite:
                    raise ConfigError(
                        f"{path} holds a run already ({run._checkpoint_summary()}); add --resume to continue that run, or give another"
                        " --out"
                    )
                for name in (*FILES, CHECKPOINTS):
                    if name != ACCESS_LOG and os.path.lexists(path / name):
                        remove(path / name)
            if job:
                with convert_disk_errors(path / LOCK):
                    _write_holder(descriptor, job)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a run folder for reading, without a lock.

        Raises:
            CheckpointError: the folder does not exist or has no ``config.json``.
        """
        if not path.is_dir():
            raise CheckpointError(
                f"{path}: expected a run folder (the --out of transom train), found {'a file' if path.exists() else 'nothing'}"
            )
        if not (path / CONFIG).exists():
            raise CheckpointError(
                f"{path}: expected a run folder with {CONFIG}, found none; give the --out of a training run that has started"
            )
        return cls(path)

    def close(self) -> None:
        """Release the lock, and remove the folder if this run created it and wrote nothing.

        The lock file is deleted while it is locked. Another process that waits with the file open notices, once it holds the lock, that the
        file is gone, and tries again.
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
            content: the file's bytes, or a function that returns them.
        """
        assert name in FILES, f"expected one of {FILES}, found {name!r}"
        write_file(self.path / name, content)

    def read(self, name: str) -> bytes:
        """Return the bytes of one of ``FILES``; raise CheckpointError if it is missing, not a regular file, or too large."""
        assert name in FILES, f"expected one of {FILES}, found {name!r}"
        return read_bytes(self.path / name)

    def require_plugins(self) -> None:
        """Raise an error if a plugin that the run was trained with is not loaded or has changed; call this before reading the run's recipe.

        Raises:
            CheckpointError: ``config.json`` is damaged.
            ConfigError: a plugin is missing or has changed.
        """
        if (path := self.path / CONFIG).exists() and (raw := read_json(path, MAX_CONFIG_BYTES).get("plugins")) is not None:
            try:
                require_plugins(TypeAdapter(list[PluginRecord]).validate_python(raw), str(self.path))
            except ValidationError as error:
                raise CheckpointError(f"{path}: plugins: expected a list of tables with name and sha256, found {raw!r:.80}") from error

    def write_config(self, config: ModelConfig, run_id: str, plugins: Sequence[PluginRecord] = ()) -> None:
        """Write ``config.json``: the model's configuration, the run id and the plugins.

        Args:
            config: the model's configuration.
            run_id: id of a new run, 32 hexadecimal digits; ignored if the run is resumed, since its id is kept.
            plugins: plugins that are needed to load the run.

        Raises:
            ConfigError: the run is resumed and ``config`` differs from the configuration of its model.
        """
        if (self.path / CONFIG).exists():
            old, new = self._read_config().model_dump(mode="json"), config.model_dump(mode="json")
            if changed := [name for name in new if old.get(name) != new[name]]:
                name = changed[0]
                raise ConfigError(
                    f"{self.path / CONFIG}: expected model.{name} = {json.dumps(old.get(name))} as in this run, found"
                    f" {json.dumps(new[name])} in the recipe; a resumed run keeps its model: change the recipe back or give another --out"
                )
        document: dict[str, Any] = {"format_version": FORMAT_VERSION, "run": self.run_id or run_id, "model": config.model_dump(mode="json")}
        if plugins:
            document["plugins"] = [plugin.model_dump() for plugin in plugins]
        self.write(CONFIG, json_bytes(document))
        vars(self).pop("run_id", None)  # so that the next access reads the file

    def write_average(self, run: str, steps: Sequence[int]) -> None:
        """Add to ``config.json`` that the weights are the mean of the checkpoints of ``run`` at ``steps``; no such run is resumed."""
        self.write(CONFIG, json_bytes({**read_json(self.path / CONFIG, MAX_CONFIG_BYTES), "average": {"run": run, "steps": list(steps)}}))

    def load_config(self) -> ModelConfig:
        """Return the model's configuration, after checking that the model needs no more memory than its weights file justifies.

        Raises:
            CheckpointError: ``config.json`` is damaged, there are no weights yet, the model has more parameters than the weights file, or
                its computed position table is too large for its number of parameters.
            ConfigError: a plugin is missing or has changed.
        """
        config, weights = self._read_config(), self._weights_path()
        try:
            asked = count_parameters(config).total
        except ConfigError as error:
            raise CheckpointError(f"{self.path / CONFIG}: {error}") from None
        found = sum(math.prod(spec.shape) for spec in read_specs(weights).values())
        if asked > found:
            raise CheckpointError(
                f"{weights}: expected the {asked:,} parameters of {CONFIG}, found {found:,}; the two files belong to different models"
            )
        if (problem := position_table_error(config)) is not None:
            raise CheckpointError(f"{self.path / CONFIG}: {problem}")
        return config

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], step: int) -> None:
        """Write tensors to one of ``FILES``, with their hash, the run's id and ``step`` in its metadata."""
        origin = None if self.run_id is None else Origin(self.run_id, step)
        self.write(name, lambda: serialize_tensors(tensors, origin))

    def read_weights(self, name: str) -> dict[str, Tensor]:
        """Read one of the run's weight files and return its tensors by name.

        Raises:
            CheckpointError: the file is missing, damaged, of another run, or has non-finite values.
        """
        self._require_same_run(name)
        return read_weights(self.path / name)

    def load_weights(self, model: nn.Module) -> None:
        """Copy the run's weights into ``model``, which must be built from ``load_config``.

        Raises:
            CheckpointError: the weights are missing, damaged, or of another model.
        """
        path = self._weights_path()
        self._require_same_run(WEIGHTS)
        load_weights_into(model, path)

    @property
    def weights_step(self) -> int | None:
        """Number of optimizer steps after which the run's weights were saved; None if they have format 1, which does not say it.

        Raises:
            CheckpointError: the run has no weights.
        """
        origin = read_metadata(self._weights_path()).origin
        return None if origin is None else origin.step

    def _weights_path(self) -> Path:
        if not (self.path / WEIGHTS).exists():
            raise CheckpointError(
                f"{self.path}: expected {WEIGHTS}, found none, since the run has no validation yet; continue the run with --resume"
            )
        return self.path / WEIGHTS

    def _require_same_run(self, name: str) -> None:
        """Raise an error if another run wrote a tensor file; files of format 1 have no run id and are accepted."""
        origin = read_metadata(self.path / name).origin
        if origin is not None and self.run_id is not None and origin.run != self.run_id:
            raise CheckpointError(
                f"{self.path / name}: expected weights of run {self.run_id[:8]} ({CONFIG}), found weights of run {origin.run[:8]};"
                " restore this run's own file"
            )

    def _read_config(self) -> ModelConfig:
        self.require_plugins()
        recipes_by_task()  # the import of each task registers its models
        path = self.path / CONFIG
        raw = read_json(path, MAX_CONFIG_BYTES).get("model")
        try:
            config: ModelConfig = TypeAdapter(AnyModel).validate_python(migrate_tables(raw, ("model",)) if isinstance(raw, dict) else raw)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(["model", *error_path(first, raw if isinstance(raw, dict) else {})])
            raise CheckpointError(
                f"{path}: {field[:200]}: expected a value that transom writes, found {first['input']!r:.80} ({first['msg'][:200]})"
            ) from error
        if missing := [
            name for name in (*config.VOCABULARIES, *config.FROM_DATA) if not getattr(config, name) and getattr(config, name) is not False
        ]:
            raise CheckpointError(f"{path}: expected model.{missing[0]}, found none")
        return config

    def _checkpoint_summary(self) -> str:
        steps = self.checkpoints.steps()
        return f"newest checkpoint: step {steps[-1]}" if steps else "no checkpoint yet"


def _list_names(path: Path) -> list[str]:
    """Return the sorted names of the files in a folder; empty if the folder does not exist."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except FileNotFoundError:
        return []


def _is_named(path: Path, descriptor: int) -> bool:
    """Return whether ``path`` names the open file ``descriptor``."""
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _write_holder(descriptor: int, job: str = "") -> None:
    """Write into the lock file which process holds it, and what has started that process, if that is known."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{_holder()}{f', {job}' if job else ''}".encode(), 0)


def _holder() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


def _acquire_lock(path: Path) -> tuple[int, str] | None:
    """Lock a run folder for this process; return the descriptor of the lock file and who held it last, or None if either was removed.

    A lock applies to an open file, not to its name. Once the lock is held, the name is therefore looked up again: if it is gone or names
    another file, other processes could lock a new file at the same time.
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
            last_holder = os.pread(descriptor, 1000, 0).decode(errors="replace")
            _write_holder(descriptor)
        except BlockingIOError as error:
            holder = os.read(descriptor, 100).decode(errors="replace")
            os.close(descriptor)
            raise ConfigError(
                f"{path}: another training run is writing to this folder ({holder!r}); wait for its end, stop it, or give another --out"
            ) from error
        except OSError:
            os.close(descriptor)
            raise
        return descriptor, last_holder
