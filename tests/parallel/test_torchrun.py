"""torchrun starts the ranks: one run folder and one result, on every rank; errors of rank 0 end all of them."""

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chaos.killing import ranks_of, wait_for
from transom.checkpoints.run_folder import RunFolder

TINY = [
    *("train", "copy", "--steps", "4", "--set", "model.d_model=16", "--set", "model.n_heads=2", "--set", "model.d_ff=16"),
    *("--set", "training.batch_tokens=200", "--set", "training.validate_bleu=0", "--set", "training.precision=fp32"),
]


def torchrun(n: int, *arguments: str, timeout: int = 300) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]
    return subprocess.run([*launcher, *arguments], capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.long
def test_torchrun_trains_a_recipe_in_a_layout(tmp_path: Path) -> None:
    command = ["-m", "transom", *TINY, "--out", str(tmp_path / "run")]
    ended = torchrun(2, *command, "--set", "parallel.shard=2")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("best validation, step 4") == 1, "rank 0 alone prints the result"
    assert ended.stderr.count("step 1/4 ") == 1 and ended.stderr.count("step 4: validation loss") == 1, "and the progress"
    assert "shard = 2" in (tmp_path / "run" / "recipe.toml").read_text()
    resumed = torchrun(2, *command, "--json", "--resume", "--steps", "6")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["step"] == 6
    newest = RunFolder.open(tmp_path / "run").checkpoints.latest()
    assert newest is not None and newest.step == 6
    assert "data = 2" in (tmp_path / "run" / "recipe.toml").read_text(), "without [parallel] the processes are copies of the model"


@pytest.mark.long
def test_a_program_under_torchrun_returns_the_result_on_every_rank(tmp_path: Path) -> None:
    fields = [field for flag, field in pairwise(TINY) if flag == "--set"]
    (program := tmp_path / "program.py").write_text(
        "import os, sys, transom\n"
        f"result = transom.train('copy', {str(tmp_path / 'run')!r}, set={fields!r}, steps=4, progress=False)\n"
        f"open(os.path.join({str(tmp_path)!r}, os.environ['RANK']), 'w').write(f'{{result.step}} {{result.folder}}')\n"
    )
    ended = torchrun(2, str(program))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text() == f"4 {tmp_path / 'run'}"


@pytest.mark.long
def test_an_error_of_rank_0_ends_all_ranks(tmp_path: Path) -> None:
    ended = torchrun(2, "-m", "transom", *TINY, "--out", str(tmp_path / "run"), "--set", "parallel.shard=3")
    assert ended.returncode != 0
    assert "torchrun: expected a multiple of 3 processes, since [parallel] has shard 3, found 2; change either" in ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_rank_is_named(stopped: int, tmp_path: Path) -> None:
    fields = [field for flag, field in pairwise(TINY) if flag == "--set"]
    (program := tmp_path / "program.py").write_text(
        "import transom\nfrom transom.parallel.processes import heartbeat\nheartbeat.TIMEOUT = 4.0\n"
        f"transom.train('copy', {str(tmp_path / 'run')!r}, set={fields!r}, steps=100_000)\n"
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    process = subprocess.Popen(launcher, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = wait_for(process, b"step 1/")
    victim = ranks_of(process)[stopped]
    os.kill(victim, signal.SIGSTOP)
    line = wait_for(process, b"expected heartbeats").splitlines()[-1].decode()
    os.kill(victim, signal.SIGKILL)  # torchrun would wait for half a minute
    said += process.communicate(timeout=120)[1]
    silent = f"rank {stopped} on {os.uname().nodename}"
    assert f"error: expected heartbeats from all processes of the run, found none from {silent} for " in line, said.decode()
    assert line.endswith("or cut off from the network; the last checkpoint is kept: continue with --resume")
    assert process.returncode != 0
