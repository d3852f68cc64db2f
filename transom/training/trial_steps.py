"""Take optimizer steps of a small model in a layout, by processes of this machine, and the same steps in one process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from transom.config.architecture import EncoderDecoderConfig, ModelConfig
from transom.config.parallel import ParallelConfig
from transom.config.training import TrainingConfig
from transom.config.vision import ImageClassifierConfig
from transom.data.batch import (
    Batch,
    ContrastiveBatch,
    ImageBatch,
    LabeledTextBatch,
    LanguageBatch,
    MaskedBatch,
    MultiLabelTextBatch,
    PaddedSequences,
    TranslationBatch,
)
from transom.errors import ConfigError
from transom.models.apply_lora import apply_lora
from transom.models.base import Network
from transom.models.build import build_model
from transom.parallel.layouts import apply_layout
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import SINGLE_PROCESS, World
from transom.parallel.processes.local_ranks import RanksFailedError, run_on_ranks
from transom.planning.layout import describe_rank, format_layout
from transom.planning.parameters import count_parameters
from transom.training.activation_checkpointing import checkpoint_activations
from transom.training.objectives.early_exit import add_early_exit_losses
from transom.training.objectives.multi_label import BinaryCrossEntropy
from transom.training.objectives.objective import CrossEntropy, Objective
from transom.training.objectives.r_drop import RDrop
from transom.training.optimizer import build_optimizer, split_groups_by_mesh
from transom.training.train_step import TrainStep

N_STEPS = 2
"""Steps that are taken: the second one reads weights that all ranks have updated."""

LEARNING_RATE = 1e-3

TOLERANCE = 1e-8
"""Largest relative difference between the steps of several processes and of one, in float64."""

FIRST_TOKEN = 4
"""First of the tokens that are drawn; those before it are special."""


class TrialStep(NamedTuple):
    """A step over all ranks.

    Attributes:
        loss: mean training loss per target token, in nats.
        grad_norm: norm of the gradient, before clipping.
    """

    loss: float
    grad_norm: float


@dataclass(frozen=True)
class StepTrial:
    """Steps of a small model in a layout, and in one process.

    Attributes:
        layout: the layout.
        parameters: parameters of the model.
        micro_batches: micro-batches per step and part of the batch.
        steps: steps of the layout.
        expected: steps of one process.
        difference: largest relative difference of a loss or a norm on any rank.
        seconds: duration of the trial.
    """

    layout: ParallelConfig
    parameters: int
    micro_batches: int
    steps: tuple[TrialStep, ...]
    expected: tuple[TrialStep, ...]
    difference: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the trial as JSON-serializable data."""
        return {
            "mesh": format_layout(self.layout),
            "processes": self.layout.n_processes,
            "parameters": self.parameters,
            "micro_batches": self.micro_batches,
            "losses": [step.loss for step in self.steps],
            "losses_of_one_process": [step.loss for step in self.expected],
            "grad_norms": [step.grad_norm for step in self.steps],
            "grad_norms_of_one_process": [step.grad_norm for step in self.expected],
            "max_relative_difference": self.difference,
            "seconds": self.seconds,
        }


def try_steps(
    config: ModelConfig, training: TrainingConfig, layout: ParallelConfig, take: Callable[..., tuple[TrialStep, ...]] | None = None
) -> StepTrial:
    """Take two steps of a model in a layout by gloo processes of this machine, in float64, and the same steps in one process.

    Args:
        config: a small model, as ``planning.shrink`` makes it.
        training: settings of loss, optimizer and adapter.
        layout: the layout, which fits the model.
        take: takes the steps of one rank; ``take_steps`` by default.

    Raises:
        ConfigError: a rank fails, or the steps differ from those of one process; the message names the rank.
    """
    begin, take = time.monotonic(), take or take_steps
    n = min(2, training.grad_accum_steps) if layout.pipeline == 1 else layout.pipeline
    training = training.model_copy(update={"dropout_rng": "keyed"})
    (expected,) = _run(take, config, training, ParallelConfig(), layout.n_batch_parts, n)
    ranks = _run(take, config, training, layout, layout.n_batch_parts, n)
    differences = [max(map(_difference, steps, expected)) for steps in ranks]
    worst = max(range(len(ranks)), key=differences.__getitem__)
    if not differences[worst] <= TOLERANCE:
        raise ConfigError(
            f"{describe_rank(layout, worst)}: expected the steps of one process, with losses {_losses(expected)}, found"
            f" {_losses(ranks[worst])}; choose another --mesh, or report this"
        )
    seconds = time.monotonic() - begin
    return StepTrial(layout, count_parameters(config).total, n, ranks[0], expected, differences[worst], seconds)


