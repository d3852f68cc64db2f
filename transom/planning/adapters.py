"""What low-rank adaptation adds to a model, from the configuration alone."""

import re
from typing import get_args

from torch import Tensor

from transom.config.adapter import Adapted, Lora
from transom.config.architecture import Architecture, Transformer
from transom.errors import ConfigError
from transom.planning.parameters import totals


def adaptable(config: Architecture) -> dict[str, int]:
    """Sum rows and columns of the maps of all blocks, by the name that ``training.adapter.on`` has for them; only Transformers have any."""
    found = dict[str, int]()
    for name, size in totals(config, _rows_and_columns).items() if isinstance(config, Transformer) else ():
        path = re.sub(r"\.(experts|shared)\.", ".", name).removesuffix(".weight").split(".")
        if (short := ".".join(path[-2:])) in get_args(Adapted):
            found[short] = found.get(short, 0) + size
    return found


def count_adapters(config: Architecture, brick: Lora) -> int:
    """Count the numbers of all A and B: a map of d_in to d_out columns has rank * (d_in + d_out).

    Raises:
        ConfigError: the model has no such maps, or statistics that would move beside them.
    """
    there = adaptable(config)
    if not there:
        raise ConfigError(f"training.adapter: expected a Transformer, whose maps can be adapted, found {config.kind}; leave it out")
    if isinstance(config, Transformer) and config.norm.kind == "batchnorm":
        raise ConfigError(
            "training.adapter: expected a model that stays as it was beside what learns, found model.norm = 'batchnorm', whose running"
            " statistics go on; leave it out"
        )
    if missing := [name for name in brick.on if name not in there]:
        raise ConfigError(f"training.adapter.on: expected maps of this {config.kind}, {', '.join(there)}, found {missing[0]}; remove it")
    return brick.rank * sum(there[name] for name in set(brick.on))


def _rows_and_columns(parameter: Tensor) -> int:
    return sum(parameter.shape)
