"""Choose the fastest inference backend of a model: the native decoder, fused PyTorch operations, or the model itself."""

import copy
import logging
from typing import Any, TypeVar

import torch
from torch import nn

from transom.config.architecture import TransformerConfig
from transom.config.patterns import FullPatternConfig
from transom.decoding.backends.fused_inference import FusedEncoder, FusedSeq2Seq, FusedStack
from transom.decoding.backends.native_decoder import (
    NativeLanguageModel,
    NativeSeq2Seq,
    decoder_step_library,
    is_plain_attention,
    unsupported_reason,
)
from transom.decoding.packed_linear import WeightType
from transom.decoding.search.interfaces import StepModel
from transom.errors import ConfigError
from transom.layers.attention import Attention
from transom.layers.block import PostNormBlock, PreNormBlock, ResidualConnection
from transom.layers.dropout import Dropout
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import FeedForward, Linear
from transom.layers.norm import LayerNorm, Norm
from transom.layers.output_projection import OutputProjection
from transom.layers.position_encoding import LearnedPosition, PositionEncoding, Sinusoidal, Sinusoidal2d
from transom.layers.stack import Stack
from transom.models.base import Network
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.encoder import EncoderOnlyTransformer
from transom.models.seq2seq import Seq2SeqTransformer
from transom.models.vision import VisionTransformer
from transom.planning.memory import free_memory

FUSABLE_MODULES = {
    *(Seq2SeqTransformer, Embedding, Sinusoidal, Stack, Attention, FeedForward, Norm, LayerNorm, Dropout),
    *(PreNormBlock, PostNormBlock, ResidualConnection),
    *(nn.Embedding, nn.Linear, Linear, OutputProjection, nn.Identity, nn.ModuleList),
}
"""Modules that can be fused, by exact type; ``_can_fuse_module`` checks their settings."""

ADDITIVE_POSITIONS = {PositionEncoding, Sinusoidal, Sinusoidal2d, LearnedPosition}
"""Position encodings that add a vector to each embedding and do nothing else."""

_log = logging.getLogger(__name__)
_WEIGHT_TYPES: dict[torch.dtype, WeightType] = {torch.bfloat16: "bf16", torch.float32: "fp32"}
ModelT = TypeVar("ModelT", bound=Network)


def build_decoder_backend(model: Network, dtype: torch.dtype | None = None, int8: bool = False) -> StepModel[Any, Any]:
    """Return the fastest backend for searches with ``model``; the weights of ``model`` must not change afterwards.

    Args:
        model: the model; it is copied only if its dtype differs from ``dtype``.
        dtype: dtype of the matrix products; the dtype of the weights by default.
        int8: use int8 weights in the decoder and, if it can be fused, in the encoder, whatever ``dtype`` is.

    Raises:
        ConfigError: int8 is requested, and this model or this machine does not support it.
    """
    if dtype not in (None, model.unembedding.weight.dtype):
        model = copy.deepcopy(model).to(dtype).eval()
    weight_type = "int8" if int8 else _WEIGHT_TYPES.get(model.unembedding.weight.dtype)
    reason = unsupported_reason(model) if weight_type is not None else None  # the first call compiles the library
    if not int8 and weight_type is not None and reason is None and not _has_memory_for_copy(model):
        reason = "a packed copy of its weights would take more than half of the free memory"
        _log.info("the native decoder is not used: %s", reason)
    library = decoder_step_library()[0] if weight_type is not None and reason is None else None
    if weight_type is not None and library is not None:
        if isinstance(model, DecoderOnlyTransformer):
            return NativeLanguageModel(library, model, weight_type)
        if isinstance(model, Seq2SeqTransformer):
            can_fuse = _can_fuse(model, model.config)
            if int8 and not can_fuse:
                _log.info("the encoder is not in int8: its blocks cannot be fused")
            encode = FusedEncoder(model, library if int8 else None) if can_fuse else model.encode
            return NativeSeq2Seq(library, model, weight_type, encode)
    if int8:
        raise ConfigError(f"precision = 'int8' requires the native decoder, but {reason}; set precision to 'auto'")
    assert isinstance(model, StepModel)
    return FusedSeq2Seq(model) if isinstance(model, Seq2SeqTransformer) and _can_fuse(model, model.config) else model


def plan_workers(backend: StepModel[Any, Any], device: torch.device, n_beams: int, n_searches: int = 1) -> tuple[int, int]:
    """Return how many workers search at the same time, each in a thread of its own, and how many usual batches a search takes.

    On a CPU, as many usual batches as PyTorch has threads are computed at the same time. The native decoder takes them in one search, whose
    threads divide the rows of each step: the rest of the loop then runs once for all. In beam search the rest takes longer, and workers run
    it side by side, as they do for all other backends, and where each has a search of its own anyway.

    Args:
        backend: the model to search with.
        device: device of the model.
        n_beams: number of rows per source.
        n_searches: number of searches that the inputs need at least.
    """
    if device.type != "cpu":
        return 1, 1
    threads = torch.get_num_threads()
    shares_steps = n_beams == 1 and n_searches < max(threads, 2) and isinstance(backend, NativeLanguageModel | NativeSeq2Seq)
    return (1, threads) if shares_steps else (threads, 1)


def _has_memory_for_copy(model: Network) -> bool:
    return sum(p.nbytes for p in model.get_submodule("decoder").parameters()) + model.unembedding.weight.nbytes <= free_memory() / 2


def build_encoder_backend(model: ModelT, int8: bool = False) -> ModelT:
    """Return the fastest backend for an encoder of texts or images: the model with a fused stack if that is possible.

    A model with a fused stack shares all other weights with ``model``. Later changes of the weights of the original stack have no effect,
    and activations of the fused stack cannot be recorded.

    Args:
        model: the model.
        int8: use int8 weights in the blocks.

    Raises:
        ConfigError: int8 is requested, and this model or this machine does not support it.
    """
    reason = _reason_against_fusing(model, int8)
    library = None
    if int8 and reason is None:
        library, why = decoder_step_library()
        reason = why if library is None else None
    if int8 and reason is not None:
        raise ConfigError(f"precision = 'int8' requires fused encoder blocks, but {reason}; set precision to 'auto'")
    if reason is not None or not isinstance(model, EncoderOnlyTransformer | VisionTransformer):
        return model
    fused = copy.copy(model)
    fused._modules = model._modules | {"encoder": FusedStack(model.encoder, next(model.encoder.parameters()).dtype, library)}
    return fused


def _reason_against_fusing(model: Network, int8: bool) -> str | None:
    """Return why the blocks of an encoder cannot be fused; None if they can."""
    if not isinstance(model, EncoderOnlyTransformer | VisionTransformer):
        return "only Transformer encoders have them"
    if model.device.type != "cpu":
        return "they run on CPUs only"
    if not _can_fuse(model.encoder, model.config) or type(model.embedding.position) not in ADDITIVE_POSITIONS:
        return "they do not support some component of this model"
    if int8 and not model.config.attention.output_projection:
        return "they require attention with an output projection"
    return None


def _can_fuse(module: nn.Module, config: TransformerConfig) -> bool:
    return config.attention.pattern == FullPatternConfig() and all(map(_can_fuse_module, module.modules()))


def _can_fuse_module(module: nn.Module) -> bool:
    if isinstance(module, Attention) and not (is_plain_attention(module) and module.n_kv_heads == module.n_heads):
        return False
    return type(module) in FUSABLE_MODULES
