"""Sizes of a recipe's model: ``small``, ``base`` and ``large``, which fit any choice of components."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from math import log
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from transom.config.recipe import check_recipe, read_recipe
from transom.config.schema import Schema
from transom.config.suggestions import suggest
from transom.config.toml_input import parse_override
from transom.errors import ConfigError

Size = Literal["small", "base", "large"]

WIDTH: Mapping[str, Fraction] = {"small": Fraction(1, 2), "large": Fraction(2)}
"""Factor of the dimensions and of the heads of each size; the dimension of a head stays."""

DEPTH: Mapping[str, Fraction] = {"small": Fraction(2, 3), "large": Fraction(3, 2)}
"""Factor of the number of layers of each size."""

LAYERS = ("n_layers", "n_encoder_layers", "n_decoder_layers")
SIZE_FIELDS = ("d_model", "n_heads", "n_kv_heads", "d_embedding", "d_ff", *LAYERS)
"""Fields of a model that a size sets, besides the channels of a stem."""

MAX_TRIED = 200
"""Maximum number of combinations of dimensions that are validated."""


class SizedModel(NamedTuple):
    """Overrides that give a recipe's model a size.

    Attributes:
        overrides: overrides of the recipe; the user's own come after them.
        note: a line on what they change; empty for the base size.
    """

    overrides: list[str]
    note: str


def resize_model(recipe: str | Path, overrides: Sequence[str], size: str | None) -> SizedModel:
    """Return the overrides that give a recipe's model a size.

    The recipe's own sizes are ``base``. ``small`` has half the dimensions and heads and two thirds of the layers, ``large`` twice the
    dimensions and heads and half as many layers again. If the components do not admit such dimensions, the nearest ones that they admit are
    used. Fields that ``overrides`` set are kept.

    Args:
        recipe: name of a packaged recipe, or path of a TOML file.
        overrides: the user's overrides, with which the recipe is valid.
        size: a ``Size``; None leaves the size to the recipe, which may fit it to the data (``planning.data_fit``).

    Raises:
        ConfigError: the size is unknown, the recipe is invalid, or the run is fine-tuned and so keeps the size of another run.
    """
    if size is not None and size not in get_args(Size):
        raise ConfigError(f"--size: expected small, base or large, found {size!r}; {suggest(size, list(get_args(Size)))}")
    if size is None:
        return SizedModel([], "")
    base = check_recipe(read_recipe(recipe, overrides))
    if base.training.init_from is not None:
        raise ConfigError("expected --size with a new model, found it with --init-from, which keeps the size of its run; leave it out")
    if size == "base":
        return SizedModel([f"model.{name}={getattr(base.model, name)}" for name in ("d_model",) if hasattr(base.model, name)], "")
    for fields in shapes(base.model, size, _explicit_fields(overrides)):
        changes = [f"model.{name}={value}" for name, value in fields.items()]
        try:
            check_recipe(read_recipe(recipe, [*changes, *overrides]))
        except ConfigError:
            continue
        return SizedModel(changes, _describe(size, base.model, fields))
    return SizedModel([], f"size {size}: the model keeps its size, since no field that is left to choose fits another")


def _explicit_fields(overrides: Sequence[str]) -> set[str]:
    """Return the names of the model fields that the user sets."""
    sets = [override for override in map(parse_override, overrides) if override.path[0] == "model"]
    whole = {name for override in sets if len(override.path) == 1 and isinstance(override.value, dict) for name in override.value}
    return whole | {override.path[1] for override in sets if len(override.path) > 1}


def shapes(model: Any, size: str, chosen: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the fields of models of about a size, the nearest ones first, then the same with the base number of layers.

    Args:
        model: the model of base size.
        size: "small" or "large".
        chosen: fields that are kept.
    """
    width, depth = WIDTH[size], DEPTH[size]
    layers = {name: max(1, _round(getattr(model, name) * depth)) for name in LAYERS if hasattr(model, name) and name not in chosen}
    others = dict[str, Any]()
    if hasattr(model, "d_ff") and "d_ff" not in chosen:
        others["d_ff"] = _scaled(model.d_ff, width)
    if "decoder_d_ff" in model.model_fields_set and "decoder_d_ff" not in chosen:
        others["decoder_d_ff"] = _scaled(model.decoder_d_ff, width)
    channels = getattr(getattr(model, "stem", None), "channels", None)
    if channels is not None and "stem" not in chosen:
        others["stem.channels"] = [_scaled(each, width) for each in channels]
    dimensions = list(_dimensions(model, width, chosen))[:MAX_TRIED]
    for depths in (layers, {}):
        for fields in dimensions:
            if each := {**fields, **others, **depths}:
                yield each


