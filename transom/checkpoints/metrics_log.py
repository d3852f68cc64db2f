"""``metrics.jsonl``: one JSON object per line, for every logged step and validation of a run."""

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
    """The history of a run. Records of a step have it as ``step``."""

    def __init__(self, path: Path) -> None:
        """Use ``path``, which may not exist yet."""
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record; non-finite numbers become null."""
        append_line(self.path, json.dumps(replace_non_finite(record), ensure_ascii=False, allow_nan=False))

    def read(self) -> list[dict[str, Any]]:
        """Return all records, in present names; skip an incomplete last line, which a killed process can leave.

        Raises:
            CheckpointError: a line is damaged; the error gives its number.
        """
        return [migrate_metrics(json.loads(line)) for line in self._lines()]

    def truncate(self, step: int | None) -> None:
        """Remove the records after ``step``, which a resumed run writes again; None removes all."""
        if self.path.exists():
            kept = [] if step is None else [line for line in self._lines() if json.loads(line).get("step", step) <= step]
            write_file(self.path, b"".join(line + b"\n" for line in kept))

    def sync(self) -> None:
        """Sync the records to disk, before a checkpoint that relies on them."""
        if self.path.exists():
            with convert_disk_errors(self.path, "its lines are in place but may not survive a power cut"), self.path.open("rb") as file:
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
    """Replace every non-finite number by None."""
    if isinstance(value, Mapping):
        return {key: replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
