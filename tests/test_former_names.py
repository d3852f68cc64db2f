"""No former name is left: modules, definitions, recipe fields, options and metrics that were renamed for format 3."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.size import ROOT
from transom.config.migration import FIELDS, METRICS
from transom.config.recipe import load_recipe
from transom.config.task_registry import recipes_by_task

FORMER = (ROOT / "tests" / "former_names.txt").read_text(encoding="utf-8").split()
"""Modules that are gone, and definitions that their module no longer has; a module is listed by its present name."""

OPTIONS = ("--labelled", "--valid-labelled")
PAGES = (
    "README.md",
    "AGENTS.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "transom/**/*.toml",
    "transom/**/*.py",
    "benchmarks/**/*.py",
    "tests/**/*.py",
)
EXCEPT = ("transom/config/migration.py", "tests/config/test_migration.py", "tests/test_former_names.py", "tests/checkpoints/golden/")


@cache
def definitions(path: Path) -> frozenset[str]:
    """Return the names that a module defines at its top level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return frozenset(found)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and text of every file that could hold a former name."""
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(EXCEPT):
                yield name, path.read_text(encoding="utf-8")


def test_no_former_module_or_definition_is_left() -> None:
    left = []
    for dotted in FORMER:
        module, _, name = dotted.rpartition(".")
        path = ROOT / f"{module.replace('.', '/')}.py"
        there = name in definitions(path) if path.exists() else (ROOT / f"{dotted.replace('.', '/')}.py").exists()
        left += [dotted] if there else []
    assert not left


@pytest.mark.long
def test_nothing_imports_a_former_module_or_definition() -> None:
    former = set(FORMER)
    left = []
    for name, text in pages():
        if name.endswith(".py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom):
                    left += [(name, f"{node.module}.{each.name}") for each in node.names if f"{node.module}.{each.name}" in former]
                    left += [(name, node.module)] if node.module in former else []
    assert not left


@pytest.mark.long
def test_no_page_or_recipe_names_a_former_field_option_or_metric() -> None:
    dotted = [
        f"{table}.{old}"
        for table, fields in ((each.table, each.fields) for each in FIELDS)
        for old in fields
        if re.fullmatch(r"\w+", table)
    ]
    words = [rf"(?<![\w.]){re.escape(each)}(?![\w.])" for each in dotted] + [f'"{each}"' for each in METRICS if "_" in each]
    from_run = r"\btrain\b[^\n]*\s--from "  # now --init-from; --from of find-lr is a learning rate
    pattern = re.compile("|".join([*words, *map(re.escape, OPTIONS), from_run]))
    assert not [(name, found[0]) for name, text in pages() if (found := pattern.search(text))]


@pytest.mark.parametrize("task", recipes_by_task())
def test_no_schema_has_a_former_field(task: str) -> None:
    recipe = recipes_by_task()[task]
    for each in FIELDS:
        if re.fullmatch(r"\w+", each.table) and (each.tasks is None or task in each.tasks):
            section = recipe.model_fields[each.table].annotation if each.table in recipe.model_fields else None
            assert not set(each.fields) & set(getattr(section, "model_fields", ()))


def test_packaged_recipes_load_with_present_names() -> None:
    assert load_recipe("multi30k-en-de")[0].training.grad_accum_steps >= 1
