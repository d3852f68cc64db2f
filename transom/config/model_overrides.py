"""Separate the recipe fields that the user sets, and list the model fields that fine-tuning may change."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transom.config.recipe import Recipe, check_recipe, read_recipe
from transom.errors import ConfigError

RECIPE_FIELDS = {"kind", "pooling", "classes", "temperature", "mask"}
"""Model fields that fine-tuning takes from the recipe, in addition to all dropouts; no weight of the original run depends on them."""

OVERRIDABLE_FIELDS = {
    "max_seq_len",
    "position.rope_scaling",
    "attention.pattern",
    *(f"feed_forward.load_balancing.{name}" for name in ("aux_loss_coef", "bias_update_rate")),
    *("feed_forward.z_loss_coef", "feed_forward.capacity_factor"),
    *("depth.aux_loss_coef", "depth.capacity", "norm.momentum"),
}
"""Model fields that fine-tuning takes from the original run, unless the user sets them; no weight depends on them."""

TOKENIZER_FIELDS = ("kind", "vocab_size", "lowercase", "joint")
"""Tokenizer fields that determine the vocabulary."""


def is_recipe_field(name: str) -> bool:
    """Return whether fine-tuning takes a model field from the recipe instead of the original run."""
    return name in RECIPE_FIELDS or name.endswith("dropout")


def is_overridable(path: str) -> bool:
    """Return whether the user may change a model field, such as ``position.rope_scaling.factor``, of the original run."""
    return any(path == field or path.startswith(f"{field}.") for field in OVERRIDABLE_FIELDS)


class UserOverrides(NamedTuple):
    """Recipe fields that the user sets by an override, a preset or a recipe file of their own; those of a packaged recipe do not count.

    Attributes:
        tables: the recipe's tables with these fields only, not validated.
        place: returns the file and line, or the option, that sets a field.
    """

    tables: Mapping[str, Any] = {}
    place: Callable[[tuple[str, ...]], str] = ".".join

    def of(self, part: str) -> Mapping[str, Any]:
        """Return the fields that the user set in a table; the short form ``tokenizer = "bpe"`` counts as ``{ kind = "bpe" }``."""
        return _expand_shorthand(self.tables.get(part, {}))

    def over(self, part: str, base: Mapping[str, Any], but: Collection[str]) -> dict[str, Any]:
        """Return ``base`` with the user's fields of a table merged into it.

        Args:
            part: name of the table.
            base: fields of the table, each component as a table with ``kind``.
            but: names of the user's fields that are not merged.
        """
        return _overlaid(base, {name: value for name, value in self.of(part).items() if name not in but})


NO_OVERRIDES = UserOverrides()
"""No fields set by the user."""


def load_training_recipe(where: str | Path, overrides: Sequence[str] = ()) -> tuple[Recipe, Path, UserOverrides]:
    """Read the recipe of a training run, and separate the user's fields from those of a packaged recipe.

    For fine-tuning, the user's model fields apply to the model of the original run, not to the one in the recipe. If the recipe is
    invalid with these fields, the returned recipe contains only those of them for which ``is_recipe_field`` is true.

    Args:
        where: name of a packaged recipe, or path of a TOML file.
        overrides: as for ``load_recipe``.

    Returns:
        The recipe, the folder from which a relative ``data.root`` starts, and the user's fields.

    Raises:
        ConfigError: as for ``load_recipe``.
    """
    raw, own = read_recipe(where, overrides), read_recipe(where, overrides, own=True)
    asked, training = UserOverrides(own.tables, own.place), raw.tables.get("training")
    try:
        return check_recipe(raw), raw.base, asked
    except ConfigError as error:
        if not (isinstance(training, Mapping) and training.get("init_from", "none") != "none"):
            raise
        packaged = {} if read_recipe(where, own=True).tables else _expand_shorthand(read_recipe(where).tables.get("model", {}))
        anew = {name: value for name, value in asked.of("model").items() if is_recipe_field(name)}
        same_kind = anew.get("kind", packaged.get("kind")) == packaged.get("kind")
        raw.tables["model"] = _overlaid(packaged if same_kind else {}, anew)
        try:
            return check_recipe(raw), raw.base, asked
        except ConfigError:  # the error is not in the model's shape
            raise error from None


def _expand_shorthand(table: Any) -> Mapping[str, Any]:
    return table if isinstance(table, Mapping) else {"kind": table}


def _overlaid(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the fields of ``top``; a component keeps its other fields unless ``top`` changes its kind."""
    out = dict(base)
    for name, value in top.items():
        below = out.get(name)
        if isinstance(below, Mapping) and isinstance(value, str):
            value = {"kind": value}
        if isinstance(below, Mapping) and isinstance(value, Mapping) and value.get("kind", below.get("kind")) == below.get("kind"):
            value = _overlaid(below, value)
        out[name] = value
    return out
