"""Recover a training step from an allocator without memory: recognize the error, free memory, and say why a batch cannot be split."""

import gc
from collections.abc import Sequence

import torch

from transom.config.architecture import ModelConfig
from transom.config.training import TrainingConfig
from transom.data.batch import Batch, ContrastiveBatch
from transom.errors import ConfigError
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.norm import BatchNorm
from transom.models.base import Network
from transom.planning.freed_memory import trim_malloc
from transom.planning.training_bytes import can_recompute

_MESSAGES = ("can't allocate memory", "std::bad_alloc", "could not create a memory object")
"""Parts of the messages of errors that have no class of their own: of PyTorch's CPU allocator, of C++ and of oneDNN."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that an allocator had no memory left: on a GPU, or on a CPU under a limit such as RLIMIT_DATA."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(part in str(error) for part in _MESSAGES)


def release_memory(device: torch.device) -> None:
    """Return the memory of tensors that are no longer used to the system, or to the other streams of a GPU."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim_malloc()


def unsplittable(model: Network, micro_batches: Sequence[Batch], largest: int) -> str:
    """Return why smaller micro-batches are impossible, or would change the loss; empty if they are possible."""
    if largest <= 1:
        return "it has a single row"
    if any(isinstance(batch, ContrastiveBatch) for batch in micro_batches):
        return "the pairs of a batch are each other's negatives"
    for module in model.modules():
        if isinstance(module, BatchNorm):
            return "batch norm averages over its rows"
        if isinstance(module, MixtureOfExperts) and module.config.capacity_factor is not None:
            return "its rows share the capacity of the experts"
    return ""


def out_of_memory_error(problem: str, rows: int, training: TrainingConfig, config: ModelConfig | None = None) -> ConfigError:
    """Return the error for a micro-batch that cannot be split: what did not fit, why it stays whole, and what to change."""
    less = ", set training.activation_checkpointing = 'blocks'" if config is not None and can_recompute(config, training) else ""
    batch = "training.batch_size" if hasattr(training, "batch_size") else "training.batch_tokens"
    if rows > 1:
        return ConfigError(
            f"step: expected memory for a micro-batch of {rows:,} rows, found too little, and {problem or 'it cannot be split'}, so that"
            f" smaller ones would change the loss; lower {batch} or the model's widths{less}, or stop other programs"
        )
    shorter = "model.image_size" if batch == "training.batch_size" else "model.max_seq_len"
    return ConfigError(
        f"step: expected memory for a single row, found too little; lower {shorter}, the model's widths or layers{less}, or stop other"
        " programs"
    )
