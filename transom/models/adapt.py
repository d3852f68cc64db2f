"""LoRA fine-tuning: freeze a model, add low-rank updates to its linear layers, and merge them into the weights."""

import re
from collections.abc import Collection, Mapping

from torch import Tensor, nn

from transom.config.adapter import Lora
from transom.layers.lora import LowRank

_OF_A_MIXTURE = re.compile(r"\.(experts\.\d+|shared)(?=\.)")


def adapt(model: nn.Module, brick: Lora, fresh: Collection[str] = ()) -> None:
    """Freeze a model in place and replace the linear layers that the configuration names by ``LowRank`` layers.

    Args:
        model: model without LoRA; its function is unchanged at first, since B starts at zero.
        brick: LoRA configuration: target modules, rank, alpha and dropout.
        fresh: names of parameters that stay trainable, such as a new output layer.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in fresh)
    for path, linear in list(model.named_modules()):
        if isinstance(linear, nn.Linear) and ".".join(_OF_A_MIXTURE.sub("", path).split(".")[-2:]) in brick.on:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, LowRank(linear, brick))


def merged(model: nn.Module, learned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of the model without LoRA that computes the same: W + (alpha / rank) B A for adapted layers.

    Args:
        model: model with or without LoRA.
        learned: values of the trainable parameters, such as averaged weights, in place of the model's own.
    """
    tensors = {**dict(model.named_parameters()), **learned}
    for path, module in model.named_modules():
        if isinstance(module, LowRank):
            a, b = (tensors.pop(f"{path}.{name}") for name in ("lora_a", "lora_b"))
            tensors[f"{path}.weight"] = module.merged(tensors[f"{path}.weight"], a, b)
    return tensors
