"""What a recipe may change of the model of a run that a training starts from, and what a person asked to be changed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transom.config.recipe import Recipe, check_recipe, read_recipe
from transom.errors import ConfigError

RECIPE_FIELDS = {"kind", "pooling", "classes", "temperature", "mask"}
"""Fields of a model that are the recipe's in fine-tuning, as are all dropouts: no weight of the shared part depends on them."""

OVERRIDABLE_FIELDS = {
    "max_seq_len",
    *(f"position.{name}" for name in ("rope_scaling", "factor", "original_max_seq_len")),
    "attention.pattern",
    *(f"feed_forward.{name}" for name in ("balance.weight", "balance.rate", "z_loss_coef", "capacity")),
    *("depth.aux_loss_coef", "depth.capacity", "norm.momentum"),
}
"""Fields that are the other run's unless a person asks for another value: no weight has its shape or its meaning by them."""

EFFECTIVE_VALUES = {"n_kv_heads": "key_heads", "d_head": "width_of_head", "d_value": "width_of_value", "d_embedding": "width_of_embedding"}
"""Fields that may be left out, by what they come to."""

TOKENIZER_FIELDS = ("kind", "vocab_size", "lowercase", "joint")
"""Fields of a tokenizer that its symbols depend on."""


def is_recipe_field(name: str) -> bool:
    """Tell whether a field of a model is the recipe's in fine-tuning, not the other run's."""
    return name in RECIPE_FIELDS or name.endswith("dropout")


class UserOverrides(NamedTuple):
    """What a person set of a recipe: by an override, by a preset, or in a file of their own, but not by choosing a packaged recipe.

    Attributes:
        tables: the recipe's tables, as they were read.
        place: gives the file and line, or the flag, that sets a field.
    """

    tables: Mapping[str, Any] = {}
    place: Callable[[tuple[str, ...]], str] = ".".join

    def of(self, part: str) -> Mapping[str, Any]:
        """Return a table; the short form of a component is its ``kind``."""
        return _expand_shorthand(self.tables.get(part, {}))

    def over(self, part: str, base: Mapping[str, Any], but: Collection[str]) -> dict[str, Any]:
        """Lay what was asked for of a table over the fields that it is to change.

        Args:
            part: name of the table.
            base: the fields to start from, all of them spelled out.
            but: fields that nobody can ask for.
        """
        return _overlaid(base, {name: value for name, value in self.of(part).items() if name not in but})


NO_OVERRIDES = UserOverrides()
"""A recipe that no person wrote or changed."""


def load_training_recipe(where: str | Path, overrides: Sequence[str] = ()) -> tuple[Recipe, Path, UserOverrides]:
    """Read the recipe of a training, and tell what a person set of it from what a packaged recipe brings.

    Where the training starts from another run, what was asked for is to fit that run's model and need not fit the recipe's own. It is then
    left out of the recipe, but for what is chosen anew.

    Args:
        where: name of a packaged recipe, or path of a TOML file.
        overrides: as for ``load_recipe``.

    Returns:
        The recipe, the folder that a relative ``data.root`` starts from, and what was asked for.

    Raises:
        ConfigError: as ``load_recipe`` does.
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
        except ConfigError:  # it is not the model's shape that does not fit
            raise error from None


def _expand_shorthand(table: Any) -> Mapping[str, Any]:
    return table if isinstance(table, Mapping) else {"kind": table}


def _overlaid(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one table over another whose components are spelled out; a component of the same kind keeps its other fields."""
    out = dict(base)
    for name, value in top.items():
        below = out.get(name)
        if isinstance(below, Mapping) and isinstance(value, str):
            value = {"kind": value}
        if isinstance(below, Mapping) and isinstance(value, Mapping) and value.get("kind", below.get("kind")) == below.get("kind"):
            value = _overlaid(below, value)
        out[name] = value
    return out
