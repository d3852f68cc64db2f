"""Train in a process of its own, kill it at random moments, resume it, and hold the end against that of a run left alone."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from transom.checkpoints.checkpoint import Checkpoints
from transom.checkpoints.run_files import WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_tensors
from transom.training.metrics_window import TIMED

RECIPE = """
[data]
generate = { kind = "reverse", n_train = 300, n_valid = 20, n_test = 20, max_length = 6 }

[tokenizer]
kind = "bpe"
vocab_size = 300
bpe_dropout = 0.2

[model]
d_model = 16
n_heads = 2
d_ff = 32
n_encoder_layers = 1
n_decoder_layers = 1
max_seq_len = 32

[training]
max_steps = %(steps)d
batch_tokens = 200
grad_accum_steps = 2
learning_rate = 0.01
precision = "bf16"
average = { kind = "checkpoints", n_checkpoints = 3 }
validate_every = 14
validate_bleu = 4
checkpoint_every = 7
log_every = 3

[parallel]
data = %(processes)d

[decoding]
beam_size = 2
max_length = 16
"""

RESUMED = b"resuming from step"
"""What a run says that found a checkpoint."""


class Kills(NamedTuple):
    """What came of killing a run.

    Attributes:
        hits: kills that came before the process had ended by itself.
        late: of these, those that found a checkpoint.
        resumed: starts that went on from a checkpoint.
    """

    hits: int
    late: int
    resumed: int


def start(recipe: Path, out: Path) -> "subprocess.Popen[bytes]":
    """Begin or resume the run in ``out``."""
    command = [sys.executable, "-m", "transom", "train", str(recipe), "--out", str(out), "--resume"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def run_to_the_end(recipe: Path, out: Path) -> float:
    """Train without disturbance; return the seconds it took."""
    begun = time.monotonic()
    process = start(recipe, out)
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()
    return time.monotonic() - begun


def kill(process: "subprocess.Popen[bytes]", seconds: float, mark: bytes) -> bytes:
    """Kill a run with -9 when it has said ``mark`` and the seconds after that are over, if it lasts so long; return what it said."""
    assert process.stderr is not None
    said = b""
    while mark not in said and (line := process.stderr.readline()):
        said += line
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    said += process.stderr.read()
    process.stderr.close()
    assert process.wait() in (0, -signal.SIGKILL), said.decode()
    return said


def run_with_kills(recipe: Path, out: Path, seed: int, longest: Sequence[float], mark: bytes = b"") -> Kills:
    """Train to the end, killed with -9 at random moments.

    Args:
        recipe: what to train.
        out: where.
        seed: of the moments.
        longest: a kill each, in seconds from the start to the last moment at which it may come.
        mark: words of the run from which on the first kill's seconds count, so that it surely comes after them.
    """
    draw, hits, late, resumed = random.Random(seed), 0, 0, 0
    for number, seconds in enumerate(longest):
        process = start(recipe, out)
        said = kill(process, draw.uniform(0.0, seconds), b"" if number else mark)
        while not number and process.returncode == 0:  # it was over before its moment; a run that is never hit shows nothing
            shutil.rmtree(out)
            seconds /= 2
            process = start(recipe, out)
            said = kill(process, draw.uniform(0.0, seconds), mark)
        hit = process.returncode != 0
        hits, late = hits + hit, late + (hit and bool(Checkpoints(out / "checkpoints").steps()))
        resumed += RESUMED in said
    process = start(recipe, out)
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()
    return Kills(hits, late, resumed + (RESUMED in said))


def end_of(out: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[dict[str, Any]]]:
    """Read what a run came to: every tensor of its last checkpoint and its kept weights, its progress, and its history but for times."""
    folder = RunFolder.open(out)
    newest = folder.checkpoints.latest()
    assert newest is not None and not newest.rejected
    groups, state, _ = folder.checkpoints.load(newest.step)
    tensors = {f"{group}/{name}": x for group, entries in groups.items() for name, x in entries.items()}
    tensors |= {f"kept/{name}": x for name, x in read_tensors(out / WEIGHTS).items()}
    progress = {name: value for name, value in state["progress"].items() if name not in ("seconds", "window")}
    history = [{name: value for name, value in record.items() if name not in TIMED} for record in folder.metrics.read()]
    return tensors, {"step": newest.step, **progress}, history


def differences(alone: Path, killed: Path) -> list[str]:
    """Name everything in which two runs' ends are not the same, bit for bit."""
    (tensors, progress, history), (others, other_progress, other_history) = end_of(alone), end_of(killed)
    names = sorted(tensors.keys() | others.keys())
    found = [name for name in names if name not in tensors or name not in others or not torch.equal(tensors[name], others[name])]
    if progress != other_progress:
        found.append(f"progress: {json.dumps(progress)} and {json.dumps(other_progress)}")
    return found + ["history"] * (history != other_history)


def start_ranks(recipe: Path, out: Path, n: int, restarts: int = 0) -> "subprocess.Popen[bytes]":
    """Begin a run of ``n`` ranks under torchrun, which restarts them after a failure."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}", f"--max-restarts={restarts}"]
    command = [*launcher, "-m", "transom", "train", str(recipe), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def ranks_of(torchrun: "subprocess.Popen[bytes]") -> dict[int, int]:
    """Return the process of each rank that torchrun has started and that is there."""
    found = {}
    for pid in (pid for task in Path(f"/proc/{torchrun.pid}/task").iterdir() for pid in (task / "children").read_text().split()):
        with suppress(OSError):  # it has just ended
            variables = dict(each.split(b"=", 1) for each in Path("/proc", pid, "environ").read_bytes().split(b"\0") if b"=" in each)
            if b"RANK" in variables:
                found[int(variables[b"RANK"])] = int(pid)
    return found


def wait_for(process: "subprocess.Popen[bytes]", mark: bytes) -> bytes:
    """Read what a run says until it says ``mark`` or ends."""
    assert process.stderr is not None
    said = b""
    while mark not in said and (line := process.stderr.readline()):
        said += line
    return said


def run_with_killed_ranks(recipe: Path, out: Path, n: int, seed: int, kills: Sequence[float]) -> Kills:
    """Train to the end under torchrun, a rank drawn at random killed with -9 at each of some moments.

    Args:
        recipe: what to train.
        out: where.
        n: number of ranks.
        seed: of ranks and moments.
        kills: a kill each, in seconds from the first validation, or from the restart before, to the last moment at which it may come.
    """
    draw, said, hits, late = random.Random(seed), b"", 0, 0
    process = start_ranks(recipe, out, n, restarts=len(kills))
    for number, seconds in enumerate(kills):
        said += wait_for(process, RESUMED if number else b"validation")
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=draw.uniform(0.0, seconds))
        if process.poll() is None and (victim := ranks_of(process).get(draw.randrange(n))):
            late += bool(Checkpoints(out / "checkpoints").steps())
            os.kill(victim, signal.SIGKILL)
            hits += 1
    _, rest = process.communicate()
    said += rest
    assert process.returncode == 0, said.decode()
    return Kills(hits, late, said.count(RESUMED))
