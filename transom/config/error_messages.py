"""Format validation errors in one line: the place, the expected and the found value, and the closest name."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from transom.config.migration import MOVED, present_field, present_value
from transom.config.schema import Schema, allowed_schemas, kinds, list_item_schemas
from transom.errors import ConfigError

Path = tuple[str, ...]


Checked = TypeVar("Checked", bound=Schema)


def validate(schema: type[Checked], raw: Mapping[str, Any], place: Callable[[Path], str], context: str | None = None) -> Checked:
    """Validate a value against a schema.

    Args:
        schema: the schema class.
        raw: the input as it was read.
        place: returns the file and line, or the option, that sets a field.
        context: validation context of the schema's validators: None or a value such as ``DATA_OPTIONAL``.

    Raises:
        ConfigError: the value does not match the schema.
    """
    try:
        return schema.model_validate(raw, context=context)
    except ValidationError as error:
        path, message = explain_error(error, schema, raw)
        raise ConfigError(f"{place(path)}: {message}") from None


def explain_error(error: ValidationError, schema: type[Schema], raw: Mapping[str, Any]) -> tuple[Path, str]:
    """Format the most informative one of the errors that pydantic found.

    Args:
        error: the error that pydantic raised.
        schema: the schema class.
        raw: the input as it was read.

    Returns:
        The path of the error in the input, and one line, with the number of further errors.
    """
    by_field: dict[Path, list[Any]] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "default_factory_not_called":  # follows from the error in the field that the default is computed from
            continue
        by_field.setdefault(error_path(detail, raw), []).append(detail)
    ranked = sorted(by_field.items(), key=lambda item: _weight(item[0], item[1][0]["type"]))
    path, details = ranked[0]
    more = f" ({len(ranked) - 1} more after this)" if len(ranked) > 1 else ""
    return path, f"{_message(path, details, schema, raw)}{more}"


def _weight(path: Path, kind: str) -> int:
    """Return the rank of an error, 0 first: a wrong kind causes other errors, and an unknown field is often a missing one misspelled."""
    return 0 if path[-1:] == ("kind",) else 1 if kind == "extra_forbidden" else 2


def error_path(detail: Any, raw: Mapping[str, Any]) -> Path:
    """Return the location of a pydantic error as a path in the input, without the union tags that pydantic inserts."""
    path: list[str] = []
    value: Any = raw
    for part in detail["loc"]:
        if (isinstance(value, Mapping) and part in value) or _is_table_of(value, part):
            path.append(str(part))
            value = value[part]
    if detail["type"] == "missing":
        path.append(str(detail["loc"][-1]))
    if detail["type"] == "union_tag_invalid" and isinstance(value, Mapping) and "kind" in value:
        path.append("kind")
    return tuple(path)


def _is_table_of(value: Any, part: int | str) -> bool:
    return isinstance(value, list) and isinstance(part, int) and isinstance(value[part], Mapping)


def _message(path: Path, details: list[Any], schema: type[Schema], raw: Mapping[str, Any]) -> str:
    detail, name = details[0], ".".join(path)
    if detail["type"] == "extra_forbidden":
        if (new := _present_name(path, raw)) is not None:
            return f"unknown field {name}, which was renamed to {new}; {UPGRADE}"
        return f"unknown field {name}; {_neighbors(path, schema, raw)}"
    if detail["type"] == "missing":
        return f"missing field {name}{_described(path, schema, raw)}"
    if detail["type"] == "union_tag_not_found":
        return f"missing field {name}.kind"
    if detail["type"] == "value_error":
        return f"{name}: {detail['msg'].removeprefix('Value error, ')}" if name else str(detail["msg"].removeprefix("Value error, "))
    expected = " or ".join(dict.fromkeys(_expected(each) for each in details))
    value = _value_at(raw, path, detail["input"])
    renamed = present_value(_without_indices(path), value)
    hint = f", which was renamed to {renamed!r}; {UPGRADE}" if isinstance(value, str) and renamed != value else ""
    return f"{name}: expected {expected}, found {_found(value)}{hint}"


def _expected(detail: Any) -> str:
    if detail["type"] == "union_tag_invalid":
        return f"one of {detail['ctx']['expected_tags']}"
    if detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "a table"
    message = str(detail["msg"]).removeprefix("Input should be ").split(", unable to parse")[0].split(", got a number with")[0]
    message = f"a number {message}" if message.startswith(("greater", "less")) else message
    return (
        message.replace("a valid integer", "a whole number")
        .replace("a valid boolean", "true or false")
        .replace("a valid tuple", "a list")
        .replace("a valid ", "a ")
    )


UPGRADE = "use the new name, or rewrite the recipe with `transom recipes upgrade FILE`"


def _present_name(path: Path, raw: Mapping[str, Any]) -> str | None:
    if path in MOVED:
        return ".".join(MOVED[path])
    holder = _value_at(raw, path[:-1], None)
    kind = holder.get("kind") if isinstance(holder, Mapping) else None
    new = present_field(_without_indices(path), kind, str(raw.get("task", "translation")))
    return None if new is None else ".".join((*path[:-1], new))


def _without_indices(path: Path) -> Path:
    return tuple(part for part in path if not part.isdecimal())


def _value_at(raw: Any, path: Path, default: Any) -> Any:
    """Return the value at a path through tables and lists, or ``default`` if there is none."""
    value = raw
    for part in path:
        in_list = isinstance(value, list) and part.isdecimal()
        value = value[int(part)] if in_list else value.get(part, default) if isinstance(value, Mapping) else default
    return value


def _found(value: Any) -> str:
    text = "a table" if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _described(path: Path, schema: type[Schema], raw: Mapping[str, Any]) -> str:
    for owner in _owners(path[:-1], schema, raw):
        if path[-1] in owner.model_fields:
            return f" ({owner.model_fields[path[-1]].description})"
    return ""


def _owners(path: Path, schema: type[Schema], raw: Any) -> list[type[Schema]]:
    """Return the schema classes that a field allows; if the input sets ``kind`` there, only the class that it selects."""
    owners = [schema]
    for part in path:
        raw = raw.get(part) if isinstance(raw, Mapping) else raw[int(part)] if part.isdecimal() else None
        default = None
        if not part.isdecimal():  # else a place in a list of tables
            fields = [owner.model_fields[part] for owner in owners if part in owner.model_fields]
            owners = [member for field in fields for member in (*allowed_schemas(field), *list_item_schemas(field))]
            default = next((getattr(field.default, "kind", None) for field in fields), None)
        kind = raw.get("kind") if isinstance(raw, Mapping) else raw
        owners = [owner for owner in owners if (kind or default) in kinds(owner)] or owners
    return owners


def _neighbors(path: Path, schema: type[Schema], raw: Mapping[str, Any]) -> str:
    if len(path) > 1 and (kinds := _kinds_with(path, schema, raw)):
        return f"this field requires {'.'.join(path[:-1])}.kind = {' or '.join(map(repr, kinds))}"
    here = {".".join((*path[:-1], name)): name for owner in _owners(path[:-1], schema, raw) for name in owner.model_fields}
    if path[:-1] == ("model",):
        here["model.preset"] = "preset"
    close = difflib.get_close_matches(path[-1], list(here.values()), n=3, cutoff=0.6)
    found = [dotted for name in close for dotted, short in here.items() if short == name]
    found += [dotted for dotted in dict.fromkeys(_all_fields(schema)) if dotted.rsplit(".", 1)[-1] == path[-1] and dotted not in found]
    if found:
        return f"did you mean {' or '.join(found[:3])}?"
    return (
        f"fields of {'.'.join(path[:-1]) or 'a recipe'} are {', '.join(here.values())}" if here else f"{'.'.join(path[:-1])} is not a table"
    )


def _kinds_with(path: Path, schema: type[Schema], raw: Mapping[str, Any]) -> list[str]:
    """Return the kinds of component that have the unknown field ``path``, given the kinds that the input selects for the tables above."""
    holders = [owner.model_fields[path[-2]] for owner in _owners(path[:-2], schema, raw) if path[-2] in owner.model_fields]
    owners = [owner for field in holders for owner in allowed_schemas(field)]
    return [kind for owner in owners if path[-1] in owner.model_fields for kind in kinds(owner)]


def _all_fields(schema: type[Schema], prefix: str = "") -> Iterator[str]:
    for name, field in schema.model_fields.items():
        yield f"{prefix}{name}"
        for member in allowed_schemas(field):
            yield from _all_fields(member, f"{prefix}{name}.")
