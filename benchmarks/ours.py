"""Workloads of transom, run by the same functions as its training and translation."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from benchmarks.shapes import FIRST_WORD, LEARNING_RATE, TRAINING, Shape, Task, random_tokens
from transom.data.batch import Indices, PaddedSequences, TranslationBatch, batch_by_tokens
from transom.data.tokenizer.special_tokens import EOS, PAD, SOS
from transom.decoding.backends.decoder_backend import build_decoder_backend, plan_workers
from transom.decoding.backends.fused_inference import FusedSeq2Seq
from transom.decoding.backends.native_decoder import decoder_step_library
from transom.decoding.inference import parallel_map
from transom.decoding.search.beam import BeamSearch
from transom.decoding.search.greedy import GreedySearch
from transom.decoding.search.interfaces import LengthLimits, StepModel
from transom.decoding.search.loop import SearchRequest, SuppressTokens, search
from transom.models.build import build_model
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning.precision import choose_precision
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep


def fresh_model(shape: Shape) -> Seq2SeqTransformer:
    """Build a randomly initialized model."""
    torch.manual_seed(1)
    return cast(Seq2SeqTransformer, build_model(shape.config))


def training_batch(shape: Shape) -> TranslationBatch:
    """Build the training batch of a shape."""
    source = PaddedSequences.pad(random_tokens(shape.pairs, shape.source, shape.vocab, 1).tolist())
    labels = random_tokens(shape.pairs, shape.target, shape.vocab, 2)
    target = PaddedSequences.pad(torch.cat([torch.full((shape.pairs, 1), SOS), labels[:, :-1]], 1).tolist())
    return TranslationBatch(source, target, labels, tuple(range(shape.pairs)))


def training_steps(shape: Shape) -> dict[str, Callable[[], float]]:
    """Return a training step in the precision that transom chooses on this machine; the step returns the mean label-smoothed loss."""
    model = fresh_model(shape).train()
    precision = choose_precision("auto", torch.device("cpu"))
    train_step = TrainStep(
        model, build_optimizer(model, TRAINING.optimizer), TRAINING, precision.dtype, CrossEntropy(TRAINING.label_smoothing)
    )
    batch = training_batch(shape)

    def step() -> float:
        result = train_step.step([batch], LEARNING_RATE)
        return result.loss / result.n_target_tokens

    return {precision.name: step}


def translators(tasks: list[Task]) -> dict[tuple[str, str], Callable[[], list[list[int]]]]:
    """Return translation workloads by (task, mode), which divide the batch as ``translate`` does and return the new tokens of each row.

    Beside int8 weights, the rest of the model is in the precision that transom chooses itself.
    """
    model, chosen = fresh_model(tasks[0].shape).eval(), choose_precision("auto", torch.device("cpu"))
    backends: dict[str, StepModel[Any, Any]] = {"bf16": build_decoder_backend(model, torch.bfloat16), "fp32": build_decoder_backend(model)}
    if decoder_step_library()[0] is not None:
        backends["int8"] = build_decoder_backend(model, chosen.dtype, int8=True)
        backends[f"{chosen.name}, no C++"] = FusedSeq2Seq(copy.deepcopy(model).to(chosen.dtype))
    return {(task.name, mode): partial(_translate, backend, task) for task in tasks for mode, backend in backends.items()}


def _translate(backend: StepModel[Any, Any], task: Task) -> list[list[int]]:
    assert FIRST_WORD > EOS
    source, length = random_tokens(task.rows, task.shape.source, task.shape.vocab, 3).tolist(), task.shape.target
    strategy = GreedySearch(EOS) if task.beams == 1 else BeamSearch(EOS, task.beams)

    def search_part(part: Indices) -> list[list[int]]:
        limits = LengthLimits(torch.full((len(part),), length - 1), torch.full((len(part),), length))
        rows = PaddedSequences.pad([source[i] for i in part])
        hypotheses = search(backend, SearchRequest(rows, strategy, limits, SOS, EOS, [SuppressTokens(torch.tensor([PAD, SOS]))]))
        return [[*best.tokens, EOS] for best, *_ in hypotheses]

    n_workers, _ = plan_workers(backend, torch.device("cpu"), task.beams)
    max_tokens = -(-task.rows // n_workers) * task.shape.source
    parts = list(batch_by_tokens(np.arange(task.rows), np.full(task.rows, task.shape.source), max_tokens))
    return [row for _, rows in parallel_map(search_part, parts, n_workers) for row in rows]
