"""Fit sizes, steps and regularization of a recipe to the amount of training data and to a time limit."""

import math
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import ValidationError

from transom.config.model import DecoderConfig, Seq2SeqConfig
from transom.config.model_overrides import UserOverrides
from transom.config.model_size import SIZE_FIELDS, shapes
from transom.config.recipe import Recipe, TextRecipe
from transom.planning.flops import count_flops
from transom.planning.precision import choose_precision, choose_threads

RecipeT = TypeVar("RecipeT", bound=Recipe)

CHARACTERS_PER_TOKEN = 3.0
"""Characters per token of a small vocabulary, from which the number of training tokens is estimated."""

CHARACTERS_PER_SUBWORD = 64
"""Characters of training text per entry of the vocabulary: rarer subwords have no useful embedding (Sennrich & Zhang 2019)."""

MIN_VOCAB_SIZE, MIN_BATCH_TOKENS, MIN_BATCH_SIZE = 500, 512, 16
STEPS_PER_EPOCH, MAX_EPOCHS, MIN_STEPS, MAX_VALIDATIONS = 20, 60, 400, 25
SMALL_CHARACTERS, SMALL_SAMPLES = 300_000, 2_000
"""A text of fewer characters, or a set of fewer images, trains a small model."""

REGULARIZED_CHARACTERS = 2_000_000
"""A classifier of a text of fewer characters is trained with word dropout and label smoothing. With 5,000 sentences of SST-2 it is as
accurate as without, and its loss is 0.54 instead of 0.87."""

MIN_UPDATES = 2000
"""Updates that a time limit should leave. If the model of the recipe is too slow for them, a small model is trained, in smaller batches.

Five minutes of translation with 25,000 pairs on one core: validation BLEU 10.8 in batches of 2,048 tokens, 18.8 of 1,024, 20.6 of 512."""

FLOPS_PER_THREAD = {"fp32": 4e10, "bf16": 1e11}
"""Approximate FLOP/s of training per thread of a CPU, by precision: what small models reached on one core with AMX, and without."""

GPU_FLOPS = 1e13
"""The same for a GPU."""

EXAMPLE_LENGTH = 64
"""Tokens per sequence for which the FLOPs of a step are counted."""

FITTED_FIELDS = {
    "tokenizer": ("vocab_size",),
    "model": (*SIZE_FIELDS, "stem"),
    "training": (
        *("batch_tokens", "batch_size", "max_steps", "schedule", "validate_every", "checkpoint_every"),
        *("word_dropout", "label_smoothing", "best_checkpoint_metric"),
    ),
}
"""Recipe fields, by table, that are fitted to the data unless the user sets them.

``best_checkpoint_metric`` follows from the number of labels per text."""


class DataAmount(NamedTuple):
    """The amount of training data.

    Attributes:
        n_samples: number of training samples.
        n_characters: number of characters of the training text; None for images and sounds.
    """

    n_samples: int
    n_characters: int | None = None


def fit_to_data(recipe: RecipeT, amount: DataAmount, own: UserOverrides) -> RecipeT:
    """Fit a recipe with ``training.fit_to_data`` to the amount of training data and to its time limit.

    Vocabulary, batch, number of steps and intervals become smaller if the data are few, never larger. With few data or little time the
    model is small. With few data a classifier is regularized. A fine-tuned model keeps its vocabulary and shape.

    Args:
        recipe: the recipe.
        amount: the amount of training data.
        own: the fields that the user sets, which are not changed.
    """
    if not recipe.training.fit_to_data:
        return recipe
    keeps_shape = recipe.training.init_from is not None or bool(own.of("model").keys() & {*SIZE_FIELDS, "stem", "preset"})
    model = recipe.model if keeps_shape else _choose_model(recipe, amount)
    changes = _changes(recipe, amount, _batch_size(recipe, amount, model))
    if recipe.training.init_from is not None:
        changes.pop("tokenizer", None)
    for table, fields in changes.items():
        kept = {name: value for name, value in fields.items() if name not in own.of(table)}
        recipe = recipe.model_copy(update={table: getattr(recipe, table).model_copy(update=kept)})
    return recipe if model is recipe.model else recipe.model_copy(update={"model": model})


def keep_fitted_fields(recipe: RecipeT, original: Recipe, own: UserOverrides) -> RecipeT:
    """Return the recipe of a resumed run with the fitted fields of the run's original recipe, except those that the user sets."""
    if hasattr(original.data, "min_valid") and "min_valid" not in own.of("data"):
        recipe = recipe.with_fields("data", min_valid=original.data.min_valid)
    if not (recipe.training.fit_to_data and original.training.fit_to_data):
        return recipe
    for table, names in FITTED_FIELDS.items():
        if (section := getattr(recipe, table, None)) is not None:
            kept = {name: getattr(getattr(original, table), name) for name in names if hasattr(section, name) and name not in own.of(table)}
            new = _reshape(section, kept) if table == "model" else section.model_copy(update=kept)
            recipe = recipe.model_copy(update={table: new})
    return recipe


def describe_fit(recipe: Recipe, fitted: Recipe) -> list[str]:
    """Return one note on what was fitted to the data; an empty list if nothing was."""
    changed = [
        f"{table}.{name} = {_value(new)} ({_value(old)} in the recipe)"
        for table, names in FITTED_FIELDS.items()
        for name in names
        if (old := _field(recipe, table, name)) != (new := _field(fitted, table, name)) and name in getattr(fitted, table).model_fields_set
    ]
    return [f"fitted to the amount of training data: {', '.join(changed)}; --set changes any of them"] if changed else []


def _field(recipe: Recipe, table: str, name: str) -> Any:
    return getattr(getattr(recipe, table, None), name, None)


