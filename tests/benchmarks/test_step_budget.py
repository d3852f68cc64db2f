"""The budget of a training step: every operation has a kind, the parts add up to the whole, and the results become tables."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import step_budget, tables
from benchmarks.families import families
from benchmarks.step_budget import OUTSIDE, budget_workloads, kind_of, profiled

TINY = {family.name: family for family in families(quick=True)}


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::addmm", "products with weights"),
        ("aten::bmm", "products of attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "fused attention"),
        ("CompiledFunctionBackward", "compiled loops"),
        ("_NormBackward", "native kernels"),
        ("_NativeAttentionBackward", "native kernels"),
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
    seconds = profiled(lambda: [a @ b for _ in range(5)], 2)
    assert seconds["products with weights"] > 0.8 * sum(seconds.values())


@pytest.mark.parametrize("family", ["gpt2", "vit"])
@pytest.mark.parametrize("system", ["transom", "transformers"])
def test_most_of_a_step_has_a_kind(system: str, family: str) -> None:
    for budget in budget_workloads(system, TINY[family], 1, compiled=False).values():
        seconds = budget()
        assert seconds["products with weights"] > 0 and seconds["optimizer and clipping"] > 0
        assert set(seconds) <= {kind for kind, _ in step_budget.KINDS} | {"element-wise", OUTSIDE}
        assert seconds.get("native kernels", 0) > 0 if system == "transom" else "native kernels" not in seconds


@pytest.mark.long
def test_budgets_are_written_and_become_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "budget.json"
    step_budget.main(["--quick", "--no-compile", "--only", "bert", "--rounds", "1", "--out", str(out)])
    rows = json.loads(out.read_text())["families"]["bert"]
    assert rows[-1]["milliseconds per step"] == "share of the peak rate" and "bert: a training step" in capsys.readouterr().out
    page = tables.budget_tables(json.loads(out.read_text()))
    assert "#### bert" in page and "| products with weights |" in page and "limit: products at the peak rate" in page
