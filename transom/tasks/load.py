"""From a run folder to what answers with its model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from transom.checkpoints.run_files import CONFIG, RECIPE, TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.architecture import Architecture
from transom.config.brick import schemas
from transom.config.plugins import import_plugins
from transom.config.recipe import Recipe, load_recipe
from transom.config.registry import tasks
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.inference import prepare
from transom.decoding.predictors.embedder import Embedder
from transom.errors import CheckpointError, ConfigError
from transom.models.build import build_empty
from transom.models.network import Writer
from transom.planning.precision import choose_precision
from transom.tasks.task import LoadedRun, task_of

PrecisionName = Literal["auto", "fp32", "bf16", "fp16", "int8"]
Answering = TypeVar("Answering")


def load(folder: str | Path, precision: PrecisionName = "auto", plugins: Sequence[str | Path] = ()) -> Any:
    """Load a run's model to answer with, in the way of its task; the caller's random numbers stay as they were.

    Args:
        folder: the ``--out`` of a training.
        precision: type of the matrix products. auto goes by this processor's instructions, not by what the run was trained in, which
            another processor may only emulate. int8 is for what writes: 8 bits in the decoder's steps, auto elsewhere.
        plugins: files and modules to import first: those that the run was trained with.

    Returns:
        What the task has for that, its ``PREDICTOR``, such as a ``Translator`` or a ``Generator``.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: this run, or this machine, cannot answer in such a precision; or the run needs a plugin that was not named.
    """
    import_plugins(plugins)
    return _load(folder, precision)[0]


def _load(folder: str | Path, precision: PrecisionName) -> tuple[Any, type[Recipe]]:
    """Load what answers with a run's model, and return its task's form of a recipe beside it."""
    run = RunFolder.open(Path(folder))
    config = run.load_config()
    tokenizers = _tokenizers(run, config) if config.VOCABULARIES else None
    model = build_empty(config)
    run.load_weights(model)
    eight_bits = precision == "int8"
    if eight_bits and not isinstance(model, Writer):
        raise ConfigError(
            f"precision: int8 is for translators and language models, found a model of kind {config.kind} in {folder}; take auto"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = choose_precision("auto" if precision == "int8" else precision, device)
    prepare(model, chosen.dtype, device)
    recipe = load_recipe(run.path / RECIPE)[0] if run.holds_recipe else None
    schema = type(recipe) if recipe is not None else next(each for each in tasks().values() if _may_have(each, config))
    if not _may_have(schema, config):
        raise CheckpointError(f"{run.path / RECIPE}: expected the recipe of a {config.kind} model by {CONFIG}; they are of different runs")
    return task_of(schema).predictor(LoadedRun(model, tokenizers, recipe, chosen, eight_bits, str(folder))), schema


def _may_have(recipe: type[Recipe], config: Architecture) -> bool:
    """Tell whether a task's models may be of a kind."""
    return type(config) in schemas(recipe.model_fields["model"].annotation)


def _tokenizers(run: RunFolder, config: Architecture) -> Tokenizers:
    tokenizers = Tokenizers.from_bytes(run.read(TOKENIZER), str(run.path / TOKENIZER))
    for name, tokenizer in zip(config.VOCABULARIES, (tokenizers.source, tokenizers.target), strict=False):
        if tokenizer.vocab_size != (expected := getattr(config, name)):
            raise CheckpointError(
                f"{run.path / TOKENIZER}: expected {expected} symbols by {name} in {CONFIG}, found {tokenizer.vocab_size};"
                " they are of different runs"
            )
    return tokenizers


def load_as(kind: type[Answering], folder: str | Path, precision: PrecisionName = "auto") -> Answering:
    """Load a run that answers in one way.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: the run is of another task.
    """
    found, schema = _load(folder, precision)
    if not isinstance(found, kind):
        wanted = next(each.VERB for each in tasks().values() if task_of(each).PREDICTOR is kind)
        raise _of_another_task(folder, wanted, schema)
    return found


def load_for(verb: str, folder: str | Path, precision: PrecisionName = "auto") -> Any:
    """Load what a verb works with: the predictor of the run, or what its task makes of it for that verb.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: the run is of a task that does not serve the verb.
    """
    found, schema = _load(folder, precision)
    if (made := task_of(schema).VERBS.get(verb)) is not None:
        return made(found)
    if verb != schema.VERB:
        raise _of_another_task(folder, verb, schema)
    return found


def load_embedder(folder: str | Path, precision: PrecisionName = "auto") -> Embedder:
    """Load a run whose encoder gives texts vectors: one that learned to, or any other that has an encoder alone.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: the run has no encoder of its own.
    """
    found: Embedder = load_for("embed", folder, precision)
    return found


NEEDED = {"embed": ("an encoder's run", "name an encoder's")}
"""What a verb that serves several tasks needs, and what to do where it is not that."""


def _of_another_task(folder: str | Path, verb: str, found: type[Recipe]) -> ConfigError:
    expected, advice = NEEDED.get(verb, (f"a run that transom {verb} can use", "take that, or another run"))
    return ConfigError(f"{folder}: expected {expected}, found one for transom {found.VERB}; {advice}")
