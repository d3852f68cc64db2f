"""The benchmark compares like with like: every system trains the same shape on as many tokens and answers with as many in as many steps."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import measure, ours, tables, translation
from benchmarks.peers import ct2, marian, torch_transformer
from benchmarks.shapes import BASE, TINY, Task, tasks
from transom.decoding.flat import FlatSeq2Seq

TRAINERS: dict[str, Callable[[], dict[str, Callable[[], float]]]] = {
    "transom": lambda: ours.training_steps(TINY),
    "Marian": lambda: marian.training_steps(TINY, compiled=False),
    "torch": lambda: torch_transformer.training_steps(TINY, compiled=False),
}


@pytest.mark.parametrize("system", TRAINERS)
def test_a_training_step_learns_from_a_loss_like_the_others(system: str) -> None:
    for mode, step in TRAINERS[system]().items():
        losses = [step() for _ in range(30)]
        assert all(map(math.isfinite, losses)), mode
        if mode != "bf16" or system == "transom":  # a peer's modes share their weights: the first loss is the first mode's
            assert abs(losses[0] - math.log(TINY.vocab)) < 1
        assert sum(losses[-5:]) < sum(losses[:5]), mode


def test_models_are_of_one_size() -> None:
    def count(model: nn.Module) -> int:
        return sum(p.numel() for p in model.parameters() if p.requires_grad)

    own = count(ours.fresh_model(TINY))
    assert count(marian.fresh_model(TINY)) == own
    assert count(torch_transformer.Model(TINY)) == own + 2 * 2 * TINY.config.d_model  # its two final norms


@pytest.mark.parametrize("task", tasks(TINY, rows=3), ids=lambda task: task.name)
def test_answers_are_of_one_length(task: Task, tmp_path: Path) -> None:
    peer = marian.fresh_model(TINY).eval()
    ct2.convert(peer, tmp_path)
    systems = ours.translators(task) | ct2.translators(task, tmp_path, threads=2) | marian.translators(task, peer)
    assert len(systems) > 5
    for name, translate in systems.items():
        found = translate()
        assert [len(row) for row in found] == [TINY.target] * task.rows, name
        assert all(0 <= token < TINY.vocab for row in found for token in row), name
        assert sum(map(len, found)) == task.tokens


@pytest.mark.parametrize("task", tasks(TINY, rows=3), ids=lambda task: task.name)
def test_decoders_run_as_often_on_as_many_rows(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of: dict[str, list[int]] = {"transom": [], "Marian": []}
    step = FlatSeq2Seq.step

    def counting(self: FlatSeq2Seq, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        rows_of["transom"].append(len(tokens))
        return step(self, tokens, cache)

    monkeypatch.setattr(FlatSeq2Seq, "step", counting)
    peer = marian.fresh_model(TINY).eval()
    peer.lm_head.register_forward_hook(lambda module, inputs, output: rows_of["Marian"].append(len(output)))
    ours.translators(task)["fp32"]()
    marian.translators(task, peer)["fp32"]()
    assert rows_of["transom"] == rows_of["Marian"] == [task.rows * task.beams] * TINY.target


def test_systems_take_turns() -> None:
    turns: list[str] = []
    spreads = measure.interleave({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, rounds=3)
    assert turns == ["a", "b"] * 4
    assert all(spread.low <= spread.median <= spread.high for spread in spreads.values())
    assert measure.Spread.of([3.0, 1.0, 2.0]) == measure.Spread(2.0, 1.5, 2.5)


def test_work_is_counted_as_by_hand() -> None:
    task = tasks(BASE)[1]
    d, ff, vocab = 512, 2048, 16000
    biases_and_more = 1.01
    weights = 6 * (4 * d * d + 2 * d * d + 2 * d * ff) + d * vocab
    assert weights <= task.bytes_read(1) / 32 < biases_and_more * weights
    decoder, encoder = 2 * weights * 32 * 4 * 32, 2 * 6 * (4 * d * d + 2 * d * ff) * 32 * 25
    assert decoder + encoder <= task.flops < biases_and_more * (decoder + encoder)


def test_a_quick_run_writes_figures_with_their_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "training tiny" in capsys.readouterr().out


def test_the_readme_shows_the_results() -> None:
    assert tables.section(tables.README.read_text(encoding="utf-8")) == tables.current()


def test_results_become_tables() -> None:
    row = {"system": "transom", "tokens_per_second": 1234.5, "ratio_to_best_peer": 1.5}
    facts = {"matmul_gflops": {"float32": 1000}, "versions": {"torch": "2.13.0"}, "read_gbytes": 30.5, "command": "c", "date": "d"}
    facts |= {"processor": "p", "cores": 2, "threads": 2, "load_before": 0.1}
    text = tables.markdown({"facts": facts, "train": {"base": [row]}, "decode": {"greedy": [row]}})
    assert "| system | tokens per second | ratio to best peer |\n| --- | --- | --- |\n| transom | 1,234 | 1.5 |\n" in text
    assert "### Training, base" in text and "### Translating, greedy" in text and "float32 1,000 GFLOP/s" in text
