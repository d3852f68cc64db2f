import math
from dataclasses import replace

import pytest

from transom.inspection.facts import Facts, gather
from transom.inspection.report import report


def test_the_kept_validation_is_the_last_that_was_best(facts: Facts) -> None:
    assert facts.kept is not None and facts.kept["step"] == 5000
    assert facts.samples == facts.kept["samples"]
    assert (facts.steps, len(facts.validations)) == (6000, 12)


def test_series_hold_one_kind_and_show_gaps(facts: Facts) -> None:
    norms = dict(facts.series("train", "grad_norm"))
    assert len(norms) == 600 and [step for step, norm in norms.items() if math.isnan(norm)] == [1240]
    assert [step for step, _ in facts.series("validation", "bleu")] == list(range(500, 6001, 500))
    assert facts.series("train", "no such field") == []


def test_medians_leave_out_what_is_not_finite(facts: Facts) -> None:
    lines = [{"step": step, "kind": "train", "peak_share": share} for step, share in enumerate([0.1, None, 0.3, 0.2])]
    assert replace(facts, metrics=lines).peak_share == pytest.approx(0.2)
    assert replace(facts, metrics=lines).throughput is None


def test_a_run_before_its_first_validation(facts: Facts) -> None:
    bare = replace(facts, metrics=[])
    assert (bare.steps, bare.kept, bare.samples, bare.validations) == (0, None, (), [])


def test_facts_are_gathered_from_what_the_run_told(facts: Facts) -> None:
    known = {
        "data": {"problems": [], "train": {"pairs": 7}},
        "parameters": 1234,
        "active_parameters": 1200,
        "precision": "bf16: 4.1x faster here",
        "threads": "2 threads: the cores of this process",
        "processes": "",
        "peak_flops": 4.12e11,
        "bandwidth": 2.1e10,
        "torch": "2.13.0",
    }
    told = gather("en-de", facts.recipe, known, facts.metrics, 99.0)
    assert (told.name, told.n_parameters, told.seconds, told.data) == ("en-de", 1234, 99.0, known["data"])
    assert told.machine == (
        "bf16: 4.1x faster here",
        "2 threads: the cores of this process",
        "measured peak: matrix products 412 GFLOP/s, memory 21 GB/s",
        "torch 2.13.0",
    )
    assert "measured peak: matrix products 412 GFLOP/s" in report(told)