def take_steps(
    rank: int, config: ModelConfig, training: TrainingConfig, layout: ParallelConfig, n_parts: int, n: int
) -> tuple[TrialStep, ...]:
    """Take the steps of one rank.

    Args:
        rank: the rank.
        config: model configuration.
        training: settings of loss, optimizer and adapter.
        layout: the layout.
        n_parts: parts of the batch; one process takes all of them.
        n: micro-batches of each part.
    """
    torch.manual_seed(training.seed)
    model = build_model(config).double().train()
    if training.adapter is not None:
        apply_lora(model, training.adapter)
    world = World(rank, layout.n_processes) if layout.n_processes > 1 else SINGLE_PROCESS
    ranks, optimizer_config = Ranks(world, layout, torch.device("cpu")), training.optimizer
    if training.recompute:
        checkpoint_activations(model, layout)
    pipeline = apply_layout(model, ranks)
    optimizer = build_optimizer(model, optimizer_config)
    split_groups_by_mesh(optimizer)
    objective, filler = build_objective(config, training, model), draw_micro_batches(config, 1, 1, 0)[0][0]
    train_step = TrainStep(model, optimizer, training, torch.float32, objective, ranks, None, lambda: filler, pipeline)
    part = layout.batch_part(rank)
    found = list[TrialStep]()
    for step in range(N_STEPS):
        parts = draw_micro_batches(config, n_parts, n, step)
        own = parts[part] if layout.n_processes > 1 else _whole(parts)
        result = train_step.step(own, LEARNING_RATE)
        found.append(TrialStep(result.loss / result.n_target_tokens, result.grad_norm))
    return tuple(found)


def build_objective(config: ModelConfig, training: TrainingConfig, model: Network) -> Objective:
    """Return the loss of a training, as its task builds it; images are not mixed."""
    settings: Any = training
    smoothing = getattr(settings, "label_smoothing", 0.0)
    if getattr(config, "multi_label", False):
        return BinaryCrossEntropy(smoothing)
    alpha = getattr(settings, "r_drop", 0.0)
    loss = RDrop(smoothing, alpha) if alpha else CrossEntropy(smoothing)
    exits = getattr(settings, "early_exit_loss", None)
    return loss if exits is None else add_early_exit_losses(loss, model, exits)


def draw_micro_batches(config: ModelConfig, n_parts: int, n: int, step: int) -> list[list[Batch]]:
    """Draw ``n`` micro-batches of one or two rows, of different lengths, for each part of the batch of a step."""
    draw, parts = torch.Generator().manual_seed(step), list[list[Batch]]()
    for part in range(n_parts):
        parts.append([])
        for i in range(n):
            first, n_rows = 2 * (part * n + i), 1 + (part + i) % 2
            parts[-1].append(draw_batch(config, tuple(range(first, first + n_rows)), draw))
    return parts


