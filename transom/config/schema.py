"""Base of all schema classes: closed and frozen, with shorthand for components; and the slots that hold components."""

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from transom.files.limits import MAX_FLOAT, MAX_INT


class Schema(BaseModel):
    """A closed set of validated fields; an unknown field is an error, and so is a value of another type or a number that is not finite.

    TOML has no null: ``"none"`` stands for it in every field that may be empty, and for the default in a field with a ``derived_default``.
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
                raise ValueError(f"expected a whole number of at most 64 bits, found {number}; make it smaller")
            if isinstance(number, float) and abs(number) > MAX_FLOAT:
                raise ValueError(f"expected a number of at most {MAX_FLOAT:.1e}, found {number:g}; make it smaller")
        return value


def derived_default(compute: Callable[[dict[str, Any]], Any], formula: str, description: str) -> Any:
    """Declare a whole number above 0 whose default is computed from the fields before it.

    Args:
        compute: return the default, given the fields before it by name.
        formula: the same for the documentation: "d_model / n_heads".
        description: of the field.
    """
    return Field(default_factory=compute, ge=1, description=description, json_schema_extra={"formula": formula})


def derived_formula(field: FieldInfo) -> str | None:
    """Return the formula of a default that is computed from other fields; None for a constant default."""
    return str(field.json_schema_extra["formula"]) if isinstance(field.json_schema_extra, dict) else None


class ComponentConfig(Schema):
    """A component: a part that is chosen by its ``kind``.

    In a recipe ``norm = "layernorm"`` is short for ``norm = { kind = "layernorm" }``, and a table without ``kind`` is of the default's.
    Its docstring has the equation with its source, and after ``Cost and use:`` the advice in docs/components.md.
    """

    IMPLEMENTED_IN: ClassVar[str] = ""
    """Module whose import registers what builds it, where importing the schema does not: it is imported when one is first built."""

    kind: str


class Slot:
    """A place for one of several components: the annotation of a field whose kinds the registry knows (``config.components``).

    pydantic makes the tagged union of a field when it builds the class that has the field, and again when a component is registered later.

    Attributes:
        name: of the slot, by which components are registered in it.
        base: class of every component in it.
        components: by kind, in the order of their registration.
        built: whether pydantic has built a class with it.
    """

    def __init__(self, name: str, base: type[ComponentConfig] = ComponentConfig) -> None:
        assert name not in SLOTS, f"{name}: two slots"
        SLOTS[name] = self
        self.name, self.base, self.built = name, base, False
        self.components: dict[str, type[ComponentConfig]] = {}

    @property
    def choices(self) -> tuple[type[ComponentConfig], ...]:
        """The components, each once."""
        return tuple(dict.fromkeys(self.components.values()))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Build the tagged union of all choices."""
        self.built = True
        first, *others = self.choices
        return handler.generate_schema(Annotated[Union[(first, *others)], Field(discriminator="kind")] if others else first)


SLOTS: dict[str, Slot] = {}
"""All slots by name."""


def choices(slot: str) -> tuple[type[ComponentConfig], ...]:
    """List the components that a slot can hold, in the order of their registration."""
    return SLOTS[slot].choices


def split_docstring(schema: type[Schema]) -> tuple[str, str]:
    """Return what a schema is, and what it costs and when to use it, from its docstring."""
    what, _, advice = " ".join((schema.__doc__ or "").split()).partition(" Cost and use: ")
    return what, advice


def kinds(schema: type[Schema]) -> tuple[str, ...]:
    """List the kinds of a component; none for the base of several, or another schema."""
    return get_args(schema.model_fields["kind"].annotation) if issubclass(schema, ComponentConfig) else ()


def allowed_types(field: Any) -> tuple[Any, ...]:
    """List the types that a field, or an annotation, allows; of a slot, the components that it can hold.

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
    """List the schema classes that a field, or an annotation, allows."""
    return [member for member in allowed_types(field) if isinstance(member, type) and issubclass(member, Schema)]


def list_item_schemas(field: Any) -> list[type[Schema]]:
    """List the schema classes of which a field allows a list."""
    return [schema for member in allowed_types(field) if get_origin(member) is tuple for schema in allowed_schemas(get_args(member)[0])]


def expand_shorthand(field: FieldInfo, value: Any) -> Any:
    """Write a field's short form in full."""
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
