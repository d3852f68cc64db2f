"""Ranks on separate hosts, one torchrun each: delay, loss and short cuts change nothing; a cut for good ends all, and the run continues."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.killing import RECIPE, RESUMED, differences, end_of, ranks_of, start, wait_for
from tests.parallel.hosts import Hosts, create_hosts, why_not
from transom.checkpoints.run_folder import RunFolder

PORT = 29400
TIMEOUT = 1200.0
"""Seconds after which a run has failed. On a loaded machine, tensor parallel with a delay takes minutes."""

LAYOUTS = [{"data": 2}, {"shard": 2}, {"tensor": 2}]

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


def by_axis(layout: dict[str, int]) -> str:
    return next(iter(layout))


def write_recipe(path: Path, steps: int, layout: dict[str, int]) -> Path:
    axes = "".join(f"{axis} = {size}\n" for axis, size in layout.items())
    path.write_text((RECIPE % {"steps": steps, "processes": 1}).replace("data = 1\n", axes))
    return path


def torchrun(hosts: Hosts, per_host: int = 1, restarts: int = 0) -> list[str]:
    """Return the beginning of a command that starts the ranks of one host."""
    places = ["--nnodes", str(len(hosts.names)), "--nproc-per-node", str(per_host), "--max-restarts", str(restarts)]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-id", "run", "--rdzv-endpoint", f"{hosts.names[0]}:{PORT}"]
    return [sys.executable, "-m", "torch.distributed.run", *places, *meeting, "--rdzv-conf", "read_timeout=600"]


def start_all(hosts: Hosts, recipe: Path, out: Path, per_host: int = 1, restarts: int = 0) -> "list[subprocess.Popen[bytes]]":
    """Start torchrun on each host, with ``per_host`` ranks; the first rank of the first host is rank 0."""
    command = [*torchrun(hosts, per_host, restarts), "-m", "transom", "train", str(recipe), "--out", str(out)]
    return [hosts.start(number, command) for number in range(len(hosts.names))]


def train_on_hosts(hosts: Hosts, recipe: Path, out: Path, disturb: Callable[[], object] = lambda: None) -> float:
    """Train on all hosts, disturbed after the first validation; return the seconds from there to the end."""
    processes = start_all(hosts, recipe, out)
    said = wait_for(processes[0], b"validation")
    begun = time.monotonic()
    disturb()
    rest = [process.communicate(timeout=TIMEOUT)[1].decode() for process in processes]
    assert not any(process.returncode for process in processes), "\n".join((said.decode(), *rest))
    assert hosts.processes() == []
    return time.monotonic() - begun


def train_alone(recipe: Path, out: Path) -> None:
    """Train in the layout of the recipe on this machine, over its loopback interface."""
    process = start(recipe, out)
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()


@pytest.mark.chaos
def test_a_run_on_two_hosts_ends_as_on_one(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.toml", 21, LAYOUTS[0])
    train_alone(recipe, tmp_path / "alone")
    with create_hosts(2, tmp_path) as hosts:
        train_on_hosts(hosts, recipe, tmp_path / "hosts")
    assert differences(tmp_path / "alone", tmp_path / "hosts") == []


@pytest.mark.chaos
@pytest.mark.parametrize("layout", LAYOUTS, ids=by_axis)
def test_delay_loss_and_a_short_cut_change_nothing(tmp_path: Path, layout: dict[str, int]) -> None:
    recipe, seconds = write_recipe(tmp_path / "recipe.toml", 70, layout), {}
    train_alone(recipe, tmp_path / "alone")
    with create_hosts(2, tmp_path) as hosts:

        def lose_packets() -> None:
            for number in range(2):
                hosts.lose(number, 0.02)

        def cut_for_a_while() -> None:
            hosts.cut(1)
            threading.Event().wait(10)
            hosts.mend(1)

        seconds["undisturbed"] = train_on_hosts(hosts, recipe, tmp_path / "undisturbed")
        seconds["cut"] = train_on_hosts(hosts, recipe, tmp_path / "cut", cut_for_a_while)
        seconds["loss"] = train_on_hosts(hosts, recipe, tmp_path / "loss", lose_packets)
        lost = [hosts.n_lost(number) for number in range(2)]
    assert min(lost) > 0
    with create_hosts(2, tmp_path, seconds=0.02) as hosts:
        seconds["delay"] = train_on_hosts(hosts, recipe, tmp_path / "delay")
    for name in seconds:
        assert differences(tmp_path / "alone", tmp_path / name) == [], name
    assert seconds["cut"] > 10
    took = ", ".join(f"{name} {each:.1f} s" for name, each in seconds.items())
    print(f"\n{by_axis(layout)}: {took}; {sum(lost)} packets lost; the same bits")


@pytest.mark.chaos
def test_a_cut_that_ends_the_ranks_is_followed_by_a_restart(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.toml", 70, LAYOUTS[0])
    train_alone(recipe, tmp_path / "alone")
    with create_hosts(2, tmp_path) as hosts:
        processes = start_all(hosts, recipe, tmp_path / "cut", restarts=2)
        wait_for(processes[0], b"validation")
        begun = time.monotonic()
        hosts.cut(1)
        for process in processes:
            wait_for(process, b"error: expected")
        ended = time.monotonic() - begun
        hosts.mend(1)
        errors = [process.communicate(timeout=TIMEOUT)[1] for process in processes]
        took = time.monotonic() - begun
    assert [process.returncode for process in processes] == [0, 0], b"\n".join(errors).decode()
    resumed = lines_with(errors[0].decode(), RESUMED.decode())
    assert resumed
    assert differences(tmp_path / "alone", tmp_path / "cut") == []
    print(f"\nranks ended {ended:.1f} s after the cut, the run ended after {took:.1f} s: {resumed[-1]}")


@pytest.mark.chaos
def test_a_killed_rank_of_another_host_restarts_the_run_while_rank_0_does_not_notice(tmp_path: Path) -> None:
    """The torchrun of rank 0 counts no failure then, only a host that wants to join again."""
    recipe = write_recipe(tmp_path / "recipe.toml", 70, LAYOUTS[0])
    train_alone(recipe, tmp_path / "alone")
    with create_hosts(2, tmp_path) as hosts:
        processes = start_all(hosts, recipe, tmp_path / "killed", restarts=1)
        wait_for(processes[0], b"validation")
        os.kill(ranks_of(processes[0])[0], signal.SIGSTOP)
        os.kill(ranks_of(processes[1])[1], signal.SIGKILL)
        errors = [process.communicate(timeout=TIMEOUT)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], b"\n".join(errors).decode()
    assert RESUMED in errors[0]
    assert differences(tmp_path / "alone", tmp_path / "killed") == []


@pytest.mark.chaos
def test_hosts_whose_own_name_is_a_loopback_address_need_the_name_of_their_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program := tmp_path / "program.py").write_text(
        "import datetime, transom\nfrom transom.parallel.processes import launcher\nlauncher.JOIN_TIMEOUT = datetime.timedelta(seconds=5)\n"
        f"transom.train({str(write_recipe(tmp_path / 'recipe.toml', 2, LAYOUTS[0]))!r}, {str(tmp_path / 'run')!r}, overwrite=True)\n"
    )
    for interface in ("", "eth0"):
        with create_hosts(2, tmp_path) as hosts:
            for path, name in zip(hosts.resolved, hosts.names, strict=True):
                path.write_text(f"127.0.1.1 {name}\n{path.read_text()}")
            if interface:
                monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
            processes = [hosts.start(number, [*torchrun(hosts), str(program)]) for number in range(2)]
            errors = "\n".join(process.communicate(timeout=300)[1].decode() for process in processes)
        assert all(process.returncode == 0 for process in processes) == bool(interface), errors
        lines = lines_with(errors, "error: expected connections to the other processes within 5 s, found none; set GLOO_SOCKET_IFNAME to")
        assert bool(lines) != bool(interface), errors


def lines_with(said: str, words: str) -> list[str]:
    return [line for line in said.splitlines() if words in line]


@pytest.mark.chaos
def test_a_cut_for_good_ends_all_hosts_and_the_run_continues_on_one(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.toml", 200, {"data": 2, "shard": 2})
    alone = write_recipe(tmp_path / "alone.toml", 200, {"data": 1})
    with create_hosts(2, tmp_path) as hosts:
        hosts.set_tcp_retries(8)  # as the documentation recommends, since torchrun waits for as long as the connection to its store lives
        processes = start_all(hosts, recipe, tmp_path / "cut", per_host=2)
        said = wait_for(processes[0], b"validation")
        begun = time.monotonic()
        hosts.cut(1)
        said += wait_for(processes[0], b"expected heartbeats")
        named = time.monotonic() - begun
        rest, others = (process.communicate(timeout=300)[1].decode() for process in processes)
        ended = time.monotonic() - begun
        assert hosts.processes() == []
    (line,) = lines_with(said.decode() + rest, "expected heartbeats")
    assert "error: " in line and "found none from rank 2 on host-1, rank 3 on host-1 for" in line and "continue with --resume" in line
    (line,) = lines_with(others, "expected answers")
    assert "error: " in line and "from host-0, the host of rank 0, found none for" in line and "continue with --resume" in line
    assert named < 60 and all(process.returncode for process in processes)
    newest = RunFolder.open(tmp_path / "cut").checkpoints.latest()
    assert newest is not None and not newest.rejected
    process = start(alone, tmp_path / "cut")
    assert RESUMED in (errors := process.communicate()[1]) and process.returncode == 0, errors.decode()
    train_alone(alone, tmp_path / "alone")
    assert samples_of(tmp_path / "cut") == samples_of(tmp_path / "alone")
    print(f"\nnamed after {named:.1f} s, ended after {ended:.1f} s, continued from step {newest.step}")


def samples_of(out: Path) -> list[object]:
    """Return what depends on the samples of each step only: their tokens after random merges, and the position in the data."""
    _, progress, history = end_of(out)
    steps = [(record["step"], record["epochs"]) for record in history if record["kind"] == "train"]
    return [*steps, progress["step"], progress["position"], progress["n_target_tokens"]]
