"""A model whose weights are kept while low-rank maps beside them learn, and the plain model that it amounts to."""

import re
from collections.abc import Collection, Mapping

from torch import Tensor, nn

from transom.config.adapter import Lora
from transom.layers.lora import LowRank

_OF_A_MIXTURE = re.compile(r"\.(experts\.\d+|shared)(?=\.)")


def adapt(model: nn.Module, brick: Lora, fresh: Collection[str] = ()) -> None:
    """Freeze a model and put low-rank maps, drawn from the default generator, beside those of its maps that the brick names.

    Args:
        model: plain; its maps are replaced, each by one that starts as the same.
        brick: the maps and their rank.
        fresh: names of parameters that learn all the same.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in fresh)
    for path, linear in list(model.named_modules()):
        if isinstance(linear, nn.Linear) and ".".join(_OF_A_MIXTURE.sub("", path).split(".")[-2:]) in brick.on:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, LowRank(linear, brick))


def merged(model: nn.Module, learned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give what the plain model has to hold that a model amounts to: W + (alpha / rank) B A where it is adapted.

    Args:
        model: adapted, or plain.
        learned: values of all that learns in it, which may be others than its own.
    """
    tensors = {**dict(model.named_parameters()), **learned}
    for path, module in model.named_modules():
        if isinstance(module, LowRank):
            a, b = (tensors.pop(f"{path}.{name}") for name in ("lora_a", "lora_b"))
            tensors[f"{path}.weight"] = module.merged(tensors[f"{path}.weight"], a, b)
    return tensors
