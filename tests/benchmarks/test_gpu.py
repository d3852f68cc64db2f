"""The benchmarks of a GPU measure what they say; here on the CPU, with tiny models."""

from importlib import import_module
from itertools import islice
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_inference, gpu_runs
from benchmarks.families import families
from benchmarks.patterns import build_rules
from transom.models.build import build_model

CPU = torch.device("cpu")
FLEX = import_module("torch.nn.attention.flex_attention")
SMALL = ["model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.d_ff=16", "model.max_seq_len=16", "training.batch_tokens=64"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_all_methods_compute_the_pattern_and_its_pairs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FLEX, "_validate_device", lambda *_: None)  # on a CPU the uncompiled kernel has a backward pass too
    monkeypatch.setattr(FLEX, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    length = 200
    for name, hidden in (("full", 0), ("window 256", 0), ("strided 128", length * (length + 1) // 2 - length - 72)):
        rows = list(gpu_inference.measure_patterns([length], [name], 2, CPU, torch.float32))
        assert [row["method"] for row in rows] == ["SDPA, is_causal", "SDPA, mask", "FlexAttention"][-3 if name == "full" else -1 :]
        for row in rows:
            assert row["relative_error"] < 1e-5 and row["forward_ms_low"] <= row["forward_ms"] <= row["forward_ms_high"]
            assert row["visible_pairs"] == length * (length + 1) // 2 - hidden
            assert row.get("computed_pairs", length**2) >= row["visible_pairs"]


def test_visible_pairs_do_not_depend_on_the_chunks() -> None:
    rule = build_rules()["strided 128"]
    assert gpu_inference.count_visible_pairs(rule, 300, CPU, 64) == sum(1 for i in range(300) for j in range(i + 1) if (i - j) % 128 == 0)


@pytest.mark.long
def test_decoding_is_bounded_by_the_bytes_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_inference, "N_PROMPT", 6)
    monkeypatch.setattr(gpu_inference, "N_NEW", 4)
    family = families(quick=True)[0]
    rows = list(islice(gpu_inference.measure_decoding(family, [1, 2], 1, CPU, 1e9), 4))  # the others are compiled
    assert [(row["system"], row["rows"]) for row in rows] == [(s, n) for n in (1, 2) for s in ("transom", "transformers")]
    assert all("error" not in row and row["low"] <= row["tokens_per_second"] <= row["high"] for row in rows), rows
    model = build_model(family.config)
    read = 2 * (sum(p.numel() for p in model.parameters()) - 48 * 32) + 2 * 2 * (6 + 2) * 2 * 2 * 32
    assert gpu_inference.decoding_limit(family, 2, 1e9) == pytest.approx(2e9 / read)


@pytest.mark.soak
def test_a_killed_run_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("to be or not to be\n" * 400)
    fields = [f"data.root={tmp_path}", *SMALL, "training.max_steps=400", "training.checkpoint_every=50", "training.validate_every=100"]
    found = gpu_runs.compare_resumed("shakespeare-char", tmp_path / "runs", [*fields, "training.log_every=1"], 50)
    assert found["weights_equal"] and found["metrics_equal"], found
    assert found["killed_by_signal"] == 9 and 50 <= found["last_logged_step_before_the_kill"] < 400 <= found["rows_of_metrics"]


@pytest.mark.long
def test_precisions_start_from_the_same_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_runs, "PRECISIONS", ("fp32", "bf16"))
    (tmp_path / "input.txt").write_text("to be or not to be\n" * 400)
    fields = [f"data.root={tmp_path}", *SMALL, "training.max_steps=4", "training.validate_every=2", "training.log_every=1"]
    found = gpu_runs.compare_precisions("shakespeare-char", tmp_path / "runs", fields, [1])
    assert found["fp32"]["largest_difference_from_fp32"] == 0 < found["bf16"]["largest_difference_from_fp32"] < 0.05
    assert all(len(each["validation_loss"]) == 1 and each["skipped"] == 0 for each in found.values())
