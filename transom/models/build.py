"""From a configuration to a model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from transom.config.architecture import Architecture
from transom.config.components import implementation
from transom.layers.observe import assign_addresses
from transom.models import decoder, encoder, recurrent, seq2seq, vision  # noqa: F401  # each registers its networks
from transom.models.initialise import initialise
from transom.models.network import Network


def build_model(config: Architecture) -> Network:
    """Build the network that ``config`` describes, with fresh weights from the default generator."""
    model = _build(config)
    initialise(model, config)
    return model


def build_empty(config: Architecture) -> Network:
    """Build the same with weights of any value, for saved ones to be put in: no random number is drawn, which takes longer than reading."""
    with _NoDraws():
        return _build(config)


def _build(config: Architecture) -> Network:
    model = implementation(config)(config)
    assign_addresses(model)
    return model


class _NoDraws(TorchFunctionMode):
    """Leaves out what PyTorch's layers draw when they are made."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func in (nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_) else func(*args, **kwargs)
