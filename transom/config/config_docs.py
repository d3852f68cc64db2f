"""Generate docs/config.md and docs/components.md from the schemas: ``python -m transom.config.config_docs docs``."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from transom.config.component_docs import component_page
from transom.config.plugins import import_plugins
from transom.config.schema import (
    ComponentConfig,
    Schema,
    allowed_schemas,
    allowed_types,
    derived_formula,
    kinds,
    list_item_schemas,
    split_docstring,
)
from transom.config.task_registry import recipes_by_task

HEAD = """# Every field of a recipe

This page is written by `make docs` from the descriptions in `transom/config/` and `transom/tasks/`; a test checks that it is current.

A recipe is a TOML file. `transom recipes` lists the packaged ones, and `--set a.b=value` changes any field from the command line.
For components of several kinds, `norm = "layernorm"` is short for `norm = { kind = "layernorm" }`, and a table without `kind` has the
default kind. `"none"` is the null value, which TOML lacks. `preset = "NAME"` under `[model]` starts from a published architecture; other
fields of `[model]` override it, and `--set model.preset=NAME` replaces the whole model of a recipe. Tables that several tasks share are
listed under the first of them.
"""


def config_page() -> str:
    """Return the content of docs/config.md."""
    parts, written = [HEAD], set[type[Schema]]()
    for task, schema in recipes_by_task().items():
        parts += [f'## `task = "{task}"`\n', *schema_section(schema, (), written)]
    return "\n".join(parts).rstrip() + "\n"


def schema_section(schema: type[Schema], path: tuple[str, ...], written: set[type[Schema]]) -> Iterator[str]:
    """Yield the lines on a schema (heading, definition, table of fields), then those on the schemas in its fields.

    Schemas in ``written`` are skipped; every other schema is added to ``written``.
    """
    if schema in written:
        return
    written.add(schema)
    of_kind, title = kinds(schema), f"`[{'.'.join(path)}]`" if path else "Top level"
    yield f"### {title}{' of kind ' + ' or '.join(f'`{kind}`' for kind in of_kind) if of_kind else ''}\n"
    yield split_docstring(schema)[0] + "\n"
    fields = {name: field for name, field in schema.model_fields.items() if name != "kind"}
    if fields:
        yield "| field | value | default | meaning |\n| --- | --- | --- | --- |"
        for name, field in fields.items():
            yield f"| `{name}` | {_value(field)} | {_default(field)} | {_cell(field.description or '')} |"
        yield ""
    for name, field in fields.items():
        for below in (*allowed_schemas(field), *list_item_schemas(field)):
            yield from schema_section(below, (*path, name), written)


def _value(field: FieldInfo) -> str:
    words = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): '`"none"`'}
    parts: list[str] = []
    for member in allowed_types(field):
        if get_origin(member) is Literal:
            parts += [f'`"{choice}"`' for choice in get_args(member)]
        elif isinstance(member, type) and issubclass(member, Schema):
            parts += [f'`"{choice}"`' for choice in kinds(member)] or ["table"]
        else:
            parts.append(_listed(get_args(member)[0]) if get_origin(member) in (list, tuple) else words[member])
    return " or ".join(dict.fromkeys(parts)) + "".join(_bounds(field))


def _listed(member: Any) -> str:
    words = {float: "numbers", str: "texts"}
    return f"list of {'texts' if get_origin(member) is Literal else words.get(allowed_types(member)[0], 'tables or kinds')}"


def _bounds(field: FieldInfo) -> Iterator[str]:
    for bound in field.metadata:
        for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
            if (limit := getattr(bound, name, None)) is not None:
                yield f", {words} {limit}"


def _default(field: FieldInfo) -> str:
    if formula := derived_formula(field):
        return formula
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, ComponentConfig):
        return f'`"{value.kind}"`'
    if isinstance(value, Schema):
        return "as below"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{str(value).lower()}`" if isinstance(value, bool | int | float) else f'`"{"none" if value is None else _escape(value)}"`'


def _escape(text: str) -> str:
    """Return a text as TOML writes it in quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    import_plugins(sys.argv[2:])  # include their components and tasks
    for name, page in (("config.md", config_page), ("components.md", component_page)):
        (Path(sys.argv[1]) / name).write_text(page(), encoding="utf-8")
