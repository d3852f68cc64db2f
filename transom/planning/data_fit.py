"""Fit sizes, steps and regularization of a recipe to the amount of training data."""

from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from transom.config.model_overrides import UserOverrides
from transom.config.model_size import SIZE_FIELDS, shapes
from transom.config.recipe import Recipe, TextRecipe

RecipeT = TypeVar("RecipeT", bound=Recipe)

CHARACTERS_PER_TOKEN = 3.0
"""Characters per token of a small vocabulary, from which the number of training tokens is estimated."""

CHARACTERS_PER_SUBWORD = 64
"""Characters of training text per entry of the vocabulary: rarer subwords have no useful embedding (Sennrich & Zhang 2019)."""

MIN_VOCAB_SIZE, MIN_BATCH_TOKENS, MIN_BATCH_SIZE = 500, 512, 16
STEPS_PER_EPOCH, MAX_EPOCHS, MIN_STEPS, MAX_VALIDATIONS = 20, 60, 400, 25
SMALL_CHARACTERS, SMALL_SAMPLES = 300_000, 2_000
"""A text of fewer characters, or a set of fewer images, trains a small model."""

SMALL_MINUTES = 3.0
"""A run of at most so many minutes trains a small model too, and batches of at most four times the minimum."""

SHORT_RUN_BATCH = 4

FITTED_FIELDS = {
    "tokenizer": ("vocab_size",),
    "model": (*SIZE_FIELDS, "stem"),
    "training": (
        *("batch_tokens", "batch_size", "max_steps", "schedule", "validate_every", "checkpoint_every"),
        *("word_dropout", "label_smoothing"),
    ),
}
"""Recipe fields, by table, that are fitted to the data unless the user sets them."""


class DataAmount(NamedTuple):
    """The amount of training data.

    Attributes:
        n_samples: number of training samples.
        n_characters: number of characters of the training text; None for images and sounds.
    """

    n_samples: int
    n_characters: int | None = None


def fit_to_data(recipe: RecipeT, amount: DataAmount, own: UserOverrides) -> RecipeT:
    """Fit a recipe with ``training.fit_to_data`` to the amount of training data.

    Vocabulary, batch, number of steps and intervals become smaller if the data are few, never larger. With few data the model is small,
    and a classifier is regularized. A fine-tuned model keeps its vocabulary and shape.

    Args:
        recipe: the recipe.
        amount: the amount of training data.
        own: the fields that the user sets, which are not changed.
    """
    if not recipe.training.fit_to_data:
        return recipe
    changes = _changes(recipe, amount)
    if recipe.training.init_from is not None:
        changes.pop("tokenizer", None)
    for table, fields in changes.items():
        kept = {name: value for name, value in fields.items() if name not in own.of(table)}
        recipe = recipe.model_copy(update={table: getattr(recipe, table).model_copy(update=kept)})
    keeps_shape = recipe.training.init_from is not None or own.of("model").keys() & {*SIZE_FIELDS, "stem", "preset"}
    return recipe if keeps_shape or not _is_small(recipe, amount) else recipe.model_copy(update={"model": small_model(recipe.model)})


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


def _changes(recipe: Recipe, amount: DataAmount) -> dict[str, dict[str, Any]]:
    """Return the fitted fields by table, except the model's shape."""
    training = recipe.training
    if amount.n_characters is None:
        n, name, least = float(amount.n_samples), "batch_size", MIN_BATCH_SIZE
    else:
        n, name, least = amount.n_characters / CHARACTERS_PER_TOKEN, "batch_tokens", MIN_BATCH_TOKENS
    size = min(_power_of_two(n / STEPS_PER_EPOCH, least), getattr(training, name))
    if training.max_minutes is not None and training.max_minutes <= SMALL_MINUTES:
        size = min(size, SHORT_RUN_BATCH * least)
    enough = max(int(float(f"{MAX_EPOCHS * n / size:.1e}")), MIN_STEPS)  # whatever max_steps the user sets, which may change on resume
    warmup, interval = min(training.schedule.warmup_steps, enough // 10), enough // MAX_VALIDATIONS
    fitted = {
        name: size,
        "max_steps": min(training.max_steps, enough),
        "schedule": training.schedule.model_copy(update={"warmup_steps": warmup}),
        "validate_every": min(training.validate_every, interval),
        "checkpoint_every": min(training.checkpoint_every, interval),
    }
    if amount.n_characters is None or not isinstance(recipe, TextRecipe):
        return {"training": fitted}
    if hasattr(training, "word_dropout") and amount.n_characters < SMALL_CHARACTERS:
        fitted |= {"word_dropout": max(training.word_dropout, 0.3), "label_smoothing": max(training.label_smoothing, 0.1)}
    vocab_size = max(100 * (amount.n_characters // (100 * CHARACTERS_PER_SUBWORD)), MIN_VOCAB_SIZE)
    return {"training": fitted, "tokenizer": {"vocab_size": min(vocab_size, recipe.tokenizer.vocab_size)}}


def _is_small(recipe: Recipe, amount: DataAmount) -> bool:
    """Return whether a recipe should train a small model."""
    few = amount.n_samples < SMALL_SAMPLES if amount.n_characters is None else amount.n_characters < SMALL_CHARACTERS
    minutes = recipe.training.max_minutes
    return few or (minutes is not None and minutes <= SMALL_MINUTES)


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
