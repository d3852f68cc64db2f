"""Fine-tuning: start a run with the weights, model shape and tokenizers of another run, the original run."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from transom.checkpoints.run_files import BASE, CONFIG, RECIPE, TOKENIZER, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.config.adapter import LoraConfig
from transom.config.approximations import LinformerConfig
from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.arguments import toml_value
from transom.config.components import RotaryConfig
from transom.config.error_messages import validate
from transom.config.model import EncoderConfig, TextTransformerConfig
from transom.config.model_overrides import (
    NO_OVERRIDES,
    OVERRIDABLE_FIELDS,
    TOKENIZER_FIELDS,
    UserOverrides,
    is_overridable,
    is_recipe_field,
)
from transom.config.recipe import PairRecipe, Recipe, TextRecipe, load_recipe
from transom.config.rope_scaling import with_original_length
from transom.config.schema import SLOTS, ComponentConfig, Schema, derived_formula
from transom.config.vision import ImageClassifierConfig
from transom.data.text.text_io import expand_path
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.errors import CheckpointError, ConfigError
from transom.layers.position_encoding import resize_position_grid, resize_position_table
from transom.models.apply_lora import apply_lora
from transom.models.base import Network
from transom.models.vision import VisionTransformer
from transom.training.task_protocol import TaskContext


def load_existing_tokenizers(recipe: Recipe, folder: RunFolder) -> Tokenizers | None:
    """Load the tokenizers of a resumed run, or of the original run in fine-tuning; return None if tokenizers must be trained.

    Args:
        recipe: recipe of the run; fine-tuning sets ``training.init_from``.
        folder: run folder; a resumed run has its tokenizers there.

    Raises:
        CheckpointError: the tokenizers are missing or damaged.
    """
    if folder.has_recipe:
        return Tokenizers.load(folder.path / TOKENIZER)
    if recipe.training.init_from is not None:
        return Tokenizers.load(RunFolder.open(Path(recipe.training.init_from)).path / TOKENIZER)
    return None


def data_root(recipe: TextRecipe | PairRecipe, base: Path) -> Path:
    """Return the folder that the paths of a recipe are relative to.

    Args:
        recipe: the recipe.
        base: folder of the recipe, which a relative ``data.root`` is resolved against.
    """
    root: str = recipe.data.root
    return base / expand_path(root)


def load_or_train_tokenizer(texts: Iterable[str], recipe: TextRecipe, context: TaskContext) -> Tokenizer:
    """Load the tokenizer of a resumed run, or of the original run in fine-tuning; otherwise train a tokenizer on ``texts``."""
    context.notify("preparing the tokenizer")
    given = load_existing_tokenizers(recipe, context.folder)
    return Tokenizer.train(texts, recipe.tokenizer, folder=data_root(recipe, context.base)) if given is None else given.source


POSITION_TABLE_SUFFIX = "position.table.weight"
"""Suffix of the names of learned position tables in a state dict."""

ALWAYS_INHERITED = {"pooling", "distillation"}
"""Fields of image models that always come from the original run: ``pooling = "cls"`` and ``distillation`` add tokens, which are weights."""


class InheritedShape(NamedTuple):
    """Recipe of a fine-tuning run, with the model shape of the original run.

    Attributes:
        recipe: the recipe. Its model fields come from the original run, except those that belong to the task (such as the classes) or
            to training (dropout), and those that the user set.
        notes: sentences to print for the user, on model fields that differ from the original run and on fields of the recipe not used.
    """

    recipe: Recipe
    notes: list[str]


def inherit_model_shape(recipe: Recipe, folder: Path, user_overrides: UserOverrides = NO_OVERRIDES) -> InheritedShape:
    """Return the recipe with the model shape of the original run, changed by the user where the run's weights still fit.

    Args:
        recipe: recipe of the fine-tuning run.
        folder: folder of the original run.
        user_overrides: fields that the user set, without those of a packaged recipe.

    Raises:
        CheckpointError: ``folder`` holds no intact run.
        ConfigError: the model of the original run is of an incompatible kind, or its weights do not fit a field that the user set.
    """
    run = RunFolder.open(folder)
    model = run.load_config()
    if not _is_compatible(type(recipe.model), type(model)):
        raise ConfigError(
            f"training.init_from = {str(folder)!r}: expected a run of {_compatible_kinds(recipe.model)}, whose weights fit"
            f" {recipe.model.kind!r},"
            f" found a run of {model.kind!r}; give another run with --init-from or choose another recipe"
        )
    names = _inherited_fields(recipe.model, model)
    fixed = _user_settable(names, model) - OVERRIDABLE_FIELDS
    for name, new in user_overrides.of("model").items():  # checked before the joint validation, whose errors are less specific
        old = getattr(model, name) if name in fixed else None
        same = (
            name not in fixed
            or isinstance(old, Schema)
            or (new == "none" and (old is None or derived_formula(type(model).model_fields[name])))
        )
        if not same and new != old:
            raise _incompatible_field_error(name, old, new, folder, user_overrides)
    if isinstance(recipe, TextRecipe):
        _check_tokenizer_fields(recipe, run, user_overrides)
    shaped = merge_model_fields(recipe, model, user_overrides)
    changes = list(_differences(model, shaped.model, names))
    for path, old, new in changes:
        if not is_overridable(path):
            raise _incompatible_field_error(path, old, new, folder, user_overrides)
    _check_n_positions(model, shaped.model, folder, user_overrides)
    changed = [f"{path} {_format_value(new)} (was {_format_value(old)})" for path, old, new in changes]
    notes = [f"changed from the model of {folder}: {', '.join(changed)}"] if changed else []
    written = recipe.model.model_fields_set & _user_settable(names, model)
    if unused := [f"{path} {_format_value(new)}" for path, _, new in _differences(shaped.model, recipe.model, sorted(written))]:
        notes.append(f"the model's shape is that of {folder}; not used are the recipe's {', '.join(unused)}")
    return InheritedShape(shaped, notes)


def merge_model_fields(recipe: Recipe, model: ModelConfig, user_overrides: UserOverrides) -> Recipe:
    """Replace the recipe's model fields by those of ``model``, except those of task and dropout, and those that the user set.

    If the user sets a rotary scaling without ``original_max_seq_len``, the length for which ``model`` was trained is filled in.

    Raises:
        ConfigError: the resulting model fields contradict each other.
    """
    names = _inherited_fields(recipe.model, model)
    filled_in = {*model.VOCABULARIES, *model.FROM_DATA, *recipe.model.VOCABULARIES, *recipe.model.FROM_DATA}
    raw = user_overrides.over("model", recipe.model.model_dump() | model.model_dump(include=set(names)), filled_in)
    merged_model = validate(type(recipe.model), raw, lambda path: user_overrides.place(("model", *path)))
    if isinstance(merged_model, TextTransformerConfig) and isinstance(model, TextTransformerConfig):
        new, old = merged_model.position, model.position
        changed = (new, merged_model.max_seq_len) != (old, model.max_seq_len)
        if changed and isinstance(new, RotaryConfig) and isinstance(old, RotaryConfig):
            length = min(scaling.trained_length(model.max_seq_len) for _, scaling in old.rotations)
            position = new.model_copy(update={"rope_scaling": with_original_length(new.rope_scaling, length)})
            merged_model = merged_model.model_copy(update={"position": position})
    return recipe.model_copy(update={"model": merged_model})


def _is_compatible(target: type[ComponentConfig], source: type[ComponentConfig]) -> bool:
    return target is source or (issubclass(target, EncoderConfig) and issubclass(source, EncoderConfig))


def _compatible_kinds(target: ModelConfig) -> str:
    """List the kinds of models whose weights can initialize a model like ``target``, for an error message."""
    *kinds, last = [repr(kind) for kind, schema in SLOTS["model"].components.items() if _is_compatible(type(target), schema)]
    return f"{', '.join(kinds)} or {last}" if kinds else last


def _inherited_fields(target: ModelConfig, source: ModelConfig) -> list[str]:
    """Return the model fields that a fine-tuning run takes from ``source``, the model of the original run."""
    both = [name for name in type(source).model_fields if name in type(target).model_fields]
    if isinstance(source, ImageClassifierConfig):
        return [name for name in both if name in ALWAYS_INHERITED or not (name == "image_size" or is_recipe_field(name))]
    return [name for name in both if not is_recipe_field(name)]


def _differences(old: Schema, new: Schema, names: Iterable[str], prefix: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield path, old and new value of each field that differs, recursing into components of the same class."""
    for name in names:
        a, b, path = getattr(old, name), getattr(new, name), prefix + name
        if a == b:
            continue
        if isinstance(a, Schema) and isinstance(b, Schema) and type(a) is type(b):
            yield from _differences(a, b, type(a).model_fields, f"{path}.")
        else:
            yield path, a, b


