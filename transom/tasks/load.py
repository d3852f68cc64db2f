"""Loads a predictor from a run folder."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from transom.checkpoints.run_files import CONFIG, RECIPE, TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.architecture import ModelConfig
from transom.config.plugins import import_plugins
from transom.config.recipe import Recipe, load_recipe
from transom.config.schema import allowed_schemas
from transom.config.task_registry import recipes_by_task
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.inference import prepare_for_inference
from transom.decoding.predictors.embedder import Embedder
from transom.errors import CheckpointError, ConfigError
from transom.exchange.imported import Imported
from transom.files.safe_read import describe_validation_error
from transom.models.build import build_uninitialized
from transom.planning.precision import choose_precision
from transom.tasks.task import LoadedRun, task_class

PrecisionName = Literal["auto", "fp32", "bf16", "fp16", "int8"]
PredictorT = TypeVar("PredictorT")


@overload
def load(
    folder: str | Path, precision: PrecisionName = "auto", plugins: Sequence[str | Path] = (), *, kind: type[PredictorT]
) -> PredictorT: ...


@overload
def load(folder: str | Path, precision: PrecisionName = "auto", plugins: Sequence[str | Path] = ()) -> Any: ...


def load(
    folder: str | Path, precision: PrecisionName = "auto", plugins: Sequence[str | Path] = (), *, kind: type[Any] | None = None
) -> Any:
    """Load the predictor of a run. The caller's random state is left unchanged.

    Args:
        folder: the run folder, which is ``out`` of ``transom.train`` and ``--out`` of ``transom train``.
        precision: dtype of the matrix products. "auto" chooses the dtype that this machine multiplies fastest according to its instruction
            set. The dtype of the training run is ignored, because this machine may only emulate it. With "int8", decoding steps and,
            where they can be fused, encoder blocks use 8-bit weights; all other matrix products use the dtype of "auto".
        plugins: files and modules to import first, which are the plugins that the run was trained with.
        kind: expected class of the predictor, such as ``transom.Translator``. A predictor of another class is an error. Type
            checkers and editors infer the class of the result from ``kind``.

    Returns:
        The predictor of the run's task, such as a ``Translator`` or a ``Generator``.

    Raises:
        CheckpointError: the folder contains no intact run.
        ConfigError: the model or the machine does not support the precision, a plugin of the run is missing, or the predictor is not of
            class ``kind``.
    """
    import_plugins(plugins)
    found, schema = load_with_task(folder, precision)
    if kind is not None and not isinstance(found, kind):
        commands = [each.COMMAND for each in recipes_by_task().values() if task_class(each).PREDICTOR is kind]
        if commands:
            raise wrong_task_error(folder, commands[0], schema)
        raise ConfigError(f"{folder}: expected a run with a {kind.__name__}, found a {type(found).__name__}; name another run or kind")
    return found


def load_with_task(
    folder: str | Path, precision: PrecisionName = "auto", weights: Mapping[str, Tensor] | None = None
) -> tuple[Any, type[Recipe]]:
    """Load the predictor of a run, and return it with the recipe class of the run's task; further arguments and errors as for ``load``.

    Args:
        folder: the run folder.
        precision: dtype of the matrix products.
        weights: weights in place of the run's, such as those of a checkpoint.
    """
    run = RunFolder.open(Path(folder))
    config = run.load_config()
    tokenizers = _tokenizers(run, config) if config.VOCABULARIES else None
    model = build_uninitialized(config)
    if weights is None:
        run.load_weights(model)
    else:
        model.load_state_dict(weights)
    int8 = precision == "int8"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = choose_precision("auto" if precision == "int8" else precision, device)
    prepare_for_inference(model, chosen.dtype, device)
    recipe = load_recipe(run.path / RECIPE)[0] if run.has_recipe else None
    schema, decoding = (type(recipe), recipe.decoding) if recipe is not None else _without_recipe(run, config)
    if not _accepts_model(schema, config):
        raise CheckpointError(
            f"{run.path / RECIPE}: expected the recipe of a {config.kind} model as in {CONFIG}, found the recipe of another kind;"
            " the files are from different runs"
        )
    return task_class(schema).predictor(LoadedRun(model, tokenizers, recipe, decoding, chosen, int8, str(folder))), schema


def _without_recipe(run: RunFolder, config: ModelConfig) -> tuple[type[Recipe], Any]:
    """Return the recipe class and the decoding settings of a run without a recipe: an imported one, or None for the defaults.

    Raises:
        CheckpointError: ``imported.json`` is damaged or belongs to another run.
    """
    imported, known = Imported.read(run), recipes_by_task()
    if imported is None:
        return next(each for each in known.values() if _accepts_model(each, config)), None
    schema = known.get(imported.task)
    if schema is None:
        raise CheckpointError(f"{run.path}: task: expected one of {', '.join(known)}, found {imported.task!r:.80}; import the model again")
    settings: Any = schema.model_fields["decoding"].annotation
    try:
        return schema, TypeAdapter(settings).validate_python(imported.decoding)
    except ValidationError as error:
        raise CheckpointError(f"{run.path}: decoding: {describe_validation_error(error)}; import the model again") from error


def _accepts_model(recipe: type[Recipe], config: ModelConfig) -> bool:
    """Return whether a recipe class accepts models with a configuration of this class."""
    return type(config) in allowed_schemas(recipe.model_fields["model"].annotation)


def _tokenizers(run: RunFolder, config: ModelConfig) -> Tokenizers:
    tokenizers = Tokenizers.from_bytes(run.read(TOKENIZER), str(run.path / TOKENIZER))
    for name, tokenizer in zip(config.VOCABULARIES, (tokenizers.source, tokenizers.target), strict=False):
        if tokenizer.vocab_size != (expected := getattr(config, name)):
            raise CheckpointError(
                f"{run.path / TOKENIZER}: expected {name} = {expected} as in {CONFIG}, found {tokenizer.vocab_size};"
                " the files are from different runs"
            )
    return tokenizers


def load_for(command: str, folder: str | Path, precision: PrecisionName = "auto") -> Any:
    """Load the object that a command of the command line uses.

    This is the predictor of the run, or an object that ``COMMANDS`` of the run's task builds from the predictor.

    Args:
        command: name of the command, such as "embed".
        folder: the run folder.
        precision: dtype of the matrix products, as for ``load``.

    Raises:
        CheckpointError: the folder contains no intact run.
        ConfigError: the task of the run does not support the command, or the model or the machine does not support the precision.
    """
    predictor, schema = load_with_task(folder, precision)
    if (found := build_for(command, predictor, schema)) is None:
        raise wrong_task_error(folder, command, schema)
    return found


def build_for(command: str, predictor: Any, recipe: type[Recipe]) -> Any:
    """Return the object that a command uses for the predictor of a task; None if the task does not support the command."""
    if (build_for_command := task_class(recipe).COMMANDS.get(command)) is not None:
        return build_for_command(predictor)
    return predictor if command == recipe.COMMAND else None


def load_embedder(folder: str | Path, precision: PrecisionName = "auto") -> Embedder:
    """Load an embedder from a run whose model is a text encoder, such as an embedding model or a text classifier.

    Raises:
        CheckpointError: the folder contains no intact run.
        ConfigError: the model of the run is not a text encoder, or the precision is not supported.
    """
    found: Embedder = load_for("embed", folder, precision)
    return found


COMMAND_REQUIREMENTS = {"embed": ("a run of an encoder", "use a run of an encoder")}
"""The expected run and the advice in the error messages of commands that several tasks support."""


EVALUATING_COMMANDS = ("evaluate", "compare")
"""Commands whose error messages name the command that measures the run on test data."""


def wrong_task_error(folder: str | Path, command: str, found: type[Recipe]) -> ConfigError:
    """Return the error that a command does not support the task of a run.

    Args:
        folder: the run folder.
        command: name of the command.
        found: recipe class of the run's task.
    """
    expected, advice = COMMAND_REQUIREMENTS.get(command, (f"a run that transom {command} can use", "use that command, or another run"))
    if command in EVALUATING_COMMANDS:
        advice = _evaluation_advice(folder, found)
    return ConfigError(f"{folder}: expected {expected}, found one for transom {found.COMMAND}; {advice}")


def _evaluation_advice(folder: str | Path, recipe: type[Recipe]) -> str:
    """Return advice that names the command that measures a run on test data, or the one that prints its validation metrics."""
    run = shlex.quote(str(folder))
    command = recipe.HELP.evaluated_by or ("transom classify RUN --labeled-data PATH" if recipe.COMMAND == "classify" else "")
    return f"use {command.replace('RUN', run)}" if command else f"use transom status {run}, which prints its validation metrics"
