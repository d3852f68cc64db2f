"""The recipe: everything a training run depends on, in one TOML file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import tomli_w
from pydantic import Field, ValidationError, model_validator

from transom.config import model as _models  # noqa: F401  # registers the kinds of models
from transom.config.architecture import ModelConfig, TextModelConfig, TransformerConfig
from transom.config.components import MultiHeadAttentionConfig
from transom.config.data import DataConfig, PairDataConfig, PairTokenizerConfig, TokenizerConfig
from transom.config.error_messages import explain_error, validate
from transom.config.migration import migrate_tables, record_former_defaults
from transom.config.packaged import packaged_preset, packaged_recipes
from transom.config.parallel import ParallelConfig
from transom.config.patterns import Coverage, block_patterns, format_pattern, pattern_coverage
from transom.config.schema import SLOTS, Schema, derived_formula
from transom.config.suggestions import suggest
from transom.config.task_options import TaskHelp, format_flags
from transom.config.task_registry import recipes_by_task
from transom.config.toml_input import Override, find_line, merge_tables, parse_override, parse_toml, read_toml_text
from transom.config.training import RDropTrainingConfig, TextTrainingConfig, TrainingConfig
from transom.errors import ConfigError


class Metric(NamedTuple):
    """A validation metric.

    Attributes:
        key: field of the metric in ``metrics.jsonl``.
        name: name in tables and charts.
        digits: number of decimals in tables.
        unit: unit of the value; empty if the metric has none.
    """

    key: str
    name: str
    digits: int
    unit: str = ""


class Recipe(Schema):
    """Base schema of recipes: task, data, model, training and inference settings."""

    TASK: ClassVar[str]
    """The class of the task, as ``module:name``; imported when a recipe is trained or a run is loaded."""

    HELP: ClassVar[TaskHelp]
    """Help and options of the task for the command line."""

    UNIT: ClassVar[str]
    """Plural noun for the items that have one label each, such as "tokens"; losses and speeds are given per item."""

    COMMAND: ClassVar[str]
    """Name of the command for inference, and of the same method of the object that ``transom.load`` returns."""

    EXAMPLE: ClassVar[tuple[str, str]]
    """Example arguments of ``COMMAND`` on the command line, and in a call of the method."""

    METRICS: ClassVar[tuple[Metric, ...]] = ()
    """Validation metrics of this task besides the shared ones (``training/validation_metrics.py``)."""

    PREFIX_COVERAGE: ClassVar[Coverage] = "none"
    """Part of a text's tokens that the attention pattern ``prefix`` makes visible; "none" if the task's texts have no prefix."""

    GUESSES: ClassVar[bool] = True
    """Whether a prediction is one of the model's classes or tokens, so that the loss can be compared with that of a random guess."""

    task: str
    data: DataConfig
    model: ModelConfig
    training: TrainingConfig
    parallel: ParallelConfig = Field(ParallelConfig(), description="layout of the run over processes")
    decoding: Schema

    @model_validator(mode="after")
    def _statistics_of_one_process(self) -> Self:
        if isinstance(self.model, TransformerConfig) and self.model.norm.kind == "batchnorm" and self.parallel.n_processes > 1:
            raise ValueError(
                "model.norm = 'batchnorm' computes its statistics in one process: expected no [parallel] table, found"
                f" {self.parallel.n_processes} processes; change one of them"
            )
        return self

    @model_validator(mode="after")
    def _blocks_are_recomputed(self) -> Self:
        if self.training.recompute and not isinstance(self.model, TransformerConfig):
            raise ValueError(
                "training.activation_checkpointing = 'blocks' computes Transformer blocks again: expected a model with blocks, found"
                f" {self.model.FAMILY}; leave it at 'none'"
            )
        return self

    @model_validator(mode="after")
    def _tokens_see_something(self) -> Self:
        attention = getattr(self.model, "attention", None)
        for pattern in block_patterns(attention.pattern) if isinstance(attention, MultiHeadAttentionConfig) else ():
            if pattern_coverage(pattern, self.PREFIX_COVERAGE) == "none":
                raise ValueError(
                    f"model.attention.pattern: expected a pattern with visible tokens in a text of task '{self.task}', found"
                    f" {format_pattern(pattern)}, which masks all tokens; combine the pattern with a window"
                )
        return self

    @property
    def example(self) -> tuple[str, str]:
        """``EXAMPLE``, adapted to this recipe's model."""
        return self.EXAMPLE

    def measured_on(self, figures: Mapping[str, Any]) -> str:
        """Return a note for the model card on metrics computed on a part of the validation data only; empty if there are none."""
        return ""

    def with_processes(self, n: int | None) -> Self:
        """Return a copy with as many data-parallel copies of the model as make ``n`` processes; the recipe itself if ``n`` is None."""
        return self if n is None else self.model_copy(update={"parallel": self.parallel.with_processes(n, "--processes")})

    def with_fields(self, part: Literal["data", "model", "training"], **fields: object) -> Self:
        """Return a copy of the recipe with changed fields of a section, without validation."""
        return self.model_copy(update={part: getattr(self, part).model_copy(update=fields)})


