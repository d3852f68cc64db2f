"""The file ``adapter_config.json`` of the PEFT library: which adapters correspond to LoRA here, and their scales."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom.errors import CheckpointError

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TASK_TYPES = {"decoder": "CAUSAL_LM", "seq2seq": "SEQ_2_SEQ_LM", "text-classifier": "SEQ_CLS", "text-embedder": "FEATURE_EXTRACTION"}
"""PEFT's names of tasks by our kind of model; it has none for masked language models and images."""

MAX_RANK = 65536
PATTERNS = ("rank_pattern", "alpha_pattern")
_MODULE_NAME = re.compile(r"\^?[\w.]{1,200}")
_HARMLESS = (
    *("alora_invocation_string", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying", "eva_config"),
    *("exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "loftq_config", "lora_alpha", "lora_dropout"),
    *("lora_ga_config", "megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "revision"),
    *("runtime_config", "target_modules", "task_type", "use_rslora"),
)
"""Fields that are read here, or on which no output depends once the adapter is trained."""

_SAME_BASE = (None, True, False, "gaussian", "eva", "orthogonal")
"""Initializations that leave the weights of the base model as they are."""


@dataclass(frozen=True)
class PeftConfig:
    """Settings of a LoRA adapter in PEFT's format.

    Attributes:
        rank: rank of modules that no pattern names.
        alpha: ``lora_alpha`` of modules that no pattern names.
        dropout: dropout on the input of A.
        rslora: whether B A x is multiplied by alpha / sqrt(rank) (Kalajdzievski 2023) instead of alpha / rank.
        rank_pattern: rank by the end of a module's name.
        alpha_pattern: ``lora_alpha`` by the end of a module's name.
    """

    rank: int
    alpha: float
    dropout: float
    rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """Return the rank of a module."""
        return next((rank for end, rank in self.rank_pattern.items() if _ends_with(module, end)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of B A x in a module."""
        alpha = next((alpha for end, alpha in self.alpha_pattern.items() if _ends_with(module, end)), self.alpha)
        return alpha / (math.sqrt(self.rank_of(module)) if self.rslora else self.rank_of(module))


def _ends_with(module: str, end: str) -> bool:
    """Return whether PEFT applies a pattern to a module: its whole name, or the last parts of it."""
    return module == end.removeprefix("^") or (not end.startswith("^") and module.endswith(f".{end}"))


def read_peft_config(fields: Mapping[str, Any], path: Path) -> PeftConfig:
    """Read the settings of an adapter.

    Args:
        fields: content of the file.
        path: the file, for messages.

    Raises:
        CheckpointError: the adapter is of another kind, or uses what LoRA here does not have, or a value is damaged.
    """
    if (kind := fields.get("peft_type")) != "LORA":
        raise CheckpointError(f"{path}: peft_type: expected LORA, found {kind!r:.80}; merge other adapters into the model with PEFT first")
    changed = [name for name, value in fields.items() if name not in _HARMLESS and name not in PATTERNS and _is_set(value)]
    if fields.get("bias", "none") != "none":
        changed.append("bias")
    if fields.get("init_lora_weights") not in _SAME_BASE:
        changed.append("init_lora_weights")
    if changed:
        name = changed[0]
        raise CheckpointError(
            f"{path}: {name[:80]}: expected LoRA on whole linear layers (Hu et al. 2022), found {fields[name]!r:.80}; merge the adapter"
            " into the model with PEFT's merge_and_unload, and import the merged model"
        )
    rank = _number(fields, "r", 8, path, whole=True)
    patterns = {name: _read_pattern(fields.get(name) or {}, name, path) for name in PATTERNS}
    return PeftConfig(
        int(rank),
        _number(fields, "lora_alpha", 8, path),
        _number(fields, "lora_dropout", 0.0, path, most=1.0, zero=True),
        fields.get("use_rslora") is True,
        {end: int(value) for end, value in patterns["rank_pattern"].items()},
        patterns["alpha_pattern"],
    )


def _is_set(value: Any) -> bool:
    """Return whether a field differs from every value that means that it is not used."""
    return value is not None and value is not False and value not in ([], {}, "", 0)


def _read_pattern(found: Any, name: str, path: Path) -> dict[str, float]:
    if not isinstance(found, dict) or not all(isinstance(end, str) and _MODULE_NAME.fullmatch(end) for end in found):
        raise CheckpointError(f"{path}: {name}: expected ends of names of modules, found {found!r:.120}; save the adapter without {name}")
    return {end: _number(found, end, 0, path, whole=name == "rank_pattern") for end in found}


def _number(
    fields: Mapping[str, Any], name: str, default: float, path: Path, whole: bool = False, most: float = MAX_RANK, zero: bool = False
) -> float:
    """Return a number of the file: positive, or also 0; at most ``most``; an integer if ``whole``."""
    value = fields.get(name, default)
    accepted = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, accepted) or not (0 <= value <= most) or (value == 0 and not zero):
        kind = "an integer" if whole else "a number"
        raise CheckpointError(f"{path}: {name[:80]}: expected {kind} {'from' if zero else 'above'} 0 to {most:g}, found {value!r:.80}")
    return float(value) if not whole else value
