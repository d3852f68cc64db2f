"""Predict the memory of a training step by running it on tensors that have shapes and no values, with the kernels of a real step."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.components import MultiHeadAttentionConfig
from transom.config.moe import MoeConfig
from transom.config.patterns import FullPatternConfig, block_patterns
from transom.config.recurrent import RecurrentConfig
from transom.config.vision import ImageClassifierConfig
from transom.data.batch import ContrastiveBatch, ImageBatch, PaddedSequences, TranslationBatch
from transom.layers.approximations.approximation import Approximation
from transom.layers.block import Block
from transom.models.base import Network
from transom.models.build import build_uninitialized
from transom.planning.live_memory import SavedBytes, can_follow, follow_memory, without_values
from transom.planning.training_bytes import StepMemory
from transom.training.activation_checkpointing import checkpoint_activations
from transom.training.losses import linear_cross_entropy

MAX_SIMULATED_LAYERS = 3
"""Layers of a stack that are run; the memory of further ones is extrapolated, which is exact, since the blocks are equal."""

MAX_SIMULATED_LOGITS = 1 << 27
"""Logits of a batch that are run; the memory of further rows is extrapolated. The loss kernel's buffers reach their full size before."""


@dataclass(frozen=True)
class BatchShape:
    """Shape of the batch of one forward pass.

    Attributes:
        rows: number of sequences or images.
        source: tokens per source, or per text of an encoder; ignored by decoders and image models.
        target: tokens per target of an encoder-decoder, or per text of a decoder.
        labeled: fraction of the logits that have a label, such as the share of masked tokens.
        n_micro_batches: forward passes per step on this device, whose gradients are summed.
    """

    rows: int
    source: int
    target: int
    labeled: float = 1.0
    n_micro_batches: int = 1


@lru_cache(maxsize=64)
def simulate_step(config: ModelConfig, shape: BatchShape, dtype: torch.dtype, recompute: bool = False) -> StepMemory | None:
    """Predict the memory of a training step on a CPU, without allocating weights or activations.

    The model's own layers and kernels run forward and backward on tensors without values, so every tensor that a real step allocates or
    saves is seen, with its size. Two things differ from a real step. The experts of a mixture, which depend on the data, are replaced by
    one network of ``top_k`` times the width, and sparse patterns by full attention.

    Args:
        config: model configuration with known vocabulary sizes.
        shape: shape of the batch.
        dtype: dtype of the matrix products.
        recompute: whether blocks compute their activations again in the backward pass.

    Returns:
        The memory, or None if this PyTorch lacks tensors without values, and for recurrent networks, whose kernel has a hidden workspace.
    """
    return _simulate(_static(config), shape, dtype, recompute) if can_follow() and not isinstance(config, RecurrentConfig) else None


def _simulate(config: ModelConfig, shape: BatchShape, dtype: torch.dtype, recompute: bool = False) -> StepMemory:
    for (small, fewer), (large, more), times in _smaller(config, shape):
        first, second = _simulate(small, fewer, dtype, recompute), _simulate(large, more, dtype, recompute)
        found = StepMemory(*(a + times * (b - a) for a, b in zip(astuple(first), astuple(second), strict=True)))
        largest = max(first.largest, second.largest) if small != large else found.largest
        return replace(found, largest=largest, peak=max(found.begin, found.end) if found.begin else found.peak)
    with without_values():
        model = build_uninitialized(config).train()
        for module in model.modules():
            if isinstance(module, Approximation):
                module.supports_packing = False  # packing depends on the data: one sequence per row
        if recompute:
            checkpoint_activations(model, preserve_rng_state=False)  # generators have no state without values
        return measure_step(model, build_batch(config, shape), dtype, shape)


def measure_step(model: Network, batch: Any, dtype: torch.dtype, shape: BatchShape) -> StepMemory:
    """Run forward pass, loss and backward pass, and count the memory of their tensors.

    Args:
        model: the model in training mode, with or without values.
        batch: its input, with or without values.
        dtype: dtype of the matrix products.
        shape: number of micro-batches and fraction of logits with a label; the other fields are not used.
    """
    saved = SavedBytes()
    for x in (*model.parameters(), *model.buffers()):
        saved.ignore(x)
    begins, ends = list[int](), list[int]()

    def watch_input(block: nn.Module, args: tuple[Any, ...]) -> None:
        """Let the peak so far be taken when the gradient of the block's input is known: the backward pass of the block is over."""
        if begins:
            ends.append(live.take_peak())  # of an earlier micro-batch
        args[0].register_hook(lambda _: begins.append(live.take_peak()))

    for block in [module for module in model.modules() if isinstance(module, Block)][-1:]:
        block.register_forward_pre_hook(watch_input)
    with follow_memory() as live:
        forward = run_step(model, batch, dtype, shape, saved.pack, lambda: live.current)
    gradients = sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None)
    begin, end = (max(begins), max([*ends, live.peak])) if begins else (0, 0)
    return StepMemory(saved.total, forward, max([begin, live.peak, *ends]), gradients, live.largest, begin, end)


