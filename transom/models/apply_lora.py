"""LoRA fine-tuning: freeze a model, add low-rank updates to its linear layers, and merge them into the weights."""

import re
from collections.abc import Collection, Mapping

from torch import Tensor, nn

from transom.config.adapter import LoraConfig
from transom.layers.lora import LoraLinear

_EXPERT_SEGMENT = re.compile(r"\.(experts\.\d+|shared)(?=\.)")


def target_module(path: str) -> str:
    """Return the name by which ``target_modules`` would select a linear layer.

    >>> target_module("decoder.blocks.0.attn.q"), target_module("decoder.blocks.0.ff.experts.3.up")
    ('attn.q', 'ff.up')
    """
    return ".".join(_EXPERT_SEGMENT.sub("", path).split(".")[-2:])


def apply_lora(model: nn.Module, config: LoraConfig, trainable: Collection[str] = ()) -> None:
    """Freeze a model in place and replace the linear layers in ``config.target_modules`` by ``LoraLinear`` layers.

    Args:
        model: model without LoRA; its outputs do not change at first, since B is initialized to zeros.
        config: LoRA configuration: target modules, rank, alpha and dropout.
        trainable: names of parameters that stay trainable, such as a new output layer.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trainable)
    for path, linear in list(model.named_modules()):
        if isinstance(linear, nn.Linear) and target_module(path) in config.target_modules:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, LoraLinear(linear, config))


def merge_lora(model: nn.Module, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters, by name, of an equivalent model without LoRA: adapted layers have the weight W + (alpha / rank) B A.

    Args:
        model: model with or without LoRA.
        trained: values by name, such as averaged weights, that replace the model's own values of these parameters.
    """
    tensors = {**dict(model.named_parameters()), **trained}
    for path, module in model.named_modules():
        if isinstance(module, LoraLinear):
            a, b = (tensors.pop(f"{path}.{name}") for name in ("lora_a", "lora_b"))
            tensors[f"{path}.weight"] = module.merged_weight(tensors[f"{path}.weight"], a, b)
    return tensors