class TextRecipe(Recipe):
    """Base schema of recipes for text tasks, which have a tokenizer."""

    tokenizer: TokenizerConfig
    model: TextModelConfig
    training: TextTrainingConfig

    @model_validator(mode="after")
    def _two_readings_need_dropout(self) -> Self:
        twice = isinstance(self.training, RDropTrainingConfig) and self.training.r_drop > 0
        if twice and not any(value for name, value in self.model if name.endswith("dropout")):
            raise ValueError(
                "expected dropout, since training.r_drop compares two passes that differ only by dropout, found none; set model.dropout, or"
                " training.r_drop = 0"
            )
        return self


class PairRecipe(TextRecipe):
    """Base schema of recipes for tasks on pairs of texts."""

    data: PairDataConfig
    tokenizer: PairTokenizerConfig


def load_recipe(where: str | Path, overrides: Sequence[str] = (), context: str | None = None) -> tuple[Recipe, Path]:
    """Load a recipe and validate it.

    Args:
        where: name of a packaged recipe, or path of a TOML file.
        overrides: such as ``"training.max_steps=300"``; a value that is not TOML is read as a string. A component is set before its fields,
            whatever the order. Of two overrides of a field the last one applies. ``model.preset`` replaces the recipe's whole model.
        context: ``DATA_OPTIONAL`` if the recipe need not name its data.

    Returns:
        The recipe, and the folder from which a relative ``data.root`` starts: the folder of the recipe file, or the current folder for a
        packaged recipe or if an override sets ``data.root``.

    Raises:
        ConfigError: the recipe does not exist, is not TOML, or has an invalid field; the message gives the file and line, or the override.
    """
    raw = read_recipe(where, overrides)
    return check_recipe(raw, context), raw.base


class RawRecipe(NamedTuple):
    """A recipe as read, with overrides and preset applied but not validated.

    Attributes:
        tables: content of the recipe.
        base: the folder from which a relative ``data.root`` starts.
        place: returns the file and line, or the option, that sets a field; for an error in a table, the message is the second argument.
    """

    tables: dict[str, Any]
    base: Path
    place: Callable[..., str]


def read_recipe(where: str | Path, overrides: Sequence[str] = (), own: bool = False) -> RawRecipe:
    """Read a recipe without validating its fields.

    Args:
        where: name of a packaged recipe, or path of a TOML file.
        overrides: as for ``load_recipe``.
        own: leave out the content of a packaged recipe, so that only fields set by the user remain.

    Raises:
        ConfigError: the recipe or preset does not exist, or is not TOML.
    """
    name, text, base = _find(where)
    text = "" if own and not _is_file(where) else text
    raw, sets = _overridden(name, text, overrides)
    if isinstance(raw.get("model"), dict) and "preset" in raw["model"]:
        raw["model"] = _with_preset(raw["model"], _place(name, text, sets, ("model", "preset")))
    base = Path.cwd() if any(override.path == ("data", "root") for override in sets) else base

    def place(path: tuple[str, ...], message: str = "") -> str:
        """Return the file and line, the option or the preset that sets a field."""
        found = _place(name, text, sets, path, message)
        return _place(name, text, sets, ("model", "preset")) if found == name and path[:1] == ("model",) else found

    return RawRecipe(raw, base, place)


