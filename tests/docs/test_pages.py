"""What the pages show, runs."""

import doctest
import inspect
import re
from typing import Any

import pytest

from tests.agreement import test_components
from tests.size import ROOT
from tests.test_architecture import PACKAGES
from transom.config import components
from transom.layers import norm

DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", DOCS)
def test_examples_give_what_the_page_says(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    failed, attempted = doctest.testfile(str(ROOT / page), module_relative=False, encoding="utf-8")
    assert failed == 0
    assert attempted == len(re.findall(r"^>>> ", text, re.MULTILINE))


def test_the_walk_stops_in_every_room_that_is_built() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    heads = {package for line in re.findall(r"^## (.*):", text, re.MULTILINE) for package in re.split(r", | and ", line)}
    built = {path.name.removesuffix(".py") for path in (ROOT / "transom").iterdir() if not path.name.startswith(("_", "py.typed"))}
    assert heads == built
    assert [package for package in PACKAGES if package in heads] == [
        package for line in re.findall(r"^## (.*):", text, re.MULTILINE) for package in re.split(r", | and ", line)
    ], "in the packages' order"


PAGES = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md", "benchmarks/README.md")


@pytest.mark.parametrize("page", [*PAGES, *DOCS])
def test_files_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [(ROOT / page).parent / target for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]
    paths = [ROOT / path for path in re.findall(r"`((?:benchmarks|docs|tests|transom)/[\w./-]+)`", text)]
    assert not [str(path) for path in [*links, *paths] if not path.exists()]


def test_the_walk_names_modules_that_exist() -> None:
    modules = {path.relative_to(ROOT).as_posix() for folder in ("transom", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")}
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert not [name for name in named if name not in modules and not any(module.endswith(f"/{name}") for module in modules)]


def test_the_table_for_coding_agents_names_files_that_exist() -> None:
    rows = re.findall(r"^\| .* \| (.*) \|$", (ROOT / "AGENTS.md").read_text(encoding="utf-8"), re.MULTILINE)
    for row in rows:
        folder = re.search(r" in `(transom/\w+)/`$", row)
        for name in re.findall(r"`([a-z_]+\.py)`", row):
            assert folder is not None and (ROOT / folder[1] / name).exists(), name


def test_the_example_of_a_new_component_has_the_size_that_is_told() -> None:
    """CONTRIBUTING counts the lines of dynamic tanh: its classes with their registration, and every line elsewhere that names it."""

    def lines(thing: Any) -> int:
        return len(inspect.getsource(thing).splitlines())

    def naming(path: str) -> int:
        return len(re.findall(r"^.*(?:\bDynamicTanhConfig\(|\"dyt\").*$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE))

    schema, layer = lines(components.DynamicTanhConfig), lines(norm.DynamicTanh)
    tested = naming("tests/layers/test_gradients.py") + naming("tests/models/combinations.py")
    counts = [schema, layer, lines(test_components.test_dynamic_tanh_is_its_formula), tested]
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [int(n) for n in re.findall(r"^\| `.*\| (\d+) \|$", text, re.MULTILINE)] == counts
    assert f"took, {schema + layer} lines beside its tests" in text
