"""The package without its folder ``kernels/``: it trains, loads, translates, generates and classifies."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import transom
from tests.cli.conftest import TINY as TINY_PAIRS
from tests.cli.conftest import sets, write_pairs
from tests.cli.test_encoders import TINY as TINY_ENCODER
from tests.cli.test_language import TINY as TINY_TEXT

PROGRAM = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in str(finder)]  # one would find the missing folder elsewhere
from transom.cli.main import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the package without its kernels."""
    folder = tmp_path_factory.mktemp("bare")
    shutil.copytree(Path(transom.__file__).parent, folder / "transom", ignore=shutil.ignore_patterns("kernels", "__pycache__"))
    assert not (folder / "transom" / "kernels").exists()
    return folder


def run(bare: Path, *arguments: object) -> Any:
    """Run the copy's command line; return its answer."""
    environment = {**os.environ, "PYTHONPATH": str(bare)}
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=bare, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_the_copy_is_what_runs(bare: Path) -> None:
    table = run(bare, "kernels")
    assert {row["path"] for row in table} == {"reference"} and len(table) > 5
    assert {row["when"] for row in table} == {"everywhere else"}


@pytest.mark.long
def test_it_translates(bare: Path, tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path, 120)
    fields = sets(*TINY_PAIRS, "training.max_steps=10", "training.precision=bf16")
    run(bare, "train", "translation", "--source", source, "--target", target, *fields, "--out", tmp_path / "run")
    for precision in ("fp32", "bf16"):
        assert run(bare, "translate", tmp_path / "run", "ab ba", "--precision", precision)
    taken = run(bare, "kernels", tmp_path / "run")
    assert {each["path"] for each in taken} == {"reference"}


@pytest.mark.soak
def test_it_generates(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the sun and the moon and the star\n" * 60)
    kinds = ("model.norm=rmsnorm", "model.position=rotary", "model.feed_forward=reglu", "model.attention.sinks=true")
    fields = sets(*TINY_TEXT, *kinds)
    run(bare, "train", "text-bpe", "--text", tmp_path / "text.txt", *fields, "--out", tmp_path / "run")
    assert run(bare, "generate", tmp_path / "run", "the sun", "--precision", "bf16")


@pytest.mark.soak
def test_it_classifies(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"a {word} of {i}\t{word}\n" for i in range(30) for word in ("cat", "wolf")))
    run(bare, "train", "text-classes", "--labeled-data", tmp_path / "a.tsv", *sets(*TINY_ENCODER), "--out", tmp_path / "run")
    assert run(bare, "classify", tmp_path / "run", "a cat of 3")
