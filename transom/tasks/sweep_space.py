"""The search space of a sweep: fields of a recipe with a range or a list of values, and configurations drawn from it."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transom.config.model_overrides import load_training_recipe
from transom.config.recipe import Recipe
from transom.config.schema import allowed_types
from transom.config.toml_input import parse_override
from transom.errors import ConfigError
from transom.tasks.short_runs import check_compared_field

MIN_LOG_RATIO = 10.0
"""A range above 0 is sampled on a logarithmic scale if its end is at least this many times its start."""

N_CHECKED = 8
"""Whole numbers at the start of a range that are checked before the sweep starts."""


@dataclass(frozen=True)
class Axis:
    """A field to search over.

    Attributes:
        field: dotted name of the field.
        values: values of a list, as they were written; empty for a range.
        low: lowest value of a range.
        high: highest value of a range.
        is_integer: whether the values of a range are whole numbers.
    """

    field: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_integer: bool = False

    @property
    def is_log(self) -> bool:
        """Whether the range is sampled on a logarithmic scale."""
        return self.low > 0 and self.high / self.low >= MIN_LOG_RATIO

    def at(self, fraction: float) -> str:
        """Return the value of a range at a fraction of it from 0 to 1, as it is written in a recipe, with at most four digits."""
        end = self.high + self.is_integer  # each whole number has a part of the range
        value = self.low * (end / self.low) ** fraction if self.is_log else self.low + fraction * (end - self.low)
        if self.is_integer:
            return str(min(int(value), int(self.high)))
        return f"{min(max(float(f'{value:.4g}'), self.low), self.high):g}"


class Configuration(NamedTuple):
    """A point of the search space.

    Attributes:
        number: its number, from 0.
        values: value of each field, as it is written in a recipe.
    """

    number: int
    values: Mapping[str, str]

    @property
    def overrides(self) -> list[str]:
        """The values in the form of ``--set``."""
        return [f"{field}={value}" for field, value in self.values.items()]

    @property
    def folder(self) -> str:
        """The name of the folder that contains the run folders of the configuration."""
        return f"config-{self.number + 1:02}"


def parse_axes(base: str, overrides: Sequence[str], over: Sequence[str], shared: Sequence[str]) -> list[Axis]:
    """Parse the values of ``--over``.

    Args:
        base: name of a packaged recipe, or path of a TOML file.
        overrides: changes to the recipe that all configurations share.
        over: ``FIELD=LOW..HIGH`` or ``FIELD=A,B,C`` each.
        shared: fields that all configurations share.

    Raises:
        ConfigError: one is malformed, its field is unknown or shared, or its values do not fit the field; or no field has two values.
    """
    axes, recipe = list[Axis](), load_training_recipe(base, overrides)[0]
    for text in over:
        field, equals, written = (part.strip() for part in text.partition("="))
        low, dots, high = (part.strip() for part in written.partition(".."))
        if not (equals and field and written.strip(", ")) or (dots and not (low and high)):
            raise ConfigError(
                f"--over {text}: expected FIELD=LOW..HIGH or FIELD=A,B,C, found neither; write training.learning_rate=1e-4..1e-2"
            )
        _check_field(recipe, text, field, shared)
        if field in [axis.field for axis in axes]:
            raise ConfigError(f"--over {text}: expected each field once, found {field} twice; give all its values at once")
        axes.append(_parse_range(base, overrides, text, field, low, high) if dots else _parse_list(base, overrides, text, field, written))
    if axes and all(len(axis.values) == 1 for axis in axes):
        raise ConfigError(
            f"--over {over[0]}: expected at least two different values to compare, found one; add values as in FIELD=A,B,C, or give a range"
            " as in FIELD=LOW..HIGH"
        )
    return axes


def _check_field(recipe: Recipe, text: str, field: str, shared: Sequence[str]) -> None:
    """Check that runs may differ in a field; an unknown one is found when the first value is loaded."""
    if field in ("model", "training"):
        names = ", ".join(f"{field}.{name}" for name in type(getattr(recipe, field)).model_fields)
        raise ConfigError(f"--over {text}: expected a field, found the table {field}; choose one of its fields: {names}")
    if field.partition(".")[0] in type(recipe).model_fields:
        check_compared_field(f"--over {text}", field, shared)


def _parse_list(base: str, overrides: Sequence[str], text: str, field: str, written: str) -> Axis:
    """Parse a list; of equal values, such as ``1e-3`` and ``0.001``, only the first one is kept."""
    values, parsed = list[str](), list[Any]()
    for value in split_values(written):
        _load(base, overrides, f"{field}={value}", text)
        if (found := parse_override(f"{field}={value}").value) not in parsed:
            parsed.append(found)
            values.append(value)
    return Axis(field, tuple(values))


def _parse_range(base: str, overrides: Sequence[str], text: str, field: str, low: str, high: str) -> Axis:
    recipe, _ = [_load(base, overrides, f"{field}={value}", text) for value in (low, high)]
    types = allowed_types(_field_info(recipe, field))
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = math.nan, math.nan
    is_integer = int in types and float not in types
    if not (is_integer or float in types) or not all(map(math.isfinite, ends)):
        raise ConfigError(
            f"--over {text}: expected a field that is a number and two numbers for a range, found others; list the values as A,B,C"
        )
    if ends[0] == ends[1]:
        raise ConfigError(f"--over {text}: expected a range between two different numbers, found {low} twice; change one of them")
    if ends[0] > ends[1]:
        raise ConfigError(f"--over {text}: expected a range from a lower to a higher number, found {low} and {high}; exchange them")
    if is_integer:
        _check_whole_numbers(base, overrides, text, field, int(ends[0]), int(ends[1]))
    return Axis(field, (), *ends, is_integer)


def _check_whole_numbers(base: str, overrides: Sequence[str], text: str, field: str, low: int, high: int) -> None:
    """Check that the field takes whole numbers after the first one, and not only multiples of another field."""
    for number in range(low + 1, min(low + N_CHECKED, high)):
        try:
            _load(base, overrides, f"{field}={number}", text)
        except ConfigError as error:
            raise ConfigError(f"{error}; or list the numbers that fit, as in --over {field}={low},{high}") from None


def _load(base: str, overrides: Sequence[str], override: str, text: str) -> Recipe:
    """Load the recipe with one value; an error names ``--over``."""
    try:
        return load_training_recipe(base, [*overrides, override])[0]
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"--set {override}", f"--over {text}", 1)) from None


def _field_info(recipe: Recipe, field: str) -> Any:
    *tables, name = field.split(".")
    part: Any = recipe
    for table in tables:
        part = getattr(part, table)
    return type(part).model_fields[name]


def split_values(text: str) -> list[str]:
    """Split a list at commas that are outside of brackets, braces and quotes.

    >>> split_values('0.0, 0.1,[1, 2],{ kind = "a,b" }')
    ['0.0', '0.1', '[1, 2]', '{ kind = "a,b" }']
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [stripped for part in parts if (stripped := part.strip())]


def draw_configurations(axes: Sequence[Axis], n: int, seed: int) -> list[Configuration]:
    """Draw configurations that cover the search space.

    Ranges are sampled by a Latin hypercube (McKay et al. 1979): a range is divided into as many parts as there are configurations, and each
    part has the value of one of them. Lists are taken in turn, so that two values of a list have equally many configurations, or one more,
    and no combination of lists occurs twice before all have occurred.

    Args:
        axes: the fields.
        n: number of configurations. Fewer are drawn if the lists have fewer combinations, or a range of whole numbers repeats itself.
        seed: seed of the draw.
    """
    generator = random.Random(seed)
    columns, period = list[list[str]](), 1
    for axis in axes:
        if axis.values:
            size = len(axis.values)
            common, shifts = math.lcm(period, size), math.gcd(period, size)  # after each common multiple the list is shifted by one
            columns.append([axis.values[(i + i // common % shifts) % size] for i in range(n)])
            period *= size
        else:
            parts = generator.sample(range(n), n)
            columns.append([axis.at((part + generator.random()) / n) for part in parts])
    distinct = dict.fromkeys(zip(*columns, strict=True))
    return [Configuration(number, dict(zip((axis.field for axis in axes), values, strict=True))) for number, values in enumerate(distinct)]
