"""Base of all schema classes: closed, frozen, with shorthand for components; and the slots of components."""

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from transom.files.limits import MAX_FLOAT, MAX_INT


class Schema(BaseModel):
    """A closed set of validated fields: unknown fields, values of other types and non-finite numbers are errors.

    TOML has no null. ``"none"`` represents None in optional fields, and the default in fields with a ``derived_default``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        fields = cls.model_fields
        full = {name: expand_shorthand(fields[name], part) if name in fields else part for name, part in value.items()}
        return {name: part for name, part in full.items() if part is not None or name not in fields or not derived_formula(fields[name])}

    @field_validator("*")
    @classmethod
    def _within_range(cls, value: Any) -> Any:
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, int) and abs(number) > MAX_INT:
                raise ValueError(f"expected a whole number of at most 64 bits, found {number}; give a smaller number")
            if isinstance(number, float) and abs(number) > MAX_FLOAT:
                raise ValueError(f"expected a number of at most {MAX_FLOAT:.1e}, found {number:g}; give a smaller number")
        return value


def derived_default(compute: Callable[[dict[str, Any]], Any], formula: str, description: str) -> Any:
    """Declare a whole number above 0 whose default is computed from the fields before it.

    Args:
        compute: returns the default, given the values, by name, of the fields that are declared before this one.
        formula: the computation as text for the documentation, such as "d_model / n_heads".
        description: description of the field.
    """
    return Field(default_factory=compute, ge=1, description=description, json_schema_extra={"formula": formula})


def derived_formula(field: FieldInfo) -> str | None:
    """Return the formula of a default that is computed from other fields; None for a constant default."""
    return str(field.json_schema_extra["formula"]) if isinstance(field.json_schema_extra, dict) else None


class ComponentConfig(Schema):
    """Base schema of components, which are selected by ``kind``.

    In a recipe ``norm = "layernorm"`` is short for ``norm = { kind = "layernorm" }``, and a table without ``kind`` has the default kind.
    The docstring of a component has the equation with its source and, after ``Cost and use:``, the advice in docs/components.md.
    """

    IMPLEMENTED_IN: ClassVar[str] = ""
    """Module that registers the builder of the component, imported on first use; empty if the builder is registered with the schema."""

    kind: str


class Slot:
    """Annotation of a field that accepts the components registered for a slot.

    The union of components that a field accepts is built with the field's schema class, and rebuilt if a component is registered later.

    Attributes:
        name: name of the slot, for ``register_component``.
        base: base class of the components.
        components: components by kind, in order of registration.
        built: whether a schema class with a field of this slot has been built.
    """

    def __init__(self, name: str, base: type[ComponentConfig] = ComponentConfig) -> None:
        assert name not in SLOTS, f"{name}: two slots"
        SLOTS[name] = self
        self.name, self.base, self.built = name, base, False
        self.components: dict[str, type[ComponentConfig]] = {}

    @property
    def choices(self) -> tuple[type[ComponentConfig], ...]:
        """The schema classes of the components, in order of registration; a class with several kinds occurs once."""
        return tuple(dict.fromkeys(self.components.values()))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Build the tagged union of all components."""
        self.built = True
        first, *others = self.choices
        return handler.generate_schema(Annotated[Union[(first, *others)], Field(discriminator="kind")] if others else first)


SLOTS: dict[str, Slot] = {}
"""All slots by name."""


def choices(slot: str) -> tuple[type[ComponentConfig], ...]:
    """Return the schema classes of a slot's components, in order of registration."""
    return SLOTS[slot].choices


def split_docstring(schema: type[Schema]) -> tuple[str, str]:
    """Split a schema's docstring into its definition and its ``Cost and use:`` advice."""
    what, _, advice = " ".join((schema.__doc__ or "").split()).partition(" Cost and use: ")
    return what, advice


def kinds(schema: type[Schema]) -> tuple[str, ...]:
    """Return the kinds of a component; empty for base classes and other schemas."""
    return get_args(schema.model_fields["kind"].annotation) if issubclass(schema, ComponentConfig) else ()


def allowed_types(field: Any) -> tuple[Any, ...]:
    """Return the types that a field or annotation allows; for a slot, its components.

    >>> allowed_types(Annotated[int | None, "any"])
    (<class 'int'>, <class 'NoneType'>)
    """
    if isinstance(field, FieldInfo):
        annotation, metadata = field.annotation, field.metadata
    elif get_origin(field) is Annotated:
        annotation, *metadata = get_args(field)
    else:
        annotation, metadata = field, []
    if slot := next((each for each in metadata if isinstance(each, Slot)), None):
        return slot.choices
    if get_origin(annotation) in (Annotated, Union, UnionType):
        parts = get_args(annotation) if get_origin(annotation) is not Annotated else (annotation,)
        return tuple(member for part in parts for member in allowed_types(part))
    return (annotation,)


def allowed_schemas(field: Any) -> list[type[Schema]]:
    """Return the schema classes that a field or annotation allows."""
    return [member for member in allowed_types(field) if isinstance(member, type) and issubclass(member, Schema)]


def list_item_schemas(field: Any) -> list[type[Schema]]:
    """Return the schema classes that may be items of a list field."""
    return [schema for member in allowed_types(field) if get_origin(member) is tuple for schema in allowed_schemas(get_args(member)[0])]


def expand_shorthand(field: FieldInfo, value: Any) -> Any:
    """Return a field's value without short forms: "none" as None, a component's name as a table, and a table with its default ``kind``."""
    allowed = allowed_types(field)
    if value == "none" and (type(None) in allowed or derived_formula(field)):
        return None
    if not any(isinstance(member, type) and issubclass(member, ComponentConfig) for member in allowed):
        return value
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict) and "kind" not in value and isinstance(field.default, ComponentConfig):
        return {"kind": field.default.kind, **value}
    return value
