"""Everything a run needs, from a recipe: data, tokenizers, model, optimizer, precision, and what is known before step 1."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from transom.config.recipe import Recipe
from transom.errors import ConfigError
from transom.inputs.batch import TranslationBatch
from transom.inputs.datasets import load_data
from transom.inputs.loader import Loader, ordered_batches
from transom.inputs.pairs import Pairs
from transom.inputs.report import report_data
from transom.inputs.tokenizer import Tokenizers
from transom.models.build import build_model
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning.flops import training_flops
from transom.planning.machine import measure_peak
from transom.planning.precision import Precision, choose_precision, choose_threads
from transom.training.optimizer import build_optimizer
from transom.weights.run_folder import RunFolder


@dataclass(frozen=True)
class Parts:
    """A run, set up.

    Attributes:
        recipe: as resolved, vocabulary sizes filled in.
        folder: the run folder, open and locked.
        tokenizers: of both sides.
        loader: training batches.
        valid: validation pairs.
        valid_batches: the same as batches.
        model: in training.
        validated: a second model of the same shape, which holds the weights that are validated.
        optimizer: of the model's parameters.
        precision: type of the matrix products, with the reason.
        peak: the machine's best measured FLOP/s in that type.
        facts: what is known before the run.
        notes: sentences that a person should read.
    """

    recipe: Recipe
    folder: RunFolder
    tokenizers: Tokenizers
    loader: Loader
    valid: Pairs
    valid_batches: Sequence[TranslationBatch]
    model: Seq2SeqTransformer
    validated: Seq2SeqTransformer
    optimizer: torch.optim.Optimizer
    precision: Precision
    peak: float
    facts: Mapping[str, Any]
    notes: tuple[str, ...]

    def step_flops(self, slices: Sequence[TranslationBatch]) -> float:
        """Count a step's floating-point operations, forward and backward, padding included."""
        shapes = [(len(b.samples), b.source.tokens.shape[1], b.target.tokens.shape[1]) for b in slices]
        return sum(training_flops(self.recipe.model, *shape) for shape in shapes)
