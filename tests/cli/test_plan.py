"""``transom plan``: the table, the JSON, the picture, its errors, and the comparison with a run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call, Trained
from transom.training import plan_check
from transom.training.plan_check import check_plan
from transom.training.plan_run import PlanOptions

SMALL = ["gpt2", "--vocab-size", "50", "--set", "model.d_model=16", "--set", "model.n_heads=2", "--set", "model.n_layers=2"]
GPUS = ["--context", "16", "--gpus", "8", "--gpu-memory", "80GiB", "--precision", "fp32"]


def test_the_table_fits_a_terminal_and_says_what_the_json_says(transom: Call) -> None:
    arguments = ("plan", *SMALL, *GPUS, "--flops-per-second", "1e15", "--tokens", "1e9", "--shard", "full")
    page, value = transom(*arguments), transom(*arguments, "--json").json
    assert page.code == 0 and max(map(len, page.out.splitlines())) <= 100
    parameters, memory = value["parameters"], value["memory"]
    assert sum(parameters["parts"].values()) == parameters["total"]
    assert f"{parameters['total']:,} parameters" in page.out and f"{value['flops']['training']:,.0f} in training" in page.out
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    assert value["batch"] == 4096 and value["rows"] == 4096 // 16 // 8
    timed = value["time"]
    assert timed["steps"] == -(-(10**9) // 4096)
    assert timed["seconds"] == pytest.approx(timed["steps"] * 4096 * value["flops"]["training"] / (8 * 1e15 * 0.4))
    assert value["fit"]["device_bytes"] == 80 * 2**30 and value["fit"]["fits"] and "this fits into 80.0 GiB" in page.out
    assert value["budget"]["optimal_tokens"] == 20 * parameters["total"]


@pytest.mark.long
def test_a_published_model_is_planned_with_its_own_sizes(transom: Call) -> None:
    gpus = ["--gpus", "8", "--gpu-memory", "80GiB"]
    page, value = transom("plan", "gpt2", *gpus), transom("plan", "gpt2", *gpus, "--json").json
    assert value["parameters"]["total"] == value["published"]["ours"] == 124_439_808
    assert "published: Radford et al. 2019" in page.out and "+6.4% from the published 117 million" in page.out
    value = transom("plan", "llama-2-70b", *gpus, "--json").json
    assert value["batch"] == 8 * 4096 and value["rows"] == 1, "a row per device"
    tokens = transom("plan", "llama-2-70b", *gpus, "--flops-per-second", "1e15", "--json").json["time"]["steps"] * value["batch"]
    assert 0 <= tokens - 2 * 10**12 < value["batch"]
    assert transom("plan", "copy", "--json").json["published"] is None


def test_what_does_not_fit_is_said_with_what_would(transom: Call) -> None:
    """Of each weight 8 bytes are Adam's state, 12 the weight, its gradient and the copy for validation; here each device has one row."""
    shape = ["--context", "64", "--batch-tokens", "512", "--json"]
    value = transom("plan", "llama-7b", *GPUS[2:], *shape).json
    assert value["rows"] == 1 and not value["fit"]["fits"] and value["time"] is None
    n, rest = 6_738_415_616, 80 * 2**30 - value["memory"]["activations"]
    assert value["fit"]["fewest_devices"]["none"] is None and 20 * n > rest
    fewest = value["fit"]["fewest_devices"]["full"]
    assert 20 * n / fewest <= rest < 20 * n / (fewest // 2)
    assert value["fit"]["fewest_devices"]["optimizer"] is None and 12 * n > rest


def test_bytes_and_operations_are_drawn(transom: Call, tmp_path: Path) -> None:
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        assert transom("plan", *SMALL, *GPUS, "--plot", file).code == 0
    first, second = (file.read_text() for file in files)
    assert first == second and "<desc>Where the training of gpt2 goes" in first
    rows = [line.split(",") for line in files[0].with_suffix(".csv").read_text().splitlines()[1:]]
    for kind in ("parameters", "FLOPs", "bytes"):
        assert sum(float(share) for what, *_, share in rows if what == kind) == pytest.approx(1)


def test_a_recipe_is_planned_for_this_machine(transom: Call) -> None:
    value = transom("plan", "copy", "--set", "model.d_model=16", "--set", "model.n_heads=2", "--json").json
    assert value["time"]["rate_source"] == "measured on this machine" and value["time"]["steps"] > 0
    assert value["cache"]["per_source_token"] > 0 and value["budget"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt5"], "expected a preset, a recipe or the path of a .toml file, found 'gpt5'"),
        (["gpt2", "--vocab-size", "0"], "--vocab-size"),
        ([], "expected NAME_OR_FILE or --check RUN, found both or neither"),
        ([*SMALL, "--set", "training.max_steps=3"], "--set training.max_steps=3: expected a field of the model"),
        ([*SMALL, "--set", "training.activation_checkpointing=all"], "activation_checkpointing: expected 'none' or 'blocks', found 'all'"),
        ([*SMALL, "--gpu-memory", "much"], "--gpu-memory: expected a size above 0, found 'much'"),
        ([*SMALL, *GPUS, "--context", "2000"], "--context: expected at most model.max_seq_len = 1,024 tokens, found 2,000"),
        ([*SMALL, *GPUS, "--batch-tokens", "16"], "--batch-tokens: expected a row of 16 tokens for each of 8 devices, found 16 tokens"),
        (["--check", "runs/none", "--plot", "plan.svg"], "--plot: expected NAME_OR_FILE, found --check"),
        (["copy", "--plot", "plan.gif"], "expected a file that ends in .svg"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], message: str, transom: Call) -> None:
    assert message in transom("plan", *arguments).error


def test_a_run_is_compared_with_its_plan(trained: Trained, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With injected use: the differences are relative to the use, and the median of the steps after the first line counts."""
    records: list[dict[str, Any]] = [
        {"step": step, "kind": "train", "loss": 1.0, "seconds_per_step": seconds, "needed_memory": memory, "peak_memory": 2 * memory}
        for step, seconds, memory in [(10, 9.0, 100), (20, 2.0, 2 * 2**30), (30, 4.0, 2**30), (40, 3.0, 2**30)]
    ]
    monkeypatch.setattr(plan_check, "read_metrics_history", lambda metrics: records)
    found = check_plan(trained.folder, PlanOptions(flops_per_second=1e12, utilization=0.5))
    assert (found.memory_used, found.memory_held, found.seconds_used) == (2 * 2**30, 4 * 2**30, 3.0)
    assert found.memory_difference == found.plan.memory.total / 2**31 - 1
    assert found.plan.time is not None and found.time_difference == found.plan.time.flops_per_step / 0.5e12 / 3 - 1
    assert found.to_json()["memory_is_judged"]
    lines = transom("plan", "--check", trained.folder, "--flops-per-second", "1e12").out.splitlines()
    assert lines[0].split() == ["predicted", "used", "difference"] and lines[1].split()[-1].endswith("%")
    monkeypatch.setattr(plan_check, "read_metrics_history", lambda metrics: records[:0])
    assert "expected metrics with needed_memory and seconds_per_step, found none" in transom("plan", "--check", trained.folder).error


@pytest.mark.soak
def test_the_memory_of_a_real_run_is_predicted(tmp_path: Path) -> None:
    """The plan is compared with the peak of the first steps, in which freed memory is given back."""
    fields = ["data.generate.n_files=20", "tokenizer.vocab_size=600", "model.d_model=384", "model.n_heads=6", "model.n_layers=6"]
    fields += ["training.batch_tokens=12288", "training.max_steps=4", "training.log_every=2", "training.fit_to_data=false"]
    words = [word for field in fields for word in ("--set", field)]
    command = [sys.executable, "-m", "transom", "train", "python-stdlib", "--out", str(tmp_path / "run"), *words]
    subprocess.run(command, check=True, timeout=1200)
    found = check_plan(tmp_path / "run", PlanOptions(flops_per_second=1e12))
    assert found.memory_used > 2**30 and abs(found.memory_difference) < 0.10


def test_training_records_memory_and_time(trained: Trained) -> None:
    lines = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["kind"] == "train"]
    assert found and all(line["peak_memory"] > 0 and line["seconds_per_step"] > 0 for line in found)
    assert 0 < found[-1]["needed_memory"] <= found[-1]["peak_memory"]
