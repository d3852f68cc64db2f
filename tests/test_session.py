"""The session's own rules hold: budgets, skips, shape checks."""

import ast
import os
from typing import Literal

import pytest
import torch

from tests import conftest
from tests.conftest import ALLOWED_SKIPS, LAST, PROBE, REST, SECONDS, Watch
from tests.size import ROOT
from tests.test_architecture import trees


def a_report(nodeid: str, outcome: Literal["passed", "skipped"] = "passed", seconds: float = 0.0) -> pytest.TestReport:
    """Make the report of one test."""
    return pytest.TestReport(nodeid, ("", 0, ""), {}, outcome, None, "call", user_properties=[("processor", seconds)])


def test_a_slow_package_is_a_fault_in_the_first_tier() -> None:
    for first_tier in (True, False):
        watch = Watch(first_tier)
        watch.pytest_runtest_logreport(a_report("tests/layers/test_a.py::test_a", seconds=SECONDS["layers"]))
        assert not watch.faults()
        watch.pytest_runtest_logreport(a_report("tests/layers/test_b.py::test_b", seconds=1))
        assert len(watch.faults()) == first_tier
        assert all("most by tests/layers/test_a.py::test_a (" in fault for fault in watch.faults())


def test_a_slower_machine_has_more_time() -> None:
    watch = Watch(first_tier=True)
    slow = a_report("tests/layers/test_a.py::test_a", seconds=1.4 * SECONDS["layers"])
    slow.user_properties.append(("probe", 1.5 * PROBE))
    watch.pytest_runtest_logreport(slow)
    assert not watch.faults()
    watch.pytest_runtest_logreport(a_report("tests/layers/test_a.py::test_b", seconds=0.2 * SECONDS["layers"]))
    assert len(watch.faults()) == 1


def test_a_skip_that_is_not_on_the_list_is_a_fault() -> None:
    watch = Watch(first_tier=True)
    for name in [*ALLOWED_SKIPS, "tests/layers/test_a.py::test_new[3]"]:
        watch.pytest_runtest_logreport(a_report(name, "skipped"))
    assert [fault.split(" ")[0] for fault in watch.faults()] == ["tests/layers/test_a.py::test_new"]


def test_only_listed_files_can_skip() -> None:
    names = {"skip", "skipif", "importorskip", "xfail"}
    files = {
        path.relative_to(ROOT).as_posix()
        for path, tree in trees("tests").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node).startswith("pytest.")
    }
    assert files <= {"tests/conftest.py", *(name.split("::")[0] for name in ALLOWED_SKIPS)}


@pytest.mark.parametrize("by_reference", [True, False])
def test_tests_of_kernels_may_skip_in_a_session_without_kernels_only(by_reference: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "BY_REFERENCE", by_reference)
    watch, report = Watch(first_tier=True), a_report("tests/layers/test_a.py::test_new", "skipped")
    report.longrepr = ("tests/conftest.py", 1, f"Skipped: {conftest._KERNELS_ARE_OUT}")
    watch.pytest_runtest_logreport(report)
    assert len(watch.faults()) == (not by_reference)


def test_budgets_hold_what_two_cores_do_in_eight_minutes_twice() -> None:
    """A machine of half the speed must not fail; what `make test` took on which machine is in log/2026-11-22-times-of-a-clone.md."""
    assert sum(SECONDS.values()) + 2 * REST <= 2 * 2 * 8 * 60


def test_processor_time_is_in_every_report(request: pytest.FixtureRequest) -> None:
    assert request.config.stash[LAST] > 0


def test_one_thread_a_process() -> None:
    assert torch.get_num_threads() == 1
    assert os.environ.get("OMP_NUM_THREADS") == "1"
