"""transom's own side of the comparison, through the functions that training and translating use."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from benchmarks.shapes import FIRST, LEARNING_RATE, TRAINING, Shape, Task, symbols
from transom.data.batch import Indices, Sequences, TranslationBatch, cut_batches
from transom.data.tokenizer.special import EOS, PAD, SOS
from transom.decoding.backends.compiled import engine
from transom.decoding.backends.flat import FlatSeq2Seq
from transom.decoding.backends.searcher import searcher_of
from transom.decoding.inference import deal_out
from transom.decoding.search.beam import Beam
from transom.decoding.search.greedy import Greedy
from transom.decoding.search.loop import Forbid, Search, search
from transom.decoding.search.roles import Limits, StepModel
from transom.models.build import build_model
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning.precision import choose_precision
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.step import Stepper


def fresh_model(shape: Shape) -> Seq2SeqTransformer:
    """Build a model with fresh weights."""
    torch.manual_seed(1)
    return cast(Seq2SeqTransformer, build_model(shape.config))


def training_steps(shape: Shape) -> dict[str, Callable[[], float]]:
    """Give a training step in the type that transom chooses here; it returns the mean smoothed loss."""
    model = fresh_model(shape).train()
    precision = choose_precision("auto", torch.device("cpu"))
    stepper = Stepper(model, build_optimizer(model, TRAINING.optimizer), TRAINING, precision.dtype, CrossEntropy(TRAINING.label_smoothing))
    source = Sequences.pad(symbols(shape.pairs, shape.source, shape.vocab, 1).tolist())
    labels = symbols(shape.pairs, shape.target, shape.vocab, 2)
    target = Sequences.pad(torch.cat([torch.full((shape.pairs, 1), SOS), labels[:, :-1]], 1).tolist())
    batch = TranslationBatch(source, target, labels, tuple(range(shape.pairs)))

    def step() -> float:
        result = stepper.step([batch], LEARNING_RATE)
        return result.loss / result.n_target_tokens

    return {precision.name: step}


def translators(tasks: list[Task], threads: int) -> dict[tuple[str, str], Callable[[], list[list[int]]]]:
    """Give searches by task and mode, dealt out to the threads as a translator deals them; they return each row's new symbols."""
    model = fresh_model(tasks[0].shape).eval()
    searchers: dict[str, StepModel[Any, Any]] = {"bf16": searcher_of(model, torch.bfloat16), "fp32": searcher_of(model)}
    if engine()[0] is not None:
        searchers["int8"] = searcher_of(model, torch.bfloat16, eight_bits=True)
        searchers["bf16, not compiled"] = FlatSeq2Seq(copy.deepcopy(model).bfloat16())
    return {(task.name, mode): partial(_translate, searcher, task, threads) for task in tasks for mode, searcher in searchers.items()}


def _translate(searcher: StepModel[Any, Any], task: Task, threads: int) -> list[list[int]]:
    assert FIRST > EOS
    source, length = symbols(task.rows, task.shape.source, task.shape.vocab, 3).tolist(), task.shape.target
    strategy = Greedy(EOS) if task.beams == 1 else Beam(EOS, task.beams)

    def search_part(part: Indices) -> list[list[int]]:
        limits = Limits(torch.full((len(part),), length - 1), torch.full((len(part),), length))
        rows = Sequences.pad([source[i] for i in part])
        found = search(searcher, Search(rows, strategy, limits, SOS, EOS, [Forbid(torch.tensor([PAD, SOS]))]))
        return [[*of_source[0].tokens, EOS] for of_source in found]

    most = -(-task.rows // threads) * task.shape.source
    parts = list(cut_batches(np.arange(task.rows), np.full(task.rows, task.shape.source), most))
    return [row for _, found in deal_out(search_part, parts, threads) for row in found]
