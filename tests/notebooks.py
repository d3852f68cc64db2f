"""Execute the notebooks and store their outputs: ``make notebooks``; a test executes them without storing."""

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.size import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS_PER_CELL = 600


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook in a folder, with one thread; return it with its outputs.

    Raises:
        CellExecutionError: a cell raised an exception.
    """
    notebook = nbformat.read(path, as_version=4)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    client = NotebookClient(notebook, timeout=SECONDS_PER_CELL, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    return notebook


def strip_volatile(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove times, display identifiers and the state of widgets, which change with each execution."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        for output in cell.get("outputs", []):
            output.pop("transient", None)
            if output.output_type != "stream":
                output.metadata = {}
    return notebook


def main() -> None:
    """Execute all notebooks and write them with their outputs."""
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            executed = nbformat.writes(strip_volatile(execute(path, Path(folder))))
        notebook = nbformat.reads(executed.replace(f"{folder}/", ""), as_version=4)  # paths as a reader would see them
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
