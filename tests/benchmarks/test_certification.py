"""Every seeded fault is found in models that were trained for a few steps, and nothing is found without one."""

import json
from functools import cache
from pathlib import Path

import pytest

from benchmarks import certification
from benchmarks.certification import FAULTS, MAP_FAULTS, MODELS, fault_model, kernel_ratios, recomputation_ratios, traced
from tests.tiers import every
from transom.models.base import Network

STEPS = 40
trained = cache(lambda name: certification.train(name, STEPS))


@pytest.mark.parametrize("fault", every(5, [*FAULTS, *MAP_FAULTS]))
def test_a_fault_in_either_path_is_found(fault: str) -> None:
    model: Network = trained(fault_model(fault))
    assert max(recomputation_ratios(model, fault)) > 20
    for own, others in kernel_ratios(model, fault):  # the layer is named, and no other
        assert own > 20 and others <= 1
    assert all(each.ok for each in traced(model, -1).certify())  # the fault is gone


@pytest.mark.parametrize("name", every(len(MODELS), MODELS))
def test_maps_without_a_fault_give_no_alarm(name: str) -> None:
    found = [each for seed in range(3) for each in traced(trained(name), 100 + seed).certify()]
    assert sum(each.n_maps for each in found) >= 3 * 3 * 64 and all(each.ratio < 0.5 for each in found)


def test_the_committed_results_have_every_fault() -> None:
    committed = json.loads((Path(certification.__file__).parent / "results" / "tracing.json").read_text(encoding="utf-8"))["certification"]
    assert set(committed["faults"]) == {*FAULTS, *MAP_FAULTS}
    for each in committed["faults"].values():
        assert min(each["recomputation"], each["kernel"]) > 100 and each["layers_found"] == each["layers"] and each["other_layers"] <= 1
    assert committed["no_fault"]["false_alarms"] == 0 and committed["no_fault"]["maps"] >= 10_000
