"""The registry of components: the kinds that each slot of a recipe accepts, and the functions that build them.

A new norm is a schema class and a layer, in any imported module:

    @register_component("norm")
    class HalvedConfig(ComponentConfig):
        kind: Literal["halved"] = "halved"

    @implements(HalvedConfig)
    class HalvedNorm(Norm): ...

Every recipe field of slot ``norm`` then accepts the new kind, which error messages, docs/config.md and docs/components.md include.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from transom.config.schema import SLOTS, ComponentConfig, Schema, allowed_schemas, kinds, list_item_schemas
from transom.config.suggestions import suggest
from transom.errors import ConfigError

B = TypeVar("B", bound=ComponentConfig)
Builder = TypeVar("Builder", bound=Callable[..., Any])

_BUILDERS: dict[type[Schema], Callable[..., Any]] = {}


def register_component(*slots: str) -> Callable[[type[B]], type[B]]:
    """Register a component's schema class in slots, under each of its kinds (decorator).

    Schema classes with a field of one of the slots are rebuilt, so that recipes accept the component.

    Raises:
        ConfigError: the slot does not exist, the class is not derived from the slot's base, or the kind is taken.
    """

    def register(schema: type[B]) -> type[B]:
        for name in slots:
            _check(schema, name)
        for name in slots:
            SLOTS[name].components |= dict.fromkeys(kinds(schema), schema)
        if any(SLOTS[name].built for name in slots):
            _rebuild_holders(schema)
        return schema

    return register


def _check(schema: type[ComponentConfig], name: str) -> None:
    place = f"component {schema.__name__}"
    if name not in SLOTS:
        raise ConfigError(f"{place}: expected a slot, found {name!r}; {suggest(name, list(SLOTS))}")
    slot = SLOTS[name]
    if not issubclass(schema, slot.base):
        raise ConfigError(
            f"{place}: expected a subclass of {slot.base.__name__} for slot {name!r}; derive the class from {slot.base.__name__}"
        )
    if not kinds(schema):
        raise ConfigError(
            f'{place}: expected a field kind with the name of the component in recipes, found none; add kind: Literal["name"] = "name"'
        )
    if taken := [kind for kind in kinds(schema) if slot.components.get(kind, schema) is not schema]:
        raise ConfigError(
            f"{place}: kind {taken[0]!r} of slot {name!r} is taken by {slot.components[taken[0]].__name__}; choose another name"
        )


def implements(schema: type[ComponentConfig]) -> Callable[[Builder], Builder]:
    """Register the layer class or function that builds a component (decorator).

    Raises:
        ConfigError: the component has another builder.
    """

    def register(builder: Builder) -> Builder:
        if (there := _BUILDERS.setdefault(schema, builder)) is not builder:
            raise ConfigError(
                f"component {schema.__name__}: expected one builder, found {there.__module__}.{there.__qualname__} and"
                f" {builder.__module__}.{builder.__qualname__}; register a component of your own for the second"
            )
        return builder

    return register


def implementation(config: ComponentConfig) -> Callable[..., Any]:
    """Return the builder of a component; import the module that registers the builder, if necessary.

    Raises:
        ConfigError: no builder is registered.
    """
    if type(config) not in _BUILDERS and config.IMPLEMENTED_IN:
        import_module(config.IMPLEMENTED_IN)
    if (builder := _BUILDERS.get(type(config))) is None:
        name = type(config).__name__
        raise ConfigError(f"component {name}: no builder is registered; decorate a layer with @implements({name})")
    return builder


def registered_builder(schema: type[Schema]) -> Callable[..., Any] | None:
    """Return the builder of a component's schema class; None if no builder is registered so far."""
    return _BUILDERS.get(schema)


def build(config: ComponentConfig, *arguments: Any) -> Any:
    """Build a component from its configuration and the further arguments of its builder."""
    return implementation(config)(config, *arguments)


def _rebuild_holders(new: type[Schema]) -> None:
    """Rebuild every schema class with a field that accepts ``new``, and the classes with fields of these, inner classes first."""
    stale, seen = {new}, set[type[Schema]]()

    def visit(schema: type[Schema]) -> None:
        seen.add(schema)
        held = [each for field in schema.model_fields.values() for each in (*allowed_schemas(field), *list_item_schemas(field))]
        for each in held:
            if each not in seen:
                visit(each)
        if not stale.isdisjoint(held):
            stale.add(schema)
            schema.model_rebuild(force=True)

    for schema in _subclasses(Schema):
        if schema not in seen:
            visit(schema)


def _subclasses(schema: type[Schema]) -> list[type[Schema]]:
    return [found for each in schema.__subclasses__() for found in (each, *_subclasses(each))]
