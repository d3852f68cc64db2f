"""The base of every schema class: closed, frozen, and spelled as one word where that is enough."""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from pydantic.fields import FieldInfo

from transom.files.limits import MAX_FLOAT, MAX_INT


class Schema(BaseModel):
    """A closed set of validated fields; an unknown field is an error, and so is a value of another type or a number that is not finite.

    TOML has no null: ``"none"`` stands for it in every field that may be empty.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        fields = cls.model_fields
        return {name: spelled_out(fields[name], part) if name in fields else part for name, part in value.items()}

    @field_validator("*")
    @classmethod
    def _computable(cls, value: Any) -> Any:
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, int) and abs(number) > MAX_INT:
                raise ValueError(f"expected a whole number of at most 64 bits, found {number}; make it smaller")
            if isinstance(number, float) and abs(number) > MAX_FLOAT:
                raise ValueError(f"expected a number of at most {MAX_FLOAT:.1e}, found {number:g}; make it smaller")
        return value


class Brick(Schema):
    """A part that is chosen by its ``kind``.

    In a recipe ``norm = "layernorm"`` is short for ``norm = { kind = "layernorm" }``, and a table without ``kind`` is of the default's.
    """


def members(annotation: Any) -> tuple[Any, ...]:
    """List the types that an annotation allows.

    >>> members(Annotated[int | None, "any"])
    (<class 'int'>, <class 'NoneType'>)
    """
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(member for part in get_args(annotation) for member in members(part))
    return (annotation,)


def schemas(annotation: Any) -> list[type[Schema]]:
    """List the schema classes that an annotation allows."""
    return [member for member in members(annotation) if isinstance(member, type) and issubclass(member, Schema)]


def listed(annotation: Any) -> list[type[Schema]]:
    """List the schema classes of which an annotation allows a list."""
    return [schema for member in members(annotation) if get_origin(member) is tuple for schema in schemas(get_args(member)[0])]


def spelled_out(field: FieldInfo, value: Any) -> Any:
    """Write a field's short form in full."""
    if value == "none" and type(None) in members(field.annotation):
        return None
    if not any(issubclass(schema, Brick) for schema in schemas(field.annotation)):
        return value
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict) and "kind" not in value and isinstance(field.default, Brick):
        return {"kind": getattr(field.default, "kind"), **value}  # noqa: B009  # each kind declares its own literal
    return value
