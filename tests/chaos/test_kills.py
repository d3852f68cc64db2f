"""A run killed with -9 at random moments and resumed ends as the run left alone, bit for bit."""

import time
from pathlib import Path

import pytest

from tests.chaos.killing import RECIPE, differences, run_to_the_end, run_with_killed_ranks, run_with_kills, start_ranks, wait_for
from tests.tiers import tiers


def recipe(folder: Path, steps: int, processes: int) -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE % {"steps": steps, "processes": processes})
    return path


@pytest.mark.parametrize("processes", tiers([1, 2], long=[1]))
def test_two_kills_change_nothing(processes: int, tmp_path: Path) -> None:
    path = recipe(tmp_path, 80, processes)
    seconds = run_to_the_end(path, tmp_path / "alone")
    # The first kill comes after the validation of step 14 and before the end, a third of the time later; the second comes at any moment.
    kills = run_with_kills(path, tmp_path / "killed", 1, [0.1 * seconds, 0.9 * seconds], mark=b"validation")
    assert kills.late >= 1 and kills.resumed >= 1, kills
    assert differences(tmp_path / "alone", tmp_path / "killed") == []


@pytest.mark.chaos
@pytest.mark.parametrize(("processes", "seeds"), [(1, range(20)), (2, range(20, 25))])
def test_runs_killed_at_random_moments_end_as_the_run_left_alone(processes: int, seeds: range, tmp_path: Path) -> None:
    path = recipe(tmp_path, 400, processes)
    seconds = run_to_the_end(path, tmp_path / "alone")
    kills = []
    for seed in seeds:
        out = tmp_path / f"killed-{seed}"
        kills.append(run_with_kills(path, out, seed, [0.9 * seconds] * (1 + seed % 4)))
        assert differences(tmp_path / "alone", out) == [], f"seed {seed}"
    assert all(run.hits for run in kills), kills
    assert sum(run.late for run in kills) and sum(run.resumed for run in kills), kills
    print(f"{len(seeds)} runs, {sum(run.hits for run in kills)} kills: weights, optimizer state and history are the same, bit for bit")


def alone_under_torchrun(path: Path, out: Path, n: int) -> float:
    """Train undisturbed; return the seconds from the first validation to the end."""
    process = start_ranks(path, out, n)
    said = wait_for(process, b"validation")
    begun = time.monotonic()
    _, rest = process.communicate()
    assert process.returncode == 0, (said + rest).decode()
    return time.monotonic() - begun


@pytest.mark.chaos
def test_torchrun_restarts_a_killed_rank_and_nothing_changes(tmp_path: Path) -> None:
    path = recipe(tmp_path, 42, 2)
    seconds = alone_under_torchrun(path, tmp_path / "alone", 2)
    kills = run_with_killed_ranks(path, tmp_path / "killed", 2, 1, [0.2 * seconds])
    assert kills == (1, 1, 1)
    assert differences(tmp_path / "alone", tmp_path / "killed") == []


@pytest.mark.chaos
@pytest.mark.parametrize("n", [2, 4])
def test_chains_of_killed_ranks_end_as_the_run_left_alone(n: int, tmp_path: Path) -> None:
    path = recipe(tmp_path, 400, n)
    seconds = alone_under_torchrun(path, tmp_path / "alone", n)
    kills = []
    for seed in range(20):
        out = tmp_path / f"killed-{seed}"
        kills.append(run_with_killed_ranks(path, out, n, seed, [0.4 * seconds] * (1 + seed % 3)))
        assert differences(tmp_path / "alone", out) == [], f"seed {seed}"
    assert sum(run.hits for run in kills) >= 20 and sum(run.resumed for run in kills) >= 10, kills
    print(
        f"20 chains with {n} ranks, {sum(run.hits for run in kills)} kills: weights, optimizer state and history are the same, bit for bit"
    )
