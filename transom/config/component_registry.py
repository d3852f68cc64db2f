"""The registry of components: the kinds that each slot of a recipe accepts, and the functions that build them.

A new norm is a schema class and a layer, in any module that is imported:

    @component("norm")
    class Halved(Component):
        kind: Literal["halved"] = "halved"

    @implements(Halved)
    class HalvedNorm(Norm): ...

From then on every recipe field of that slot accepts it; error messages, docs/config.md and docs/components.md include it.
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
    """Register a schema class in these slots, under each of its kinds.

    Classes that were built with one of the slots are built anew, inner before outer, so that recipes accept the component.

    Raises:
        ConfigError: there is no such slot, the class is not of the slot's base, or the slot has another component of that kind.
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
        raise ConfigError(f"{place}: expected a subclass of {slot.base.__name__} for slot {name!r}; derive it from that")
    if not kinds(schema):
        raise ConfigError(f'{place}: expected its name in recipes, as in kind: Literal["name"] = "name", found none')
    if taken := [kind for kind in kinds(schema) if slot.components.get(kind, schema) is not schema]:
        raise ConfigError(
            f"{place}: expected a kind that slot {name!r} does not have, found {taken[0]!r}, which is {slot.components[taken[0]].__name__};"
            " choose another name"
        )


def implements(schema: type[ComponentConfig]) -> Callable[[Builder], Builder]:
    """Register what builds a component: a layer class, or a function.

    Raises:
        ConfigError: something else builds it already.
    """

    def register(builder: Builder) -> Builder:
        if (there := _BUILDERS.setdefault(schema, builder)) is not builder:
            raise ConfigError(
                f"component {schema.__name__}: expected one thing that builds it, found {builder.__module__}.{builder.__qualname__} beside"
                f" {there.__module__}.{there.__qualname__}; register a component of your own"
            )
        return builder

    return register


def implementation(config: ComponentConfig) -> Callable[..., Any]:
    """Return what was registered to build a component.

    Raises:
        ConfigError: nothing was.
    """
    if type(config) not in _BUILDERS and config.IMPLEMENTED_IN:
        import_module(config.IMPLEMENTED_IN)
    if (builder := _BUILDERS.get(type(config))) is None:
        name = type(config).__name__
        raise ConfigError(f"component {name}: expected what builds it, found nothing; decorate a layer with @implements({name})")
    return builder


def registered_builder(schema: type[Schema]) -> Callable[..., Any] | None:
    """Return what was registered to build the components of a schema class; None if nothing was."""
    return _BUILDERS.get(schema)


def build(config: ComponentConfig, *arguments: Any) -> Any:
    """Build a component from its configuration, followed by what its kind of component takes."""
    return implementation(config)(config, *arguments)


def _rebuild_holders(new: type[Schema]) -> None:
    """Build every class anew that can hold ``new``, directly or inside another one, each after the classes that it holds."""
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
