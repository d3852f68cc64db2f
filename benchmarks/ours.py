"""transom's own side of the comparison, through the functions that training and translating use."""

import copy
from collections.abc import Callable
from typing import cast

import torch

from benchmarks.shapes import FIRST, LEARNING_RATE, TRAINING, Shape, Task, symbols
from transom.decoding.beam import Beam
from transom.decoding.filters import Forbid
from transom.decoding.flat import FEW, FlatSeq2Seq
from transom.decoding.greedy import Greedy
from transom.decoding.limits import Limits
from transom.decoding.loop import search
from transom.inputs.batch import Sequences, TranslationBatch
from transom.inputs.special import EOS, PAD, SOS
from transom.models.build import build_model
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning.precision import choose_precision
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
    stepper = Stepper(model, build_optimizer(model, TRAINING.optimizer), TRAINING, precision.dtype)
    source = Sequences.pad(symbols(shape.pairs, shape.source, shape.vocab, 1).tolist())
    labels = symbols(shape.pairs, shape.target, shape.vocab, 2)
    target = Sequences.pad(torch.cat([torch.full((shape.pairs, 1), SOS), labels[:, :-1]], 1).tolist())
    batch = TranslationBatch(source, target, labels, tuple(range(shape.pairs)))

    def step() -> float:
        result = stepper.step([batch], LEARNING_RATE)
        return result.loss / result.n_target_tokens

    return {precision.name: step}


def translators(task: Task) -> dict[str, Callable[[], list[list[int]]]]:
    """Give searches that return each row's new symbols, the end symbol included."""
    model = fresh_model(task.shape).eval()
    source = Sequences.pad(symbols(task.rows, task.shape.source, task.shape.vocab, 3).tolist())
    length = task.shape.target
    limits = Limits(torch.full((task.rows,), length - 1), torch.full((task.rows,), length))
    strategy = Greedy(EOS) if task.beams == 1 else Beam(EOS, task.beams)
    forbid = [Forbid(torch.tensor([PAD, SOS]))]
    assert FIRST > EOS

    def translate(stepper: FlatSeq2Seq) -> Callable[[], list[list[int]]]:
        return lambda: [[*found[0].tokens, EOS] for found in search(stepper, source, strategy, limits, SOS, EOS, forbid)]

    short = copy.deepcopy(model).to(torch.bfloat16)
    modes = {"bf16": translate(FlatSeq2Seq(short)), "fp32": translate(FlatSeq2Seq(model))}
    if task.rows * task.beams <= FEW:
        modes["int8"] = translate(FlatSeq2Seq(short, int8=True))
    return modes
