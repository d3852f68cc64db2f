"""Loads a predictor from a run folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import torch

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
from transom.models.base import GenerativeModel
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
    """Load the predictor of a run; the caller's random state is left unchanged.

    Args:
        folder: the run folder, ``--out`` of the training.
        precision: dtype of the matrix products. "auto" depends on the instruction set of this processor, not on the dtype used in training,
            which this processor may only emulate. "int8" is for generative models: 8-bit decoding steps, "auto" elsewhere.
        plugins: files and modules to import first: the plugins that the run was trained with.
        kind: the expected class, such as ``transom.Translator``. It is checked, and type checkers and editors know the result's methods.

    Returns:
        The predictor of the run's task, such as a ``Translator`` or a ``Generator``.

    Raises:
        CheckpointError: the folder contains no intact run.
        ConfigError: the model or the machine does not support the precision, a plugin of the run is missing, or the run is of another kind.
    """
    import_plugins(plugins)
    found, schema = _load(folder, precision)
    if kind is not None and not isinstance(found, kind):
        commands = [each.COMMAND for each in recipes_by_task().values() if task_class(each).PREDICTOR is kind]
        if commands:
            raise _wrong_task_error(folder, commands[0], schema)
        raise ConfigError(f"{folder}: expected a run with a {kind.__name__}, found a {type(found).__name__}; name another run or kind")
    return found


def _load(folder: str | Path, precision: PrecisionName) -> tuple[Any, type[Recipe]]:
    """Load a predictor; return it with the recipe class of its task."""
    run = RunFolder.open(Path(folder))
    config = run.load_config()
    tokenizers = _tokenizers(run, config) if config.VOCABULARIES else None
    model = build_uninitialized(config)
    run.load_weights(model)
    int8 = precision == "int8"
    if int8 and not isinstance(model, GenerativeModel):
        raise ConfigError(
            f"precision: int8 is for translators and language models, found a model of kind {config.kind} in {folder}; set it to auto"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = choose_precision("auto" if precision == "int8" else precision, device)
    prepare_for_inference(model, chosen.dtype, device)
    recipe = load_recipe(run.path / RECIPE)[0] if run.has_recipe else None
    schema = type(recipe) if recipe is not None else next(each for each in recipes_by_task().values() if _accepts_model(each, config))
    if not _accepts_model(schema, config):
        raise CheckpointError(
            f"{run.path / RECIPE}: expected the recipe of a {config.kind} model as in {CONFIG}; the files are from different runs"
        )
    return task_class(schema).predictor(LoadedRun(model, tokenizers, recipe, chosen, int8, str(folder))), schema


def _accepts_model(recipe: type[Recipe], config: ModelConfig) -> bool:
    """Return whether the recipe class accepts models of this configuration class."""
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
    """Load the object that a command of the command line uses: the predictor, or what the task's ``COMMANDS`` build from it.

    Raises:
        CheckpointError: the folder contains no intact run.
        ConfigError: the task of the run does not support the command.
    """
    found, schema = _load(folder, precision)
    if (build_for_command := task_class(schema).COMMANDS.get(command)) is not None:
        return build_for_command(found)
    if command != schema.COMMAND:
        raise _wrong_task_error(folder, command, schema)
    return found


def load_embedder(folder: str | Path, precision: PrecisionName = "auto") -> Embedder:
    """Load an embedder from a run of an embedding model or of any other encoder-only model.

    Raises:
        CheckpointError: the folder contains no intact run.
        ConfigError: the model of the run is not encoder-only.
    """
    found: Embedder = load_for("embed", folder, precision)
    return found


COMMAND_REQUIREMENTS = {"embed": ("a run of an encoder", "use a run of an encoder")}
"""Per command that several tasks support: the expected kind of run, and advice for the error message."""


def _wrong_task_error(folder: str | Path, command: str, found: type[Recipe]) -> ConfigError:
    expected, advice = COMMAND_REQUIREMENTS.get(command, (f"a run that transom {command} can use", "use that command, or another run"))
    return ConfigError(f"{folder}: expected {expected}, found one for transom {found.COMMAND}; {advice}")