def _user_settable(names: Iterable[str], source: ModelConfig) -> set[str]:
    """Return the fields among ``names`` that tokenizer and data do not determine."""
    return set(names) - {*source.VOCABULARIES, *source.FROM_DATA}


def _incompatible_field_error(path: str, old: object, new: object, folder: Path, user_overrides: UserOverrides) -> ConfigError:
    """Return the error for a model field set to a value that the weights of the original run do not fit."""
    return ConfigError(
        f"{user_overrides.place(('model', *path.split('.')))}: expected model.{path} = {_format_value(old)}, with which the weights of"
        f" {folder} were"
        f" trained, found {_format_value(new)}; omit this field, or train without --init-from"
    )


def _check_n_positions(old: ModelConfig, new: ModelConfig, folder: Path, user_overrides: UserOverrides) -> None:
    """Raise ConfigError if the number of positions changes in a Linformer, whose blocks have weights per position."""
    if not (
        isinstance(old, TransformerConfig)
        and isinstance(new, TransformerConfig)
        and isinstance(new.attention.approximation, LinformerConfig)
    ):
        return
    if old.n_positions != new.n_positions:
        path = "image_size" if isinstance(new, ImageClassifierConfig) else "max_seq_len"
        raise _incompatible_field_error(path, getattr(old, path), getattr(new, path), folder, user_overrides)


