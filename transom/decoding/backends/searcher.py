"""Choose the fastest inference backend of a model: the native decoder, fused PyTorch operations, or the model itself."""

import copy
from typing import Any, TypeVar

import torch
from torch import nn

from transom.config.architecture import Transformer
from transom.config.patterns import Full
from transom.decoding.backends.compiled import CompiledLanguageModel, CompiledSeq2Seq, Kind, engine, is_plain, why_not
from transom.decoding.backends.flat import FlatEncoder, FlatSeq2Seq, FlatStack
from transom.decoding.search.roles import StepModel
from transom.errors import ConfigError
from transom.layers.attention import Attention
from transom.layers.block import PostNormBlock, PreNormBlock, Residual
from transom.layers.dropout import Dropout
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import FeedForward
from transom.layers.norm import LayerNorm, Norm
from transom.layers.position import Learned, Position, Sinusoidal, Sinusoidal2d
from transom.layers.stack import Stack
from transom.models.decoder import DecoderTransformer
from transom.models.encoder import EncoderTransformer
from transom.models.network import Network
from transom.models.seq2seq import Seq2SeqTransformer
from transom.models.vision import VisionTransformer

KNOWN = {
    *(Seq2SeqTransformer, Embedding, Sinusoidal, Stack, Attention, FeedForward, Norm, LayerNorm, Dropout),
    *(PreNormBlock, PostNormBlock, Residual),
    *(nn.Embedding, nn.Linear, nn.Identity, nn.ModuleList),
}
"""Modules that can be fused, by exact type; ``_has_flat_form`` checks their settings."""

READ_POSITIONS = {Position, Sinusoidal, Sinusoidal2d, Learned}
"""Position encodings that are only added to the embeddings."""

ReaderT = TypeVar("ReaderT", bound=Network)


def searcher_of(model: Network, dtype: torch.dtype | None = None, eight_bits: bool = False) -> StepModel[Any, Any]:
    """Return the fastest backend for searches with ``model``; its weights must not change afterwards.

    Args:
        model: the model; it is copied only if its dtype differs from ``dtype``.
        dtype: dtype of the matrix products; the dtype of the weights by default.
        eight_bits: use int8 products in the decoder, whatever ``dtype`` is.

    Raises:
        ConfigError: int8 is requested, and this model or this machine does not support it.
    """
    if dtype not in (None, model.unembedding.weight.dtype):
        model = copy.deepcopy(model).to(dtype).eval()
    wanted: Kind | None = "int8" if eight_bits else "bf16" if model.unembedding.weight.dtype == torch.bfloat16 else None
    reason = why_not(model) if wanted is not None else None  # the first call compiles the library
    library = engine()[0] if wanted is not None and reason is None else None
    if wanted is not None and library is not None:
        if isinstance(model, DecoderTransformer):
            return CompiledLanguageModel(library, model, wanted)
        if isinstance(model, Seq2SeqTransformer):
            return CompiledSeq2Seq(library, model, wanted, FlatEncoder(model) if _is_flat(model, model.config) else model.encode)
    if eight_bits:
        raise ConfigError(f"precision: int8 requires the native decoder, but {reason}; choose auto")
    assert isinstance(model, StepModel)
    return FlatSeq2Seq(model) if isinstance(model, Seq2SeqTransformer) and _is_flat(model, model.config) else model


def reader_of(model: ReaderT) -> ReaderT:
    """Return the fastest backend for an encoder of texts or images: the model with a fused stack if that is possible.

    It shares all weights except those of the stack, whose later changes have no effect. Its stack cannot be observed.
    """
    if model.device.type != "cpu" or not isinstance(model, EncoderTransformer | VisionTransformer):
        return model
    if not _is_flat(model.encoder, model.config) or type(model.embedding.position) not in READ_POSITIONS:
        return model
    reader = copy.copy(model)
    reader._modules = model._modules | {"encoder": FlatStack(model.encoder, next(model.encoder.parameters()))}
    return reader


def _is_flat(module: nn.Module, config: Transformer) -> bool:
    return config.attention.pattern == Full() and all(map(_has_flat_form, module.modules()))


def _has_flat_form(module: nn.Module) -> bool:
    if isinstance(module, Attention) and not (is_plain(module) and module.n_kv_heads == module.n_heads):
        return False
    return type(module) in KNOWN
