"""Parameter count of low-rank adapters (LoRA), from the configuration alone."""

import re
from typing import get_args

from torch import Tensor

from transom.config.adapter import Adapted, Lora
from transom.config.architecture import Architecture, Transformer
from transom.errors import ConfigError
from transom.planning.parameters import totals


def adaptable(config: Architecture) -> dict[str, int]:
    """Return the summed d_in + d_out of the blocks' linear maps by their name in ``training.adapter.on``; empty unless a Transformer."""
    found = dict[str, int]()
    for name, size in totals(config, _rows_and_columns).items() if isinstance(config, Transformer) else ():
        path = re.sub(r"\.(experts|shared)\.", ".", name).removesuffix(".weight").split(".")
        if (short := ".".join(path[-2:])) in get_args(Adapted):
            found[short] = found.get(short, 0) + size
    return found


def count_adapters(config: Architecture, brick: Lora) -> int:
    """Count the parameters of all matrices A and B: rank * (d_in + d_out) per adapted linear map.

    Raises:
        ConfigError: the model has no such maps, or has running statistics that training would change.
    """
    there = adaptable(config)
    if not there:
        raise ConfigError(f"training.adapter: expected a Transformer, whose linear maps can be adapted, found {config.kind}; remove it")
    if isinstance(config, Transformer) and config.norm.kind == "batchnorm":
        raise ConfigError(
            "training.adapter: expected a base model that stays unchanged, found model.norm = 'batchnorm', whose running statistics would"
            " change; remove it"
        )
    if missing := [name for name in brick.on if name not in there]:
        raise ConfigError(f"training.adapter.on: expected maps of this {config.kind} ({', '.join(there)}), found {missing[0]}; remove it")
    return brick.rank * sum(there[name] for name in set(brick.on))


def _rows_and_columns(parameter: Tensor) -> int:
    return sum(parameter.shape)