def _value(value: Any) -> str:
    """Return a value for a note; of a component, only the field that is fitted."""
    for name in ("warmup_steps", "channels"):
        if (field := getattr(value, name, None)) is not None:
            return f"{name} {list(field) if isinstance(field, tuple) else field}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _epoch_size(amount: DataAmount) -> float:
    """Return the number of images, or the estimated number of tokens, per epoch."""
    return float(amount.n_samples) if amount.n_characters is None else amount.n_characters / CHARACTERS_PER_TOKEN


def _batch_size(recipe: Recipe, amount: DataAmount, model: Any) -> int:
    """Return the images or tokens per batch: 20 batches per epoch, and fewer tokens if a time limit leaves too few updates."""
    least = MIN_BATCH_SIZE if amount.n_characters is None else MIN_BATCH_TOKENS
    size = min(_power_of_two(_epoch_size(amount) / STEPS_PER_EPOCH, least), _recipe_batch_size(recipe))
    while size >= 2 * least and _updates_in_time(recipe, amount, model, size) < MIN_UPDATES:
        size //= 2
    return size


def _recipe_batch_size(recipe: Recipe) -> int:
    training: Any = recipe.training
    return int(training.batch_size if hasattr(training, "batch_size") else training.batch_tokens)


def _updates_in_time(recipe: Recipe, amount: DataAmount, model: Any, batch_size: int) -> float:
    """Estimate the updates that the time limit of a recipe leaves; infinity without one.

    The estimate depends on the machine's instructions and threads, not on a measurement, and so does the size of the model.
    """
    if (minutes := recipe.training.max_minutes) is None:
        return math.inf
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = choose_precision(recipe.training.precision, device).name
    rate = GPU_FLOPS if device.type == "cuda" else choose_threads().count * FLOPS_PER_THREAD[precision]
    known = {"classes": ("a", "b")} if "classes" in type(model).model_fields else {}
    if isinstance(recipe, TextRecipe):
        known |= dict.fromkeys(model.VOCABULARIES, recipe.tokenizer.vocab_size)
    model = model.model_copy(update=known)
    if amount.n_characters is None:
        flops = count_flops(model, batch_size, getattr(model, "n_positions", 0), 1)
    else:
        source = 0 if isinstance(model, DecoderConfig) else EXAMPLE_LENGTH
        target = EXAMPLE_LENGTH if isinstance(model, DecoderConfig | Seq2SeqConfig) else 1
        flops = count_flops(model, math.ceil(batch_size / EXAMPLE_LENGTH), source, target)
    return 60 * minutes * rate / flops.training


def _choose_model(recipe: Recipe, amount: DataAmount) -> Any:
    """Return the recipe's model, or a small one if the data are few or the recipe's is too slow for the time limit."""
    few = amount.n_samples < SMALL_SAMPLES if amount.n_characters is None else amount.n_characters < SMALL_CHARACTERS
    size = min(_power_of_two(_epoch_size(amount) / STEPS_PER_EPOCH, 1), _recipe_batch_size(recipe))
    slow = _updates_in_time(recipe, amount, recipe.model, size) < MIN_UPDATES
    return small_model(recipe.model) if few or slow else recipe.model


def _changes(recipe: Recipe, amount: DataAmount, batch_size: int) -> dict[str, dict[str, Any]]:
    """Return the fitted fields by table, except the model's shape."""
    training, n = recipe.training, _epoch_size(amount)
    name = "batch_size" if amount.n_characters is None else "batch_tokens"
    enough = max(int(float(f"{MAX_EPOCHS * n / batch_size:.1e}")), MIN_STEPS)  # whatever the user's max_steps, which may change on resume
    warmup, interval = min(training.schedule.warmup_steps, enough // 10), enough // MAX_VALIDATIONS
    fitted = {
        name: batch_size,
        "max_steps": min(training.max_steps, enough),
        "schedule": training.schedule.model_copy(update={"warmup_steps": warmup}),
        "validate_every": min(training.validate_every, interval),
        "checkpoint_every": min(training.checkpoint_every, interval),
    }
    if amount.n_characters is None or not isinstance(recipe, TextRecipe):
        return {"training": fitted}
    if hasattr(training, "word_dropout") and amount.n_characters < REGULARIZED_CHARACTERS:
        fitted |= {"word_dropout": max(training.word_dropout, 0.3), "label_smoothing": max(training.label_smoothing, 0.1)}
    vocab_size = max(100 * (amount.n_characters // (100 * CHARACTERS_PER_SUBWORD)), MIN_VOCAB_SIZE)
    return {"training": fitted, "tokenizer": {"vocab_size": min(vocab_size, recipe.tokenizer.vocab_size)}}


def _power_of_two(x: float, least: int) -> int:
    """Return the largest power of two up to x, but at least ``least``."""
    return max(1 << max(int(x), 1).bit_length() - 1, least)


def small_model(model: Any) -> Any:
    """Return a model of the size "small"; ``model`` itself if its components admit none."""
    for fields in shapes(model, "small"):
        try:
            return _reshape(model, fields)
        except ValidationError:  # a component needs another shape
            continue
    return model


def _reshape(model: Any, shape: dict[str, Any]) -> Any:
    """Return a model with other fields, from which the derived ones follow.

    Raises:
        ValidationError: the fields contradict the model's components.
    """
    given = model.model_dump(exclude_unset=True)
    for name, value in shape.items():
        table, _, field = name.rpartition(".")
        if table and table not in given:
            given[table] = getattr(model, table).model_dump()
        (given[table] if table else given)[field] = value
    return type(model).model_validate(given)