def run_step(
    model: Network,
    batch: Any,
    dtype: torch.dtype,
    shape: BatchShape,
    pack: Callable[[Tensor], Tensor] | None = None,
    current: Callable[[], int] = lambda: 0,
) -> int:
    """Run forward pass, loss and backward pass of all micro-batches; return the growth of ``current`` in the last forward pass.

    With ``pack``, which receives each tensor that the first forward pass saves, two micro-batches stand for all.
    """
    forward, device = 0, model.device
    for i in range(shape.n_micro_batches if pack is None else min(shape.n_micro_batches, 2)):
        before = current()
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            with saved_tensors_hooks(pack, lambda x: x) if pack is not None and i == 0 else nullcontext():
                hidden, weight = model.logit_factors(batch)
            forward = current() - before
            rows = hidden.reshape(-1, hidden.shape[-1])
            rows = rows[: math.ceil(shape.labeled * len(rows))]
            labels = torch.zeros(len(rows), dtype=torch.long, device=device)
            loss = linear_cross_entropy(rows, weight, labels, 0.0, softcap=model.logit_softcap)[0]
        loss.backward()
        del hidden, weight, rows, labels, loss
    return forward


Case = tuple[ModelConfig, BatchShape]


def _smaller(config: ModelConfig, shape: BatchShape) -> Iterator[tuple[Case, Case, int]]:
    """Yield a smaller case, one with one group of layers or one row more, and how often their difference is added to the smaller one."""
    period = config.depth.every if isinstance(config, TransformerConfig) and hasattr(config.depth, "every") else 1
    for name in ("n_encoder_layers", "n_decoder_layers", "n_layers"):
        if (n := getattr(config, name, 0)) > MAX_SIMULATED_LAYERS + period:
            few = MAX_SIMULATED_LAYERS - (MAX_SIMULATED_LAYERS - n) % period
            small, large = (config.model_copy(update={name: layers}) for layers in (few, few + period))
            yield (small, shape), (large, shape), (n - few) // period
    logits_of_row = math.ceil((config.n_logits or 1) * max(shape.source, shape.target, 1) * shape.labeled)
    rows = max(4, MAX_SIMULATED_LOGITS // logits_of_row)
    step = 64 // math.gcd(64, max(shape.source, shape.target, 1))  # the loss pads its rows to a multiple of 64
    if shape.rows > rows + step:
        few = rows - (rows - shape.rows) % step
        yield (config, replace(shape, rows=few)), (config, replace(shape, rows=few + step)), (shape.rows - few) // step


def _static(config: ModelConfig) -> ModelConfig:
    """Return a configuration whose shapes do not depend on the data."""
    if not isinstance(config, TransformerConfig):
        return config
    if isinstance(moe := config.feed_forward, MoeConfig):
        widths = {
            name: moe.width(getattr(config, name)) * (moe.top_k + moe.n_shared_experts)
            for name in ("d_ff", "decoder_d_ff")
            if hasattr(config, name)
        }
        config = config.model_copy(update={"feed_forward": moe.expert} | widths)
    if isinstance(config.attention, MultiHeadAttentionConfig) and any(p.kind != "full" for p in block_patterns(config.attention.pattern)):
        config = config.model_copy(update={"attention": config.attention.model_copy(update={"pattern": FullPatternConfig()})})
    return config


def build_batch(config: ModelConfig, shape: BatchShape) -> Any:
    """Build a batch without padding; a translation batch has the inputs of every text model except embedders."""
    samples, labels = tuple(range(shape.rows)), torch.zeros(shape.rows, dtype=torch.long)
    if isinstance(config, ImageClassifierConfig):
        return ImageBatch(torch.zeros(shape.rows, config.channels, config.image_size, config.image_size), labels, samples)

    def text(length: int) -> PaddedSequences:
        ones = torch.ones(shape.rows, length, dtype=torch.long)
        return PaddedSequences(ones, torch.arange(length)[None], ones, torch.full((shape.rows,), length))

    source, target = text(max(shape.source, 1)), text(max(shape.target, 1))
    if config.kind == "text-embedder":
        return ContrastiveBatch(source, target, samples)
    return TranslationBatch(source, target, target.tokens, samples)
