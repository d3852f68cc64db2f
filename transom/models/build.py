"""Build models from configurations."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from transom.config.architecture import ModelConfig
from transom.config.component_registry import implementation
from transom.config.recipe import parse_model_config
from transom.errors import ConfigError
from transom.layers.observe import assign_addresses
from transom.models import decoder, encoder, recurrent, seq2seq, vision  # noqa: F401  # each registers its models
from transom.models.base import Network
from transom.models.initialize import initialize


def build(config: ModelConfig | Mapping[str, Any]) -> Network:
    """Build a model with initial weights from the default random generator.

    Args:
        config: model configuration (a class of ``transom.config``), or its fields as a mapping, such as
            ``{"kind": "decoder", "vocab_size": 100, "d_model": 64}`` or ``{"preset": "gpt2", "n_layers": 2}``.

    Raises:
        ConfigError: a field is unknown or invalid, or a size is missing that training would take from tokenizer or data.
    """
    if not isinstance(config, ModelConfig):
        config = parse_model_config(config)
    if missing := [name for name in (*config.VOCABULARIES, "classes") if getattr(config, name, 1) in (None, ())]:
        raise ConfigError(
            f"{missing[0]}: expected a value, found none; set {missing[0]} in the configuration (only training derives it from tokenizer"
            " or data)"
        )
    return build_model(config)


def build_model(config: ModelConfig) -> Network:
    """Build the model that ``config`` describes, with initial weights from the default random generator."""
    model = _build(config)
    initialize(model, config)
    return model


def build_uninitialized(config: ModelConfig) -> Network:
    """Build the model that ``config`` describes with uninitialized weights, which saves time if saved weights are loaded afterwards."""
    with _SkipInit():
        return _build(config)


def _build(config: ModelConfig) -> Network:
    model = implementation(config)(config)
    assign_addresses(model)
    return model


class _SkipInit(TorchFunctionMode):
    """Skips the random initialization in the constructors of PyTorch's layers."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func in (nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_) else func(*args, **kwargs)