def _check_tokenizer_fields(recipe: TextRecipe, run: RunFolder, user_overrides: UserOverrides) -> None:
    """Raise ConfigError if the user sets another tokenizer: the embeddings of the original run belong to the tokens of its tokenizer."""
    names = [name for name in TOKENIZER_FIELDS if name in user_overrides.of("tokenizer")]
    source = load_recipe(run.path / RECIPE)[0] if names else recipe
    for name in names:
        old, new = getattr(getattr(source, "tokenizer", None), name, None), getattr(recipe.tokenizer, name)
        if old is not None and old != new:
            raise ConfigError(
                f"{user_overrides.place(('tokenizer', name))}: expected tokenizer.{name} = {_format_value(old)}, as in the run"
                f" {run.path},"
                f" found {_format_value(new)}; omit this field, or train without --init-from"
            )


def _format_value(value: object) -> str:
    """Format a field's value as it is written in a recipe, a component without the fields that have their default values."""
    if isinstance(value, Schema):
        kind = getattr(value, "kind", "none")
        changed = value.model_dump(exclude_defaults=True, exclude={"kind"})
        fields = ", ".join(f"{name} = {toml_value(each)}" for name, each in {"kind": kind, **changed}.items())
        return f"{{ {fields} }}" if changed else repr(kind)
    return "'none'" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


class WeightInit(NamedTuple):
    """Summary of the weights that a new model takes from the original run.

    Attributes:
        note: a sentence for the user on which tensors were copied.
        new_tensors: names of the model's tensors that the original run lacks or has in another shape.
    """

    note: str
    new_tensors: list[str]


def init_from(model: Network, folder: Path) -> WeightInit:
    """Copy the best weights of the original run into a new model where name and shape match.

    The other weights of the model keep their initial values. Learned positions are interpolated to the model's number of positions.

    Args:
        model: a newly built model with the shape from ``inherit_model_shape``.
        folder: folder of the original run.

    Raises:
        CheckpointError: ``folder`` holds no intact run.
    """
    run = RunFolder.open(folder)
    run.load_config()
    source, target = run.read_weights(WEIGHTS), model.state_dict()
    resize = resize_position_grid if isinstance(model, VisionTransformer) else resize_position_table
    resized_names = [
        name for name in target if name.endswith(POSITION_TABLE_SUFFIX) and name in source and len(source[name]) != len(target[name])
    ]
    resize_notes = {f"; positions interpolated from {len(source[name]):,} to {len(target[name]):,}" for name in resized_names}
    source |= {name: resize(source[name], len(target[name])) for name in resized_names}
    shared = [name for name in target if name in source and target[name].shape == source[name].shape]
    blocks = {name for name in target if any(part in name for part in (".blocks.", ".layers.", ".stages."))}
    if missing := blocks - set(shared):
        raise CheckpointError(
            f"{run.path / WEIGHTS}: expected the weights of the model in {CONFIG}, found tensor {min(missing)!r} missing or of another"
            " shape; restore the file"
        )
    with torch.no_grad():
        for name in shared:
            target[name].copy_(source[name])
    fresh = [name for name in target if name not in shared]
    summary = f"copies {len(shared):,} of {len(target):,} tensors{''.join(sorted(resize_notes))}"
    return WeightInit(f"starts from {folder}: {summary}" + (f"; newly initialized: {', '.join(fresh)}" if fresh else ""), fresh)


def save_base_weights(model: nn.Module, fresh: Sequence[str], folder: RunFolder) -> None:
    """Save the tensors taken from the original run, all except ``fresh``, so that an adapter no longer needs that run."""
    folder.write_tensors(BASE, {name: x for name, x in model.state_dict().items() if name not in fresh}, step=0)


def load_base_and_adapt(model: nn.Module, config: LoraConfig, folder: RunFolder) -> None:
    """Load the base weights from the run folder into ``model``, freeze them, and add the trainable adapter.

    Raises:
        CheckpointError: the base weights are missing, damaged, or of another model.
    """
    target, tied = model.state_dict(), getattr(model, "tied", {})
    base = {name: summary for name, summary in folder.read_weights(BASE).items() if name not in tied}
    if mismatched := [name for name in base if name not in target or target[name].shape != base[name].shape]:
        raise CheckpointError(
            f"{folder.path / BASE}: expected the base weights of this run, found {mismatched[0]!r} of another model; restore the file"
        )
    with torch.no_grad():
        for name, summary in base.items():
            target[name].copy_(summary)
    apply_lora(model, config, trainable=[name for name in target if name not in base])
