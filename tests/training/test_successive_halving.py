"""Successive halving with losses given by a formula: who survives each rung is known beforehand."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from transom.errors import ConfigError
from transom.training.successive_halving import Rung, halve, plan_rungs


def test_each_rung_has_half_of_the_configurations_and_twice_the_steps() -> None:
    assert plan_rungs(8, 80) == (Rung(8, 10), Rung(4, 20), Rung(2, 40), Rung(1, 80))
    assert plan_rungs(1, 7) == (Rung(1, 7),) and plan_rungs(7, 100) == (Rung(7, 25), Rung(3, 50), Rung(1, 100))


@pytest.mark.parametrize("steps", [1, 5, 64, 99, 1000, 1023])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9, 31])
def test_rungs_grow_and_end_with_one_configuration_and_all_steps(size: int, steps: int) -> None:
    if steps < 2 ** int(math.log2(size)):
        with pytest.raises(ConfigError, match="--steps: expected at least"):
            plan_rungs(size, steps)
        return
    rungs = plan_rungs(size, steps)
    assert (rungs[0].size, rungs[-1]) == (size, Rung(1, steps))
    assert all(a.steps < b.steps and a.size // 2 == b.size for a, b in pairwise(rungs))
    assert all(rung.steps % rungs[0].steps == 0 for rung in rungs[:-1]), "a validation is due at the end of each"


class Trainer:
    """Configuration c has loss floor[c] + slow[c] / steps; the calls are recorded."""

    def __init__(self, rungs: Sequence[Rung], floors: Sequence[float], slow: Sequence[float]) -> None:
        self.rungs, self.floors, self.slow = rungs, floors, slow
        self.calls = list[list[int]]()

    def __call__(self, rung: int, numbers: Sequence[int]) -> Mapping[int, float]:
        self.calls.append(list(numbers))
        return {c: self.floors[c] + self.slow[c] / self.rungs[rung].steps for c in numbers}


def test_the_better_half_of_each_rung_is_continued() -> None:
    rungs = plan_rungs(8, 80)
    floors = [8, 3, 7, 1, 6, 2, 5, 4]
    trainer = Trainer(rungs, floors, [0.0] * 8)
    found = halve(rungs, trainer)
    assert [sorted(call) for call in trainer.calls] == [[0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 5, 7], [3, 5], [3]]
    assert list(found.ranking) == sorted(range(8), key=lambda c: floors[c])
    assert [dict(scores) for scores in found.scores][-1] == {3: 1.0}


def test_a_configuration_that_is_slow_at_first_is_dropped_although_it_would_end_best() -> None:
    rungs = plan_rungs(4, 40)
    found = halve(rungs, Trainer(rungs, [0.0, 1.0, 2.0, 3.0], [1000.0, 0.0, 0.0, 0.0]))
    assert found.ranking == (1, 2, 3, 0)


def test_of_equal_scores_the_lower_number_is_continued() -> None:
    rungs = plan_rungs(4, 40)
    trainer = Trainer(rungs, [1.0] * 4, [0.0] * 4)
    assert halve(rungs, trainer).ranking == (0, 1, 2, 3) and trainer.calls == [[0, 1, 2, 3], [0, 1], [0]]


def test_configurations_that_diverged_rank_last_and_are_not_continued() -> None:
    rungs = plan_rungs(8, 80)
    trainer = Trainer(rungs, [math.inf, 5.0, math.inf, 4.0, math.inf, math.inf, math.inf, 3.0], [0.0] * 8)
    found = halve(rungs, trainer)
    assert trainer.calls == [list(range(8)), [7, 3, 1], [7, 3], [7]]
    assert found.ranking == (7, 3, 1, 0, 2, 4, 5, 6)


def test_a_sweep_in_which_all_diverge_ends() -> None:
    rungs = plan_rungs(4, 40)
    trainer = Trainer(rungs, [math.inf] * 4, [0.0] * 4)
    assert halve(rungs, trainer).ranking == (0, 1, 2, 3) and len(trainer.calls) == 1


@pytest.mark.parametrize("size", range(1, 33))
def test_all_configurations_are_ranked_once_by_the_rung_that_they_reach(size: int) -> None:
    rungs = plan_rungs(size, 64)
    found = halve(rungs, Trainer(rungs, [(7 * c) % size for c in range(size)], [float(c % 3) for c in range(size)]))
    assert sorted(found.ranking) == list(range(size))
    reached = [max(k for k, scores in enumerate(found.scores) if c in scores) for c in found.ranking]
    assert reached == sorted(reached, reverse=True)
    assert [len(scores) for scores in found.scores] == [rung.size for rung in rungs]
