"""The site's navigation names every page, and its link check finds broken links."""

import ast
import re
from pathlib import Path

import pytest

from tests import site
from tests.size import ROOT

INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def navigation() -> set[str]:
    """Return the pages in the navigation of docs/conf.py, which imports Sphinx and is therefore only read."""
    tree = ast.parse((ROOT / "docs" / "conf.py").read_text(encoding="utf-8"))
    (value,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NAVIGATION")
    names = {node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    tutorials = {path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md")}
    return {f"docs/tutorials/{name}" if name in tutorials else name for name in names if "/" in name or name in tutorials or name.isupper()}


def test_the_navigation_has_every_page() -> None:
    pages = {path.relative_to(ROOT).with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    expected = (pages - {"docs/index"}) | {"README", "CONTRIBUTING", "CHANGELOG", "benchmarks/README"}
    assert {name for name in navigation() if name != "docs/tutorials/"} == expected


def test_the_first_page_leads_to_every_page() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert pages <= {target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", INDEX)}


def test_a_link_to_a_missing_file_or_element_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a><a href="b.html#not">2</a><a href="c.html">3</a><a href="#top">4</a><h1 id="top">'
        '<a href="https://example.org/x">5</a><script src="https://example.org/x.js"></script><img src="data:image/png;base64,x">'
    )
    (tmp_path / "b.html").write_text('<p id="there">')
    assert list(site.faults(tmp_path)) == [
        "a.html: no element b.html#not",
        "a.html: no file c.html",
        "a.html: loads https://example.org/x.js from elsewhere",
    ]
    assert site.main(tmp_path) == 1 and "site: 2 pages, 3 broken links" in capsys.readouterr().out
    (tmp_path / "a.html").unlink()
    assert site.main(tmp_path) == 0