def _dimensions(model: Any, width: Fraction, chosen: Collection[str]) -> list[dict[str, Any]]:
    """Return choices of heads and of the dimensions that depend on them, those nearest to the size first.

    The number of query heads per head of keys and values is kept where possible, and so is the dimension of a head.
    """
    if "d_model" in chosen:
        return [{}]
    given = model.model_fields_set
    if not hasattr(model, "n_heads"):
        options = [{"d_model": d_model} for d_model in _near(model.d_model, width)]
    else:
        unit = Fraction(model.d_model, model.n_heads)
        heads = [model.n_heads] if "n_heads" in chosen else range(1, 2 * model.n_heads + 1)
        grouped = "n_kv_heads" in given and "n_kv_heads" not in chosen
        options = []
        for n_heads in heads:
            n_kv = min(_divisors(n_heads), key=lambda n: abs(n * model.n_heads - n_heads * model.n_kv_heads))
            own = ({} if "n_heads" in chosen else {"n_heads": n_heads}) | ({"n_kv_heads": n_kv} if grouped else {})
            units = dict.fromkeys([unit, *map(Fraction, _near(unit, model.d_model * width / (unit * n_heads)))])
            options += [{"d_model": int(n_heads * each), **own} for each in units if (n_heads * each).denominator == 1]
    if "d_embedding" in given and "d_embedding" not in chosen:
        options = [{**each, "d_embedding": max(1, each["d_model"] * model.d_embedding // model.d_model)} for each in options]
    return sorted(options, key=lambda each: _distance(model, width, each))


def _distance(model: Any, width: Fraction, fields: Mapping[str, Any]) -> float:
    """Return the deviation of d_model from a size, plus half the change of the dimension of a head; heads of odd dimensions come last."""
    n_heads = getattr(model, "n_heads", 1)
    of_model = Fraction(fields["d_model"], model.d_model)
    of_head = of_model * n_heads / fields.get("n_heads", n_heads)
    becomes_odd = of_head != 1 and fields["d_model"] // fields.get("n_heads", n_heads) % 2
    return abs(log(of_model / width)) + abs(log(of_head)) / 2 + becomes_odd


def _near(value: int | Fraction, factor: Fraction) -> list[int]:
    """Return dimensions near ``factor * value``: first the one that is a multiple of as large a power of two, up to 8, as the value."""
    steps = [step for step in (8, 4, 2, 1) if value % step == 0] or [1]
    return list(dict.fromkeys(max(step, _round(value * factor / step) * step) for step in steps))


def _scaled(value: int, factor: Fraction) -> int:
    """Scale a dimension; multiples of 8, 4 or 2 stay multiples."""
    step = next(step for step in (8, 4, 2, 1) if value % step == 0)
    return max(min(step, value), _round(value * factor / step) * step)


def _round(value: Fraction) -> int:
    """Round to the nearest integer; halves are rounded up."""
    return int((value + Fraction(1, 2)) // 1)


def _divisors(n: int) -> list[int]:
    return [each for each in range(1, n + 1) if n % each == 0]


def _describe(size: str, model: Schema, fields: Mapping[str, Any]) -> str:
    """Return a line on what a size changes, with the base values."""

    def base(name: str) -> Any:
        value: Any = model
        for part in name.split("."):
            value = getattr(value, part)
        return list(value) if isinstance(value, tuple) else value

    changes = [f"{name} {value} (base {base(name)})" for name, value in fields.items() if value != base(name)]
    return f"size {size}: {', '.join(changes)}"
