"""The budget of a training step: every operation has a kind, the parts add up to the whole, and the results become tables."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import step_budget, tables
from benchmarks.families import Family
from benchmarks.step_budget import (
    OUTSIDE,
    StepBudget,
    budget_table,
    budget_workloads,
    fastest_modes,
    kind_of,
    measure_step,
    models,
    profiled,
    systems_of,
)
from transom.planning.hardware import PeakRates
from transom.planning.precision import choose_precision

TINY = {model.name: model for model in models(quick=True)}


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::addmm", "products with weights"),
        ("aten::bmm", "products of attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "fused attention"),
        ("CompiledFunctionBackward", "compiled loops"),
        ("_NormBackward", "native kernels"),
        ("_NativeAttentionBackward", "native attention"),
        ("transom::weight_gradient", "products with weights"),
        ("_Dropout", "native kernels"),
        ("aten::native_layer_norm_backward", "norms"),
        ("aten::_softmax", "softmax and loss"),
        ("aten::_fused_adam_", "optimizer and clipping"),
        ("aten::copy_", "copies and casts"),
        ("aten::gelu", "element-wise"),
    ],
)
def test_operations_have_kinds(operation: str, kind: str) -> None:
    assert kind_of(operation) == kind


def test_times_are_those_of_the_operations() -> None:
    a, b = torch.randn(700, 700), torch.randn(700, 700)
    seconds = profiled(lambda: [a @ b for _ in range(5)])
    assert seconds["products with weights"] > 0.8 * sum(seconds.values())


def test_steps_are_timed_without_the_profiler_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the time that the profiler adds."""
    adding = list[bool]()
    real = step_budget.profiled

    def slower(step: Any) -> dict[str, float]:
        adding.append(True)
        return real(step)

    def step() -> None:
        end = time.perf_counter() + (0.05 if adding else 0.01)
        while time.perf_counter() < end:
            pass

    monkeypatch.setattr(step_budget, "profiled", slower)
    found = measure_step(step)
    assert 0.01 <= found.seconds < found.profiled_seconds and found.profiled_seconds > 0.045


def test_the_middle_of_rounds_has_the_median_time_and_the_parts_of_one_round() -> None:
    rounds = [StepBudget(seconds, {"norms": norms, "element-wise": 1.0}) for seconds, norms in ((5.0, 2.0), (3.0, 9.0), (4.0, 1.0))]
    assert StepBudget.middle(rounds) == StepBudget(4.0, rounds[0].parts)
    assert StepBudget.middle(rounds[:1]) == rounds[0]


def test_the_share_of_the_peak_is_that_of_steps_without_the_profiler(capsys: pytest.CaptureFixture[str]) -> None:
    family, peak = TINY["bert"], PeakRates({torch.float32: 1e9}, 1e9)
    assert isinstance(family, Family)
    seconds = family.flops.training / 1e9
    rows = budget_table(family, {"transom fp32": StepBudget(2 * seconds, {"norms": 4 * seconds})}, peak)
    found = {row["milliseconds per step"]: row["transom fp32"] for row in rows}
    assert found["share of the peak rate"] == "50%" and found["whole step"] == round(2e3 * seconds, 1)
    assert found["sum, with the profiler"] == found["norms"] == round(4e3 * seconds, 1) and "bert" in capsys.readouterr().out


def test_results_from_before_say_that_steps_were_profiled() -> None:
    facts = {"processor": "a: avx2", "matmul_gflops": {}, "versions": {"torch": "2", "transformers": "5"}}
    facts |= dict.fromkeys(("date", "threads", "load_before", "command", "read_gbytes"), "1")
    bert = {"facts": facts, "table": [{"milliseconds per step": "whole step", "transom fp32": 1.0}]}
    assert "were timed with the profiler." in tables.budget_tables({"bert": bert})
    assert "were timed with the profiler." not in tables.budget_tables({"bert": bert | {"steps": {}}})


def test_a_table_has_the_fastest_mode_of_each_system() -> None:
    times = {("transom", "bf16"): 2.0, ("litgpt", "bf16"): 3.0, ("litgpt", "bf16 compiled"): 2.5}
    found = {name: StepBudget(seconds, {}) for name, seconds in times.items()}
    assert list(fastest_modes(found)) == ["transom bf16", "litgpt bf16 compiled"]


@pytest.mark.parametrize(
    ("model", "system"), [(model, system) for model in ("transformer-base", "gpt2", "vit") for system in systems_of(TINY[model], False)]
)
def test_most_of_a_step_has_a_kind(system: str, model: str) -> None:
    for budget in budget_workloads(*systems_of(TINY[model], compiled=False)[system]).values():
        found = budget()
        seconds = found.parts
        assert found.seconds > 0
        assert seconds["products with weights"] > 0 and seconds["optimizer and clipping"] > 0
        assert set(seconds) <= {kind for kind, _ in step_budget.KINDS} | {"element-wise", OUTSIDE}
        assert seconds.get("native kernels", 0) > 0 if system == "transom" else "native kernels" not in seconds


@pytest.mark.long
def test_budgets_are_written_and_become_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "budget.json"
    step_budget.main(["--quick", "--no-compile", "--only", "bert", "--rounds", "1", "--out", str(out)])
    result = json.loads(out.read_text())
    mode = choose_precision("auto", torch.device("cpu")).name
    rows, step = result["bert"]["table"], result["bert"]["steps"][f"transom {mode}"]
    assert step["seconds"] > 0 and sum(step["parts"].values()) > 0
    assert rows[-1]["milliseconds per step"] == "share of the peak rate" and "bert: a training step" in capsys.readouterr().out
    page = tables.budget_tables(json.loads(out.read_text()))
    assert "#### bert" in page and "| products with weights |" in page and "GFLOP of products at the peak rate" in page
