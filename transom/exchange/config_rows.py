"""Rows of a family's table of configuration fields. Each row is read in both directions.

Our fields are dotted paths of a model configuration, such as ``attention.qkv_bias``; foreign fields are keys of a ``config.json``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from transom.errors import CheckpointError
from transom.files.limits import MAX_INT

Fields = dict[str, Any]
"""Values of configuration fields, by name."""

REQUIRED = object()
"""Default of a foreign field that every ``config.json`` of the family has."""


@runtime_checkable
class ConfigRow(Protocol):
    """A correspondence between fields of both configurations."""

    @property
    def names(self) -> tuple[str, ...]:
        """Foreign fields that the row reads."""

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        """Return our fields.

        Raises:
            CheckpointError: a foreign field is missing, or has a value that no field of ours expresses.
        """

    def write(self, ours: Mapping[str, Any]) -> Fields:
        """Return the foreign fields."""


def foreign_value(foreign: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return a foreign field, or its default in the library where the file omits it.

    Raises:
        CheckpointError: the file omits a field without a default.
    """
    value = foreign.get(name, default)
    if value is REQUIRED:
        raise CheckpointError(f"config.json: expected the field {name}, found none; export the model again with save_pretrained")
    return value


def foreign_size(foreign: Mapping[str, Any], name: str, default: int) -> int:
    """Return a foreign field with which others are computed.

    Raises:
        CheckpointError: it is no positive integer.
    """
    value = foreign.get(name, default)
    if type(value) is not int or not 0 < value <= MAX_INT:
        raise CheckpointError(f"config.json: {name}: expected a positive integer, found {value!r:.80}; copy the file again")
    return value


@dataclass(frozen=True)
class Same:
    """A field with the same meaning on both sides; where our component lacks it, the library's default is written."""

    ours: str
    name: str
    default: Any = REQUIRED

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        return {self.ours: foreign_value(foreign, self.name, self.default)}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        value = ours.get(self.ours, self.default)
        return {} if value is REQUIRED else {self.name: value}


@dataclass(frozen=True)
class Choice:
    """A field whose values have other names on the other side.

    Attributes:
        values: our value by foreign value; of several foreign values for one of ours, the first is written.
    """

    ours: str
    name: str
    values: Mapping[Any, Any]
    default: Any = REQUIRED

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        """Return our value; raise CheckpointError for one that is none of ``values``."""
        value = foreign_value(foreign, self.name, self.default)
        if not isinstance(value, str | int | None) or value not in self.values:
            expected = ", ".join(map(str, self.values))
            raise CheckpointError(f"config.json: {self.name}: expected one of {expected}, found {value!r:.80}; transom cannot express it")
        return {self.ours: self.values[value]}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        """Return the foreign value; the first of all if there is none, which a comparison after reading it back reveals."""
        return {self.name: next((name for name, value in self.values.items() if value == ours.get(self.ours)), next(iter(self.values)))}


@dataclass(frozen=True)
class Always:
    """Our fields that every model of the family has with these values."""

    values: Mapping[str, Any]
    names: tuple[str, ...] = ()

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        return dict(self.values)

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return {}


@dataclass(frozen=True)
class Expect:
    """A foreign field that must have one value, because no field of ours expresses others."""

    name: str
    value: Any

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        """Return no field; raise CheckpointError for another value."""
        found = foreign.get(self.name, self.value)
        if found != self.value or isinstance(found, bool) != isinstance(self.value, bool):
            raise CheckpointError(
                f"config.json: {self.name}: expected {self.value!r}, found {found!r:.80}; transom cannot express this variant of the model"
            )
        return {}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return {self.name: self.value}


OWN_OUTPUT = "own output matrix"
"""Name of a field that says whether the folder has an output matrix that differs from the embedding; no field of ``config.json``."""


@dataclass(frozen=True)
class Tied:
    """Whether the output shares the matrix of the embedding: as the configuration says, unless the folder has two different matrices."""

    default: bool
    ours: str = "tie_embeddings"
    names: tuple[str, ...] = ("tie_word_embeddings",)

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        return {self.ours: bool(foreign.get(self.names[0], self.default)) and not foreign.get(OWN_OUTPUT, False)}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return {self.names[0]: ours.get(self.ours, self.default)}


@dataclass(frozen=True)
class Ignored:
    """Foreign fields on which no output depends."""

    names: tuple[str, ...]

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        return {}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return {}


@dataclass(frozen=True)
class Dropout:
    """A dropout probability, which one field of ours expresses and several foreign ones; the first is read.

    The outputs of a trained model do not depend on it.
    """

    ours: str
    names: tuple[str, ...]
    default: float = 0.0

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        return {self.ours: float(foreign_value(foreign, self.names[0], self.default) or 0.0)}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return dict.fromkeys(self.names, ours.get(self.ours, self.default))


@dataclass(frozen=True)
class Computed:
    """Fields that functions convert, where no other row fits."""

    names: tuple[str, ...]
    from_foreign: Callable[[Mapping[str, Any]], Fields]
    to_foreign: Callable[[Mapping[str, Any]], Fields]

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        return self.from_foreign(foreign)

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return self.to_foreign(ours)


def flatten(table: Mapping[str, Any], prefix: str = "") -> Fields:
    """Return the leaves of nested tables by dotted path.

    >>> flatten({"norm": {"kind": "rmsnorm", "eps": 1e-6}, "n_layers": 2})
    {'norm.kind': 'rmsnorm', 'norm.eps': 1e-06, 'n_layers': 2}
    """
    leaves: Fields = {}
    for name, value in table.items():
        leaves |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {prefix + name: value}
    return leaves


def unflatten(leaves: Mapping[str, Any]) -> Fields:
    """Return the nested tables of dotted paths; the inverse of ``flatten``."""
    table: Fields = {}
    for path, value in leaves.items():
        *outer, name = path.split(".")
        inner = table
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return table
