"""``ledger.jsonl`` records every read of a test file, so that selecting a model by its test result leaves a trace."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from transom.files.atomic_io import append_line
from transom.files.limits import MAX_EVALUATION_LOG_BYTES
from transom.files.regular_files import parse_json
from transom.files.safe_read import file_sha256, read_bytes


class EvaluationAccessLog:
    """The log of test files that were read to evaluate a run, in order."""

    def __init__(self, path: Path) -> None:
        """Use the log file ``path``, which may not exist yet."""
        self.path = path

    def record(self, file: Path, command: str) -> None:
        """Record durably, before the read, that ``command`` reads a test file or a folder of test files.

        Raises:
            DiskError: the entry could not be written, so the file must not be read.
        """
        date = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"date": date, "file": str(file.absolute()), "sha256": _hash_path(file), "command": command}
        append_line(self.path, json.dumps(entry, ensure_ascii=False), sync=True)

    def read(self) -> list[dict[str, Any]]:
        """Return all entries (``date``, ``file``, ``sha256``, ``command``); skip a line that a killed process left incomplete."""
        if not self.path.exists():
            return []
        entries = []
        for line in read_bytes(self.path, MAX_EVALUATION_LOG_BYTES).splitlines():
            try:
                entries.append(parse_json(line))
            except ValueError:
                continue
        return entries


def _hash_path(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and hashes of all files in a folder."""
    if not path.is_dir():
        return file_sha256(path)
    total = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()):
        total.update(f"{file.relative_to(path).as_posix()}\0{file_sha256(file)}\n".encode(errors="surrogateescape"))
    return total.hexdigest()
