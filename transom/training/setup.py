"""Everything a run needs, from a recipe: data, tokenizers, model, optimizer, precision, and what is known before step 1."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from transom.config.brick import Schema
from transom.config.recipe import Recipe, dump_recipe, load_recipe
from transom.errors import CheckpointError, ConfigError
from transom.inputs.batch import TranslationBatch
from transom.inputs.datasets import load_data
from transom.inputs.loader import Loader, ordered_batches
from transom.inputs.pairs import Pairs, Splits, expanded, fingerprint
from transom.inputs.report import DataReport, report_data
from transom.inputs.tokenizer import Tokenizers
from transom.models.build import build_model
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning.flops import count_flops
from transom.planning.machine import MachinePeak, measure_peak
from transom.planning.memory import keep_freed_memory, refuse_larger_than_memory
from transom.planning.parameters import count_parameters
from transom.planning.precision import Precision, Threads, choose_precision, choose_threads
from transom.training.optimizer import build_optimizer
from transom.weights.run_folder import RECIPE, TOKENIZER, WEIGHTS, RunFolder


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
        data: hash of all training and validation pairs, in their order.
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
    data: str
    peak: float
    facts: Mapping[str, Any]
    notes: tuple[str, ...]

    def step_flops(self, slices: Sequence[TranslationBatch]) -> float:
        """Count a step's floating-point operations, forward and backward, padding included."""
        shapes = [(len(b.samples), b.source.tokens.shape[1], b.target.tokens.shape[1]) for b in slices]
        return sum(count_flops(self.recipe.model, *shape).training for shape in shapes)


def set_up(recipe: Recipe, base: Path, folder: RunFolder, tell: Callable[[str], None] = lambda _: None) -> Parts:
    """Read the data, make or load the tokenizers, build the model, and measure the machine.

    Args:
        recipe: what to train.
        base: folder that ``data.root`` is relative to.
        folder: the run folder, created; one that holds a recipe is a run to go on with, and keeps its choices.
        tell: is told what is being done, in a few words.

    Raises:
        TransomError: data, recipe and folder do not fit together.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = _resolve(recipe, base)
    if (folder.path / RECIPE).exists():
        recipe = _as_begun(recipe, folder)
    elif folder.checkpoints.steps() or (folder.path / WEIGHTS).exists():
        raise CheckpointError(f"{folder.path / RECIPE}: expected the recipe of the run to go on with, found none; put it back")
    training, precision, threads = recipe.training, choose_precision(recipe.training.precision, device), choose_threads()
    keep_freed_memory()
    torch.set_num_threads(threads.count)
    torch.manual_seed(training.seed)

    tell("reading the data")
    splits = load_data(recipe.data, base)
    tell("preparing the tokenizer")
    tokenizers = _tokenizers(recipe, splits, folder)
    recipe = _with_choices(recipe, tokenizers, precision)
    max_seq_len = recipe.model.max_seq_len
    loader = Loader(
        splits.train,
        tokenizers,
        max_seq_len=max_seq_len,
        batch_tokens=training.batch_tokens,
        seed=training.seed,
        dropout=recipe.tokenizer.dropout,
        max_length_ratio=recipe.data.max_length_ratio,
        accumulate=training.accumulate,
    )
    report = report_data(splits, tokenizers, loader)
    valid_batches = ordered_batches(splits.valid, tokenizers, training.batch_tokens, max_seq_len)
    refuse_larger_than_memory(count_parameters(recipe.model).total, device)
    tell("measuring the machine")
    peak = measure_peak(device)
    model = cast(Seq2SeqTransformer, build_model(recipe.model)).to(device)
    folder.write(TOKENIZER, tokenizers.to_bytes())  # only now: what could not begin leaves nothing
    folder.write(RECIPE, dump_recipe(recipe).encode())
    folder.write_config(recipe.model)
    return Parts(
        recipe=recipe,
        folder=folder,
        tokenizers=tokenizers,
        loader=loader,
        valid=splits.valid,
        valid_batches=valid_batches,
        model=model,
        validated=copy.deepcopy(model).eval(),
        optimizer=build_optimizer(model, training.optimizer),
        precision=precision,
        data=fingerprint(splits.train, splits.valid),
        peak=peak.flops[precision.dtype],
        facts=_facts(model, report, precision, threads, peak),
        notes=tuple(report.lines()),
    )


def _facts(model: Seq2SeqTransformer, report: DataReport, precision: Precision, threads: Threads, peak: MachinePeak) -> dict[str, Any]:
    """Gather what is known before the run."""
    return {
        "data": report.to_json(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "precision": precision.reason,
        "threads": threads.reason,
        "peak_flops": peak.flops[precision.dtype],
        "bandwidth": peak.bandwidth,
        "torch": torch.__version__,
    }


def _resolve(recipe: Recipe, base: Path) -> Recipe:
    """Make ``data.root`` absolute, so that the run's recipe means the same wherever it is read."""
    root = str((base / expanded(recipe.data.root)).resolve())
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": root})})


MAY_CHANGE = {
    "training": {"max_steps", "max_minutes", "patience", "log_every", "tensorboard"},
    "data": {"root", "train", "valid", "test"},
}
"""Fields that a resumed run may change; any other would make another run of it. Files may move: what counts is the hash of their pairs."""


def _as_begun(recipe: Recipe, folder: RunFolder) -> Recipe:
    """Check that a run to go on with has this recipe; take over what it chose itself, the precision and the vocabulary sizes."""
    begun = load_recipe(folder.path / RECIPE)[0]
    chosen = {"precision": begun.training.precision} if recipe.training.precision == "auto" else {}
    sizes = {name: getattr(begun.model, name) for name in ("source_vocab_size", "target_vocab_size") if getattr(recipe.model, name) is None}
    recipe = recipe.model_copy(
        update={"training": recipe.training.model_copy(update=chosen), "model": recipe.model.model_copy(update=sizes)}
    )
    for part in Recipe.model_fields:
        old, new = getattr(begun, part), getattr(recipe, part)
        if old == new:
            continue
        names = type(new).model_fields if isinstance(new, Schema) else ()
        for name in names:
            if getattr(old, name, None) != getattr(new, name) and name not in MAY_CHANGE.get(part, ()):
                raise ConfigError(
                    f"{folder.path}: the run was begun with {part}.{name} = {getattr(old, name, None)}, found {getattr(new, name)};"
                    " a resumed run keeps its recipe: change the field back or give another --out"
                )
    return recipe


def _tokenizers(recipe: Recipe, splits: Splits, folder: RunFolder) -> Tokenizers:
    """Load the run's tokenizers, or train them on the training pairs."""
    if (folder.path / RECIPE).exists():
        return Tokenizers.load(folder.path / TOKENIZER)
    return Tokenizers.train(splits.train, recipe.tokenizer)


def _with_choices(recipe: Recipe, tokenizers: Tokenizers, precision: Precision) -> Recipe:
    """Fill in what the run settled for itself: the vocabulary sizes and the precision."""
    sizes = {"source_vocab_size": tokenizers.source.vocab_size, "target_vocab_size": tokenizers.target.vocab_size}
    return recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update=sizes),
            "training": recipe.training.model_copy(update={"precision": precision.name}),
        }
    )
