"""A run killed with -9 at random moments and resumed ends as the run left alone, bit for bit."""

from pathlib import Path

import pytest

from tests.chaos.killing import RECIPE, differences, run_to_the_end, run_with_kills


def recipe(folder: Path, steps: int) -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE % {"steps": steps})
    return path


def test_two_kills_change_nothing(tmp_path: Path) -> None:
    path = recipe(tmp_path, steps=40)
    run_to_the_end(path, tmp_path / "alone")
    run_with_kills(path, tmp_path / "killed", seed=1, n_kills=2, longest=10.0)
    assert differences(tmp_path / "alone", tmp_path / "killed") == []


@pytest.mark.chaos
def test_twenty_runs_killed_at_random_moments_end_as_the_run_left_alone(tmp_path: Path) -> None:
    path = recipe(tmp_path, steps=400)
    seconds = run_to_the_end(path, tmp_path / "alone")
    hits = []
    for seed in range(20):
        out = tmp_path / f"killed-{seed}"
        hits.append(run_with_kills(path, out, seed, n_kills=1 + seed % 4, longest=0.9 * seconds))
        assert differences(tmp_path / "alone", out) == [], f"seed {seed}"
    assert min(hits) >= 1, f"kills that hit, a run: {hits}"
    print(f"20 runs, {sum(hits)} kills: weights, optimizer state and history are the same, bit for bit")
