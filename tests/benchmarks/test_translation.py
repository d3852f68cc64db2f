"""All systems of the translation benchmark do the same work: equal shapes, tokens and decoder steps."""

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import measure, ours, tables, translation
from benchmarks.peers import ct2, marian, torch_transformer
from benchmarks.shapes import BASE, TINY, Shape, tasks
from benchmarks.worker import Worker
from transom.decoding.backends.fused_inference import FusedSeq2Seq
from transom.planning.precision import num_threads_set_to

TRAINERS: dict[str, Callable[[], dict[str, Callable[[], float]]]] = {
    "transom": lambda: ours.training_steps(TINY),
    "Marian": lambda: marian.training_steps(TINY, compiled=False),
    "torch": lambda: torch_transformer.training_steps(TINY, compiled=False),
}


@pytest.mark.parametrize("system", TRAINERS)
def test_every_system_starts_near_the_uniform_loss_and_learns(system: str) -> None:
    for mode, step in TRAINERS[system]().items():
        losses = [step() for _ in range(30)]
        assert all(map(math.isfinite, losses)), mode
        if mode != "bf16" or system == "transom":  # a peer's modes share their weights: the first loss is the first mode's
            assert abs(losses[0] - math.log(TINY.vocab)) < 1
        assert sum(losses[-5:]) < sum(losses[:5]), mode


def test_models_have_equal_size() -> None:
    def count(model: nn.Module) -> int:
        return sum(p.numel() for p in model.parameters() if p.requires_grad)

    own = count(ours.fresh_model(TINY))
    assert count(marian.fresh_model(TINY)) == own
    assert count(torch_transformer.Model(TINY)) == own + 2 * 2 * TINY.config.d_model  # its two final norms


@pytest.mark.long
def test_all_systems_generate_equally_many_tokens() -> None:
    few = tasks(TINY, rows=3)
    systems = [ours.translators(few), ct2.translators(few, threads=2), marian.translators(few)]
    for task in few:
        selected = [(mode, translate) for workloads in systems for (name, mode), translate in workloads.items() if name == task.name]
        assert len(selected) > 5
        for mode, translate in selected:
            rows = translate()
            assert [len(row) for row in rows] == [TINY.target] * task.rows, mode
            assert all(0 <= token < TINY.vocab for row in rows for token in row), mode
            assert sum(map(len, rows)) == task.tokens


