"""Render the data report, with statistics and problems of the data, as a section of the training report."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from transom.data.reports.findings import split_name
from transom.files.message import Message, joined
from transom.inspection.messages.tables import message, message_or
from transom.inspection.pages.html_tables import html_table, key_value_table
from transom.inspection.pages.markup import node
from transom.inspection.pages.number_format import format_compact, format_count, format_percent


def data_section(data: Mapping[str, Any], training_is_ok: bool = True) -> list[Element]:
    """Render a data report: problems first, then all other fields.

    Args:
        data: ``Report.to_json()``. ``problems`` is a list of sentences; every other field is a number, a string, a list or a mapping.
        training_is_ok: whether training had no problem; if false, the section does not confirm that the data have no problem.
    """
    problems = data.get("problems") or []
    elements = [node("div", problem, class_="note") for problem in problems]
    elements += [node("p", note) for note in data.get("notes") or []]
    if data and training_is_ok and not problems:
        elements.append(node("p", message("data.no_problem"), class_="good"))
    figures = {key: value for key, value in data.items() if key not in ("problems", "notes") and value not in (None, "", [], {}, ())}
    blocks = [(key, value) for key, value in figures.items() if isinstance(value, Mapping | list | tuple)]
    tables = [node("div", node("h3", _title(key)), _render_value(value, key)) for key, value in blocks]
    plain = [
        (_title(key), format_percent(value, 1) if key == "padding_waste" else _format_value(value))
        for key, value in figures.items()
        if key not in dict(blocks)
    ]
    if plain:
        tables.append(node("div", key_value_table(plain)))
    return [*elements, node("div", *tables, class_="blocks")] if tables else elements


def _class_counts(splits: Mapping[str, Mapping[str, int]]) -> Element:
    """Render the number of samples per class and split, the name of each class as the data have it."""
    classes = list(dict.fromkeys(name for counts in splits.values() for name in counts))
    rows = [[name, *(_format_value(counts.get(name)) for counts in splits.values())] for name in classes]
    return html_table([message("data.class"), *map(split_name, splits)], rows)


def _render_value(value: Mapping[str, Any] | Sequence[Any], field: str) -> Element:
    rows = list(value.values()) if isinstance(value, Mapping) else list(value)
    if rows and all(isinstance(row, Mapping) for row in rows):
        if isinstance(value, Mapping) and field == "classes":
            return _class_counts(value)
        keys = list(dict.fromkeys(key for row in rows for key in row))
        names = [[split_name(name)] for name in value] if isinstance(value, Mapping) else [[] for _ in rows]
        head = [""] if isinstance(value, Mapping) else []
        return html_table(
            head + [_heading(key) for key in keys],
            [name + [_format_cell(key, row.get(key)) for key in keys] for name, row in zip(names, rows, strict=True)],
        )
    if isinstance(value, Mapping):
        return key_value_table((_heading(key), _format_value(found)) for key, found in value.items())
    return node("p", _format_value(rows))


def _title(field: str) -> str:
    """Return the heading of a field of the report."""
    return message_or(f"data.titles.{field}", _heading(field))


def _heading(key: str) -> str:
    """Return the heading of a statistic; one that the tables do not know, such as that of a plugin, has its own name."""
    if isinstance(key, Message):
        return Message(f"{key[:1].upper()}{key[1:]}", key.code)
    words = key.replace("_", " ")
    return message_or(f"data.headings.{words.replace(' ', '_')}", f"{words[:1].upper()}{words[1:]}")


def _format_cell(key: str, value: Any) -> str:
    return message_or(f"metrics.{value}", str(value)) if key == "key" else _format_value(value)


def _format_value(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return message("data.yes") if value else message("data.no")
        case int():
            return format_count(value)
        case float():
            return format_compact(value)
        case Mapping():
            return ", ".join(f"{key} {_format_value(found)}" for key, found in value.items())
        case list() | tuple():
            return joined(", ", map(_format_value, value))
        case str():
            return value
        case _:
            return str(value)
