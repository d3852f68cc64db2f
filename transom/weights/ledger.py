"""``ledger.jsonl``: every read of a test file, so that nobody can choose a model by its test result unseen."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from transom.weights.checked import read_bytes, sha256
from transom.weights.durable import append_line

MAX_BYTES = 2**26
"""Most bytes of a ledger that are read."""


class Ledger:
    """The list of test files that were read, in order."""

    def __init__(self, path: Path) -> None:
        """Look at ``path``, which may not exist yet."""
        self.path = path

    def record(self, file: Path, verb: str) -> None:
        """Note, durably and before it happens, that ``verb`` reads the test file ``file``.

        Raises:
            DiskError: it could not be noted, so the file should not be read.
        """
        date = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"date": date, "file": str(file.absolute()), "sha256": sha256(file), "verb": verb}
        append_line(self.path, json.dumps(entry, ensure_ascii=False), sync=True)

    def read(self) -> list[dict[str, Any]]:
        """Return all entries; a line that a killed process tore is passed over."""
        if not self.path.exists():
            return []
        entries = []
        for line in read_bytes(self.path, MAX_BYTES).splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue
        return entries