def test_decoders_take_equally_many_steps_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of: dict[str, list[int]] = {"transom": [], "Marian": []}
    step = FusedSeq2Seq.step

    def counting(self: FusedSeq2Seq, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        rows_of["transom"].append(len(tokens))
        return step(self, tokens, cache)

    monkeypatch.setattr(FusedSeq2Seq, "step", counting)
    peer = marian.fresh_model(TINY)
    peer.lm_head.register_forward_hook(lambda module, inputs, output: rows_of["Marian"].append(len(output)))
    monkeypatch.setattr(marian, "fresh_model", lambda shape: peer)
    few = tasks(TINY, rows=3)
    own, peers = ours.translators(few), marian.translators(few)
    by_pytorch = next((mode for _, mode in own if mode.endswith("no C++")), "fp32")
    with num_threads_set_to(1):  # one search, not one per thread
        for task in few:
            own[task.name, by_pytorch]()
            peers[task.name, "fp32"]()
    assert rows_of["transom"] == rows_of["Marian"] == [task.rows * task.beams for task in few for _ in range(TINY.target)]


def test_systems_take_turns() -> None:
    turns: list[str] = []
    workloads = {name: measure.timed(lambda name=name: turns.append(name)) for name in "ab"}
    timings = measure.time_interleaved(workloads, rounds=3)
    assert turns == ["a", "b"] * 4
    assert all(quartiles.low <= quartiles.median <= quartiles.high for quartiles in timings.values())
    assert measure.Quartiles.of([3.0, 1.0, 2.0]) == measure.Quartiles(2.0, 1.5, 2.5)


def build_workloads(shape: Shape, start: float) -> dict[str, Callable[[], float]]:
    return {
        "threads": lambda: float(torch.get_num_threads()),
        "start": lambda: start + shape.pairs,
        "broken": lambda: 1 / 0,
        "killed": abort_process,
    }


def abort_process() -> float:
    os.kill(os.getpid(), signal.SIGILL)
    return 0.0


@pytest.mark.long
def test_a_worker_runs_in_its_own_process_and_reports_errors(capfd: pytest.CaptureFixture[str]) -> None:
    with Worker(__name__, "build_workloads", TINY, 5.0, threads=1) as worker:
        assert worker.names == ["threads", "start", "broken", "killed"]
        assert worker.run_once("threads")[1] == 1.0
        seconds, result = worker.run_once("start")
        assert result == 5.0 + TINY.pairs and 0 <= seconds < 1
        with pytest.raises(RuntimeError, match=r"test_translation.build_workloads: .* an error, whose traceback its process printed"):
            worker.run_once("broken")
    with Worker(__name__, "build_workloads", TINY, 5.0, threads=1) as worker, pytest.raises(RuntimeError, match="ended by signal SIGILL"):
        worker.run_once("killed")
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_flops_and_bytes_match_a_count_by_hand() -> None:
    task = tasks(BASE)[1]
    d, ff, vocab = 512, 2048, 16000
    biases_and_more = 1.01
    weights = 6 * (4 * d * d + 2 * d * d + 2 * d * ff) + d * vocab
    assert weights <= task.bytes_read(1) / 32 < biases_and_more * weights
    decoder, encoder = 2 * weights * 32 * 4 * 32, 2 * 6 * (4 * d * d + 2 * d * ff) * 32 * 25
    assert decoder + encoder <= task.flops < biases_and_more * (decoder + encoder)


@pytest.mark.soak
def test_a_quick_run_records_results_and_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results" / "quick.json"
    translation.main(["--quick", "--train", "--decode", "--no-compile", "--rounds", "2", "--threads", "1", "--out", str(out)])
    result = json.loads(out.read_text())
    assert {"date", "command", "processor", "cores", "threads", "versions", "load_before"} <= result["facts"].keys()
    assert "start" not in result
    for rows in (result["train"]["tiny"], *result["decode"].values()):
        peers = [row for row in rows if row["system"] != "transom"]
        assert max(row["ratio_to_best_peer"] for row in peers) == 1.0
        assert len(peers) < len(rows)
        assert all(row["low"] <= row["tokens_per_second"] <= row["high"] for row in rows)
    assert all(row["step_memory_MiB"] > 0 for row in result["train"]["tiny"])
    assert "training tiny" in capsys.readouterr().out


def test_both_pages_show_the_results() -> None:
    assert tables.results_section(tables.BENCHMARKS_README.read_text(encoding="utf-8")) == tables.render_results()
    result = json.loads(tables.TRANSLATION.read_text(encoding="utf-8"))
    assert tables.results_section(tables.README.read_text(encoding="utf-8")) == tables.summary_table(result)


def test_results_become_tables() -> None:
    row = {"system": "transom", "tokens_per_second": 1234.5, "ratio_to_best_peer": 1.5}
    facts = {"matmul_gflops": {"float32": 1000}, "versions": {"torch": "2.13.0"}, "read_gbytes": 30.5, "command": "c", "date": "d"}
    facts |= {"processor": "p", "cores": 2, "threads": 2, "load_before": 0.1}
    text = tables.translation_tables({"facts": facts, "train": {"base": [row]}, "decode": {"greedy": [row]}})
    assert "| system | tokens per second | ratio to best peer |\n| --- | --- | --- |\n| transom | 1,234 | 1.5 |\n" in text
    assert "### Training, base" in text and "### Translation, greedy" in text and "float32 1,000 GFLOP/s" in text
