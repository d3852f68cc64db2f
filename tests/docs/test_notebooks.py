"""The notebooks run from top to bottom, and their stored outputs are complete, small and free of errors and local paths."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.notebooks import NOTEBOOKS, execute
from tests.size import ROOT

MAX_BYTES = 500_000
MAX_WORDS = 2500
"""About ten minutes of reading."""

by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def images(cell: Any) -> int:
    """Return the number of PNG pictures among a cell's outputs."""
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


def check_outputs(notebook: Any) -> None:
    """Raise if a cell failed, printed to standard error, or has not been executed in order."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert sum(map(images, code)) >= 2


@pytest.mark.soak
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """Its own assertions hold; pictures are drawn."""
    check_outputs(execute(path, tmp_path))


@by_notebook
def test_stored_outputs_are_those_of_one_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < MAX_BYTES
    assert not re.search(r"/(tmp|home|root|Users)/|Warning", text)
    notebook = nbformat.read(path, as_version=4)
    check_outputs(notebook)
    words = sum(len(cell.source.split()) for cell in notebook.cells)
    assert 800 < words < MAX_WORDS


def test_there_are_two_and_the_pages_link_them() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["gpt", "translator"]
    for page in ("README.md", "docs/guide.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert all(f"notebooks/{path.name}" in text for path in NOTEBOOKS), page
