"""Parameter count of low-rank adapters (LoRA), from the configuration alone."""

import re
from typing import get_args

from torch import Tensor

from transom.config.adapter import LoraConfig, TargetModule
from transom.config.architecture import ModelConfig, TransformerConfig
from transom.errors import ConfigError
from transom.planning.parameters import sum_by_name


def adaptable_modules(config: ModelConfig) -> dict[str, int]:
    """Return the linear maps that LoRA can adapt, by their names in ``training.adapter.target_modules``.

    Each value is d_in + d_out, summed over all blocks of the model. The dictionary is empty for models other than Transformers.
    """
    found = dict[str, int]()
    for name, size in sum_by_name(config, _sum_of_dimensions).items() if isinstance(config, TransformerConfig) else ():
        path = re.sub(r"\.(experts|shared)\.", ".", name).removesuffix(".weight").split(".")
        if (module_name := ".".join(path[-2:])) in get_args(TargetModule):
            found[module_name] = found.get(module_name, 0) + size
    return found


def count_adapter_parameters(config: ModelConfig, adapter: LoraConfig) -> int:
    """Count the parameters of all matrices A and B: rank * (d_in + d_out) per adapted linear map.

    Raises:
        ConfigError: the model lacks one of the adapter's target modules, is no Transformer, or has batch norm.
    """
    available = adaptable_modules(config)
    if not available:
        raise ConfigError(
            f"training.adapter: expected a Transformer, whose linear maps can be adapted, found {config.kind!r}; remove training.adapter"
        )
    if isinstance(config, TransformerConfig) and config.norm.kind == "batchnorm":
        raise ConfigError(
            "training.adapter: expected a base model that stays unchanged, found model.norm = 'batchnorm', whose running statistics would"
            " change; remove training.adapter, or use a base model with another norm"
        )
    if missing := [name for name in adapter.target_modules if name not in available]:
        raise ConfigError(
            f"training.adapter.target_modules: expected maps of this {config.kind} ({', '.join(available)}), found"
            f" {missing[0]!r}; remove this name"
        )
    return adapter.rank * sum(available[name] for name in set(adapter.target_modules))


def _sum_of_dimensions(parameter: Tensor) -> int:
    return sum(parameter.shape)