def draw_batch(config: ModelConfig, samples: tuple[int, ...], draw: torch.Generator) -> Batch:
    """Draw a batch for a model, with texts of different lengths and with padding."""
    n_rows = len(samples)
    classes = torch.randint(max(1, config.n_logits), (n_rows,), generator=draw)
    if isinstance(config, ImageClassifierConfig):
        shape = n_rows, config.channels, config.image_size, config.image_size
        return ImageBatch(torch.rand(shape, generator=draw, dtype=torch.float64), classes, samples)
    limit: int = getattr(config, "max_seq_len", 16)
    sizes = [getattr(config, name) for name in config.VOCABULARIES]
    text = draw_texts(n_rows, limit, sizes[-1], draw)
    if isinstance(config, EncoderDecoderConfig):
        return TranslationBatch(draw_texts(n_rows, limit, sizes[0], draw), text, text.tokens.roll(-1, 1), samples)
    if config.kind == "text-embedder":
        return ContrastiveBatch(text, draw_texts(n_rows, limit, sizes[0], draw), samples)
    if config.kind == "text-classifier":
        if getattr(config, "multi_label", False):
            return MultiLabelTextBatch(text, torch.randint(2, (n_rows, config.n_logits), generator=draw).double(), samples)
        return LabeledTextBatch(text, classes, samples)
    if config.STACK == "a decoder":
        return LanguageBatch(text, text.tokens.roll(-1, 1), samples)
    chosen = (torch.rand(text.tokens.shape, generator=draw) < 0.3) | (text.positions == 0)
    return MaskedBatch(text, text.tokens % config.n_logits, chosen & (text.segments > 0), samples)


def _whole(parts: Sequence[Sequence[Batch]]) -> list[Batch]:
    """Return the micro-batches of one process: those of all parts, where those of text pairs are joined to share their negatives."""
    found = list[Batch]()
    for batches in zip(*parts, strict=True):
        pairs = [batch for batch in batches if isinstance(batch, ContrastiveBatch)]
        found += [_join_pairs(pairs)] if pairs else batches
    return found


def _join_pairs(batches: Sequence[ContrastiveBatch]) -> ContrastiveBatch:
    """Join the rows of batches."""

    def join(sides: Sequence[PaddedSequences]) -> PaddedSequences:
        rows = [row[:n].tolist() for side in sides for row, n in zip(side.tokens, side.lengths.tolist(), strict=True)]
        return PaddedSequences.pad(rows)

    samples = tuple(sample for batch in batches for sample in batch.sample_ids)
    return ContrastiveBatch(join([batch.source for batch in batches]), join([batch.target for batch in batches]), samples)


def draw_texts(n_rows: int, limit: int, vocab_size: int, draw: torch.Generator) -> PaddedSequences:
    """Draw texts of at most ``limit`` tokens."""
    first = min(FIRST_TOKEN, vocab_size - 1)
    lengths = torch.randint(max(2, limit // 2), limit + 1, (n_rows,), generator=draw).tolist()
    return PaddedSequences.pad([torch.randint(first, vocab_size, (length,), generator=draw).tolist() for length in lengths])


def _run(
    take: Callable[..., Any], config: ModelConfig, training: TrainingConfig, layout: ParallelConfig, n_parts: int, n: int
) -> list[Any]:
    """Take the steps on all ranks of a layout, and name the rank that fails first."""
    try:
        return run_on_ranks(layout.n_processes, take, config, training, layout, n_parts, n)
    except RanksFailedError as error:
        first = error.failures[0]
        found = first.error if first.traceback else f"that it {first.error}"
        raise ConfigError(
            f"{describe_rank(layout, first.rank)}: expected {N_STEPS} steps of a small model on {format_layout(layout)}, found"
            f" {found}; choose another --mesh, or leave the steps out with --no-steps"
        ) from error


def _difference(step: TrialStep, expected: TrialStep) -> float:
    """Return the largest relative difference; NaN is infinitely far from every number."""
    differences = [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(step, expected, strict=True)]
    return max(each if each == each else float("inf") for each in differences)


def _losses(steps: Sequence[TrialStep]) -> str:
    return ", ".join(f"{step.loss:.10g}" for step in steps)
