"""The names of a run's files, and how to tell a run's folder; this module needs no PyTorch."""

import os
from pathlib import Path

from transom.errors import CheckpointError
from transom.files.limits import MAX_CONFIG_BYTES
from transom.files.safe_read import read_json

RECIPE, CONFIG, WEIGHTS, TOKENIZER = "recipe.toml", "config.json", "model.safetensors", "tokenizer.json"
BASE, ADAPTER = "base.safetensors", "adapter.safetensors"
"""Of a run that adapts another's weights: those weights, which it keeps, and what it learned beside them."""

METRICS, ACCESS_LOG, CHECKPOINTS, REPORT, CARD = "metrics.jsonl", "ledger.jsonl", "checkpoints", "report.html", "README.md"
LOCK = ".transom.lock"
"""Held while a training writes the folder; its presence marks the folder as a run's."""

FILES = (RECIPE, CONFIG, WEIGHTS, BASE, ADAPTER, TOKENIZER, METRICS, ACCESS_LOG, REPORT, CARD)
"""The files that a run owns."""


def contains_run(path: Path) -> bool:
    """Tell whether a folder is a run's: it has a recipe, a model or checkpoints beside the mark of a training."""
    return is_run_folder(path) and any((path / name).exists() for name in (*FILES, CHECKPOINTS) if name != ACCESS_LOG)


def is_run_folder(path: Path) -> bool:
    """Tell a run's folder, also one that was copied without its hidden files, from any other."""
    if os.path.lexists(path / LOCK):
        return True
    try:
        return "model" in read_json(path / CONFIG, MAX_CONFIG_BYTES)
    except CheckpointError:
        return False