def check_recipe(raw: RawRecipe, context: str | None = None) -> Recipe:
    """Validate a recipe against the schema of its task.

    Raises:
        ConfigError: a field is invalid.
    """
    schema = _schema(raw.tables, raw.place(("task",)))
    try:
        return schema.model_validate(raw.tables, context=context)
    except ValidationError as error:
        path, message = explain_error(error, schema, raw.tables)
        about = "" if message.startswith("unknown field ") else message  # any override in an unknown table is at fault
        raise ConfigError(f"{raw.place(path, about)}: {message}") from None


def data_flags(where: str | Path, overrides: Sequence[str] = ()) -> str:
    """Return the options of ``transom train`` that set the data files of a recipe; the recipe may lack its data.

    Raises:
        ConfigError: the recipe does not exist, is not TOML, or has an unknown task.
    """
    name, text, _ = _find(where)
    raw, sets = _overridden(name, text, overrides)
    return format_flags(_schema(raw, _place(name, text, sets, ("task",))).HELP.options)


def dump_recipe(recipe: Recipe) -> str:
    """Return a complete recipe as TOML, from which ``load_recipe`` restores an equal one."""
    return tomli_w.dumps(_plain(recipe))


def _find(where: str | Path) -> tuple[str, str, Path]:
    if _is_file(where):
        return str(where), read_toml_text(Path(where)), Path(where).resolve().parent
    recipes = packaged_recipes()
    if str(where) not in recipes:
        raise ConfigError(
            f"expected a packaged recipe or the path of a .toml file, found {str(where)!r}; {suggest(str(where), list(recipes))}"
        )
    return f"recipe {where}", recipes[str(where)], Path.cwd()


def _is_file(where: str | Path) -> bool:
    """Return whether ``where`` is a path rather than the name of a packaged recipe."""
    path = Path(where)
    return path.suffix == ".toml" or len(path.parts) > 1 or path.is_file()


def _overridden(name: str, text: str, overrides: Sequence[str]) -> tuple[dict[str, Any], list[Override]]:
    sets = sorted(map(parse_override, overrides), key=lambda override: override.depth)
    raw = parse_toml(text, name)
    if (Path(name).parent / "config.json").is_file():  # a run's recipe may have an earlier format
        raw = record_former_defaults(migrate_tables(raw))
    if any(override.path == ("model", "preset") for override in sets):
        raw.pop("model", None)
    for override in sets:
        raw = override.applied(raw)
    return raw, sets


def _schema(raw: Mapping[str, Any], place: str) -> type[Recipe]:
    """Return the schema of a recipe's task; the default task is translation."""
    task = raw.get("task", "translation")
    known = recipes_by_task()
    if not isinstance(task, str) or task not in known:
        raise ConfigError(f"{place}: expected a task, found {task!r}; {suggest(str(task), list(known))}")
    return known[task]


def parse_model_config(fields: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of a model from its fields, which include ``kind`` or ``preset``.

    Raises:
        ConfigError: a field is unknown or invalid; the message names it.
    """
    raw = _with_preset(fields, "preset") if "preset" in fields else dict(fields)
    recipes_by_task()  # registers the models of single tasks
    kinds = SLOTS["model"].components
    if (kind := raw.get("kind")) not in kinds:
        raise ConfigError(f"kind: expected a kind of model or a preset, found {kind!r}; {suggest(str(kind), list(kinds))}")
    return cast(ModelConfig, validate(kinds[kind], raw, lambda path: ".".join(path) or "model"))


def _with_preset(model: Mapping[str, Any], place: str) -> dict[str, Any]:
    own = {name: value for name, value in model.items() if name != "preset"}
    return merge_tables(packaged_preset(model["preset"], place)["model"], own)


def _place(name: str, text: str, sets: Sequence[Override], path: tuple[str, ...], message: str = "") -> str:
    """Return the last override of a field, or of a field of a table; with a message about a table, one whose field it names."""
    for override in reversed(sets):
        is_inside = override.path[: len(path)] == path and (not message or override.is_named_in(message, path))
        if is_inside or path[: len(override.path)] == override.path:
            return override.option
    line = find_line(text, path)
    return f"{name}:{line}" if line else name


def _plain(part: Schema) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if derived_formula(field) and value == field.get_default(call_default_factory=True, validated_data=vars(part)):
            continue
        if isinstance(value, Schema):
            plain[name] = _plain(value)
        elif isinstance(value, tuple):
            plain[name] = [_plain(each) if isinstance(each, Schema) else each for each in value]
        elif value is not None or field.default is not None:
            plain[name] = "none" if value is None else value
    return plain
