"""Rewrite a recipe of format 2 or earlier in present names, preserving comments and order."""

import re

from transom.config.migration import Change, list_changes, migrate_tables
from transom.config.toml_input import find_line, parse_toml
from transom.errors import ConfigError


def upgrade_recipe(text: str, name: str) -> tuple[str, list[Change]]:
    """Replace former field names and values in the text of a recipe by the present ones.

    Args:
        text: the recipe as TOML.
        name: path of the recipe, for errors.

    Returns:
        The new text and the changes, an empty list if all names are current.

    Raises:
        ConfigError: the text is not TOML, or cannot be changed safely.
    """
    old = parse_toml(text, name)
    changes = list_changes(old)
    lines = text.split("\n")
    moves = [change for change in changes if "." in change.new and not change.is_value]
    for change in changes:
        if change not in moves:
            _apply(lines, change, text)
    for change in moves:  # last, since lines that move change the numbers of others
        _move(lines, change, text)
    new = "\n".join(lines)
    if parse_toml(new, name) != migrate_tables(old):
        listed = ", ".join(f"{'.'.join(change.path)}: {change.old} -> {change.new}" for change in changes)
        raise ConfigError(f"{name}: expected one field per line, found a layout that cannot be rewritten safely; rename by hand: {listed}")
    return new, changes


def _apply(lines: list[str], change: Change, text: str) -> None:
    """Rename the first occurrence at or after the line that sets the field; ``upgrade_recipe`` verifies the result."""
    start = (find_line(text, change.path) or 1) - 1
    if change.is_value:
        pattern, new = rf"([\"']){re.escape(change.old)}\1", rf"\g<1>{change.new}\g<1>"
    else:
        pattern, new = rf"(?<![\w.\"'-]){re.escape(change.old)}(?=\s*=)|(?<=\.){re.escape(change.old)}(?=\s*[\].=])", change.new
    for number in [*range(start, len(lines)), *range(start)]:
        code = re.match(r"""(?:[^#"']|"[^"]*"|'[^']*')*""", lines[number])
        assert code is not None
        replaced, n = re.subn(pattern, new, code[0], count=1)
        if n:
            lines[number] = replaced + lines[number][code.end() :]
            return


def _move(lines: list[str], change: Change, text: str) -> None:
    """Move a field that has a line of its own to its present table, which is added if there is none."""
    start, (table, name) = (find_line(text, change.path) or 1) - 1, change.new.split(".")
    moved = re.match(rf"\s*(?:[\w.]+\.)?{re.escape(change.old)}(\s*=.*)", lines[start])
    if moved:
        del lines[start]
        if f"[{table}]" not in lines:
            lines += [f"[{table}]", ""] if lines[-1] == "" else ["", f"[{table}]"]
        lines.insert(lines.index(f"[{table}]") + 1, f"{name}{moved[1]}")
