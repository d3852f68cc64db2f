"""``metrics.jsonl``: one JSON object per line, for every logged step, skipped step and validation of a run."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transom.config.migration import migrate_metrics
from transom.errors import CheckpointError
from transom.files.atomic_io import append_line, convert_disk_errors, write_file
from transom.files.limits import MAX_METRICS_BYTES
from transom.files.regular_files import parse_json
from transom.files.safe_read import read_bytes


class MetricsLog:
    """The metrics of a run in order of time. The field ``step`` of a record is its number of optimizer steps."""

    def __init__(self, path: Path) -> None:
        """Use the file ``path``, which may not exist yet."""
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record as a line; NaN and infinity become null."""
        append_line(self.path, json.dumps(replace_non_finite(record), ensure_ascii=False, allow_nan=False))

    def read(self) -> list[dict[str, Any]]:
        """Return all records, with former field names replaced by the present ones.

        An incomplete last line, which a killed process can leave, is skipped.

        Raises:
            CheckpointError: a line is damaged; the message gives its line number.
        """
        return [migrate_metrics(json.loads(line)) for line in self._lines()]

    def truncate(self, step: int | None) -> None:
        """Remove the records of steps after ``step``, which a resumed run writes again; None removes all records."""
        if self.path.exists():
            kept = [] if step is None else [line for line in self._lines() if json.loads(line).get("step", step) <= step]
            write_file(self.path, b"".join(line + b"\n" for line in kept))

    def sync(self) -> None:
        """Sync the file to disk with fsync; call this before saving a checkpoint, since a resumed run needs the earlier records."""
        if self.path.exists():
            with convert_disk_errors(self.path, "its lines are written but may be lost in a power failure"), self.path.open("rb") as file:
                os.fsync(file.fileno())

    def _lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        lines = read_bytes(self.path, MAX_METRICS_BYTES).split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):
            if not _is_record(line):
                raise CheckpointError(f"{self.path}:{number}: damaged, expected a JSON object; remove this line to continue")
        return lines[:-1]


def _is_record(line: bytes) -> bool:
    try:
        record = parse_json(line)
    except ValueError:
        return False
    return isinstance(record, dict) and type(record.get("step", 0)) in (int, float)


def replace_non_finite(value: Any) -> Any:
    """Return a copy of a JSON value in which None replaces NaN and infinity, at any depth."""
    if isinstance(value, Mapping):
        return {key: replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
