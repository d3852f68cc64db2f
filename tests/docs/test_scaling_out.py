"""docs/scaling-out.md: its commands run on CPU processes, and its batch script where stand-ins take the place of SLURM's programs."""

import re
import shlex
import socket
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import sets
from tests.docs.pages import Reader, blocks_of, command_lines
from tests.size import ROOT
from transom.checkpoints.run_folder import RunFolder
from transom.config.parallel import ParallelConfig
from transom.config.recipe import load_recipe

PAGE, SCRIPT = (ROOT / "docs" / "scaling-out.md").read_text(encoding="utf-8"), ROOT / "docs" / "scaling-out.sbatch"
TINY = sets(
    *("model.d_model=16", "model.n_heads=2", "model.d_ff=16", "training.max_steps=4", "training.batch_tokens=200"),
    *("training.validate_bleu=0", "training.precision=fp32", "data.generate.n_train=200"),
)


def section(title: str) -> str:
    """Return a section of the page, in which two processes take the place of eight and trainings are short."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    short = re.sub(r"\b8\b", "2", text).replace("--steps 2000", "--steps 6")
    return re.sub(r"^(torchrun .*)$", rf"\1 {shlex.join(TINY)}", short, flags=re.MULTILINE)


def program(folder: Path, name: str, text: str) -> None:
    """Write a program of one line into the folder from which the reader's shell takes programs."""
    (file := folder / ".programs" / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    file.chmod(0o755)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Reader:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = Reader(tmp_path, monkeypatch, capfd, TINY)
    program(tmp_path, "torchrun", f'exec {shlex.quote(sys.executable)} -m torch.distributed.run "$@"')
    return found


def layout_of(run: Path) -> ParallelConfig:
    return load_recipe(run / "recipe.toml")[0].parallel


LAPTOP = {"laptop": ParallelConfig(data=2), "two-shards": ParallelConfig(shard=2)}


@pytest.mark.long
@pytest.mark.parametrize("command", [line for block in blocks_of(section("One laptop")) for line in command_lines(block.text)])
def test_the_commands_of_a_laptop_run(reader: Reader, command: str) -> None:
    reader.run(command)
    assert all(layout_of(run) == LAPTOP[run.name] for run in Path("runs").glob("*"))


@pytest.mark.long
def test_the_commands_of_a_server_run_and_another_layout_continues(reader: Reader) -> None:
    reader.read(section("One server with eight GPUs"))
    newest = RunFolder.open(Path("runs/server")).checkpoints.latest()
    assert newest is not None and newest.step == 6 and layout_of(Path("runs/server")) == ParallelConfig()


@pytest.mark.long
def test_the_batch_script_continues_a_run(reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "scontrol", '[ "$*" = "show hostnames machine-[1-1]" ] && echo 127.0.0.1')
    program(tmp_path, "srun", 'while [[ $1 == --* ]]; do shift; done; exec "$@"')
    port = 60_000
    while port >= 60_000:  # those above have no job ID
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    slurm = {"GPUS_ON_NODE": "2", "JOB_NODELIST": "machine-[1-1]", "JOB_ID": f"{port - 10_000}", "CPUS_PER_TASK": "2", "JOB_NUM_NODES": "1"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    reader.run("transom train copy --out runs/cluster")
    reader.run(f"bash {shlex.quote(str(SCRIPT))} copy runs/cluster {shlex.join(TINY)} --steps 6 --set parallel.shard=2")
    newest = RunFolder.open(Path("runs/cluster")).checkpoints.latest()
    assert newest is not None and newest.step == 6 and layout_of(Path("runs/cluster")) == ParallelConfig(shard=2)


def test_the_batch_script_is_valid_and_the_page_shows_it() -> None:
    shellcheck = Path(sysconfig.get_path("scripts")) / "shellcheck"
    found = subprocess.run([shellcheck, SCRIPT, ROOT / ".ci" / "run"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert [block.text for block in blocks_of(PAGE) if block.language == "bash"] == [SCRIPT.read_text(encoding="utf-8")]


def test_the_table_has_every_axis_and_the_sections_shown_are_layouts() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == sorted(ParallelConfig.AXES)
    shown = [tomllib.loads(block.text)["parallel"] for block in blocks_of(PAGE) if block.language == "toml"]
    assert [ParallelConfig(**layout).n_processes for layout in shown] == [4 * 8]
