"""Names of a run's files, and recognition of run folders. This module imports no PyTorch."""

import os
from pathlib import Path

from transom.errors import CheckpointError
from transom.files.limits import MAX_CONFIG_BYTES
from transom.files.safe_read import read_json

RECIPE, CONFIG, WEIGHTS, TOKENIZER = "recipe.toml", "config.json", "model.safetensors", "tokenizer.json"
INPUT_PROFILE = "input_profile.json"
"""Words and lengths of the training texts, to warn of inputs that differ from them."""

RESULT = "result.json"
"""Metrics of the saved weights and of a trivial predictor, and warnings about the run; written when training ends."""

BASE, ADAPTER = "base.safetensors", "adapter.safetensors"
"""Weights of the original run and of the adapter, in a run that trains an adapter."""

IMPORTED = "imported.json"
"""Origin and settings of a model that was imported from another library."""

METRICS, ACCESS_LOG, CHECKPOINTS, REPORT, CARD = "metrics.jsonl", "ledger.jsonl", "checkpoints", "report.html", "README.md"
LOCK = ".transom.lock"
"""Lock file, locked while a training run writes the folder; its presence marks a run folder."""

FILES = (RECIPE, CONFIG, IMPORTED, WEIGHTS, BASE, ADAPTER, TOKENIZER, INPUT_PROFILE, METRICS, RESULT, ACCESS_LOG, REPORT, CARD)
"""Files that a run writes, besides its checkpoints and lock file."""


def contains_run(path: Path) -> bool:
    """Return whether a run folder has checkpoints or any of ``FILES`` except the access log, which outlives an overwritten run."""
    return is_run_folder(path) and any((path / name).exists() for name in (*FILES, CHECKPOINTS) if name != ACCESS_LOG)


def is_run_folder(path: Path) -> bool:
    """Return whether a folder has a lock file or, if copied without hidden files, a ``config.json`` with a model."""
    if os.path.lexists(path / LOCK):
        return True
    try:
        return "model" in read_json(path / CONFIG, MAX_CONFIG_BYTES)
    except CheckpointError:
        return False
