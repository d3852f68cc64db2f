"""Names of a run's files, and recognition of run folders. This module imports no PyTorch."""

import os
from pathlib import Path

from transom.errors import CheckpointError
from transom.files.limits import MAX_CONFIG_BYTES
from transom.files.safe_read import read_json

RECIPE, CONFIG, WEIGHTS, TOKENIZER = "recipe.toml", "config.json", "model.safetensors", "tokenizer.json"
BASE, ADAPTER = "base.safetensors", "adapter.safetensors"
"""Weights of the original run and of the adapter, in a run that trains an adapter."""

METRICS, ACCESS_LOG, CHECKPOINTS, REPORT, CARD = "metrics.jsonl", "ledger.jsonl", "checkpoints", "report.html", "README.md"
LOCK = ".transom.lock"
"""Locked while a training writes the folder; its presence marks a run folder."""

FILES = (RECIPE, CONFIG, WEIGHTS, BASE, ADAPTER, TOKENIZER, METRICS, ACCESS_LOG, REPORT, CARD)
"""Files owned by a run."""


def contains_run(path: Path) -> bool:
    """Return whether a folder holds a run: a recipe, a model or checkpoints beside the lock file."""
    return is_run_folder(path) and any((path / name).exists() for name in (*FILES, CHECKPOINTS) if name != ACCESS_LOG)


def is_run_folder(path: Path) -> bool:
    """Return whether a folder is a run folder, even if it was copied without hidden files."""
    if os.path.lexists(path / LOCK):
        return True
    try:
        return "model" in read_json(path / CONFIG, MAX_CONFIG_BYTES)
    except CheckpointError:
        return False
