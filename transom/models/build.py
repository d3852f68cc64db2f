"""From a configuration to a model: the only table of families."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from transom.config.architecture import Architecture
from transom.layers.observe import assign_addresses
from transom.models.decoder import DecoderTransformer
from transom.models.encoder import MaskedEncoderTransformer, TextClassifierTransformer, TextEmbedderTransformer
from transom.models.initialise import initialise
from transom.models.network import Network
from transom.models.recurrent import RecurrentEncoderDecoder, RecurrentLanguageModel
from transom.models.seq2seq import Seq2SeqTransformer
from transom.models.vision import ConvolutionalNetwork, VisionTransformer

FAMILIES: dict[str, Callable[[Any], Network]] = {
    "seq2seq": Seq2SeqTransformer,
    "recurrent-seq2seq": RecurrentEncoderDecoder,
    "decoder": DecoderTransformer,
    "recurrent-decoder": RecurrentLanguageModel,
    "encoder": MaskedEncoderTransformer,
    "text-classifier": TextClassifierTransformer,
    "text-embedder": TextEmbedderTransformer,
    "vision-transformer": VisionTransformer,
    "convolutional": ConvolutionalNetwork,
}


def build_model(config: Architecture) -> Network:
    """Build the family that ``config.kind`` names, with fresh weights from the default generator."""
    model = _build(config)
    initialise(model, config)
    return model


def build_empty(config: Architecture) -> Network:
    """Build the same with weights of any value, for saved ones to be put in: no random number is drawn, which takes longer than reading."""
    with _NoDraws():
        return _build(config)


def _build(config: Architecture) -> Network:
    model = FAMILIES[config.kind](config)
    assign_addresses(model)
    return model


class _NoDraws(TorchFunctionMode):
    """Leaves out what PyTorch's layers draw when they are made."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func in (nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_) else func(*args, **kwargs)
