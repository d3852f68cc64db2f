"""The examples of docs/python.md: each runs in a process of its own and prints what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.size import ROOT
from tests.tiers import every

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^## (\d+)\. (?:(?!^## ).)*?```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = {int(number): (code, output) for number, code, output in EXAMPLE.findall(PAGE)}
DDP, LOOP = 6, 5
MOST_LINES_OF_THE_LOOP = 60


def execute(number: int, folder: Path, n_processes: int | None = None) -> str:
    """Run an example in ``folder``, under torchrun if ``n_processes`` is given; return its standard output."""
    (folder / "example.py").write_text(EXAMPLES[number][0], encoding="utf-8")
    launcher = [] if n_processes is None else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
    done = subprocess.run(
        [sys.executable, *launcher, "example.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_has_an_example_per_section_with_their_output() -> None:
    assert list(EXAMPLES) == list(range(1, 14))
    assert PAGE.count("\n## ") == PAGE.count("```python\n") == PAGE.count("```text\n") == 13
    assert all(output.strip() for _, output in EXAMPLES.values())


@pytest.mark.parametrize("number", every(99, [number for number in EXAMPLES if number != DDP]))
def test_an_example_prints_what_the_page_shows(number: int, tmp_path: Path) -> None:
    assert execute(number, tmp_path) == EXAMPLES[number][1]


def test_the_training_loop_is_short() -> None:
    assert len(EXAMPLES[LOOP][0].splitlines()) <= MOST_LINES_OF_THE_LOOP


@pytest.mark.soak
def test_two_processes_train_the_weights_of_one(tmp_path: Path) -> None:
    weights = []
    for n_processes in (1, 2):
        folder = tmp_path / str(n_processes)
        folder.mkdir()
        assert execute(DDP, folder, n_processes) == EXAMPLES[DDP][1]
        weights.append(load_file(folder / "model.safetensors"))
    one, two = weights
    assert one.keys() == two.keys()
    for name, weight in one.items():
        assert torch.allclose(weight, two[name], atol=1e-5), name
