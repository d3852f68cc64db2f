"""Predicted times of published runs: the utilization of each kind of device is fitted to one run, the others are predicted."""

import pytest

from tests.planning.published_runs import RUNS, PublishedRun
from tests.tiers import every
from transom.planning.parameters import count_parameters

FITTED = {"Llama 3.1 8B on 8 H100": 0.01, "GPT 39.1B on 512 A100": 0.03}
"""Runs from which the utilizations of ``CLUSTERS`` come, with the rounding of these."""

TOLERANCE = 0.25

RATIOS = {
    "Llama 3.1 8B on 8 H100": 1.00,
    "Llama 3.1 8B on 128 H100": 0.98,
    "GPT 18.4B on 256 A100": 0.96,
    "GPT 39.1B on 512 A100": 1.03,
    "GPT 1008B on 3,072 A100": 1.20,
    "GPT 175B on 1,024 A100": 1.01,
    "GPT 22B on 8 A100": 0.88,
}
"""Predicted / published seconds per step. The widest model is predicted too slow and the narrow ones too fast, since one utilization serves
matrices of every width."""


@pytest.mark.parametrize("run", every(3, RUNS), ids=lambda run: run.name)
def test_the_step_of_a_published_run_is_predicted(run: PublishedRun) -> None:
    ratio = run.predict().total / run.seconds
    assert round(ratio, 2) == RATIOS[run.name], f"{run.source}: published {run.seconds:.3g} s ({run.how}), predicted {ratio:.3f} times that"
    assert abs(ratio - 1) <= FITTED.get(run.name, TOLERANCE)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_model_of_a_published_run_has_its_size(run: PublishedRun) -> None:
    size = next(word for word in run.name.split() if word.endswith("B")).removesuffix("B")
    assert count_parameters(run.config).total == pytest.approx(1e9 * float(size), rel=0.02)
