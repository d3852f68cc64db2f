"""All methods of the pattern benchmark compute the same attention, and records become tables."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.patterns import PATTERNS, attention_methods, build_rules, main, measure, peak_bytes, single_sequence
from benchmarks.tables import pattern_tables
from transom.layers.attention import AttentionArgs, explicit_attention


def test_every_method_matches_explicit_attention() -> None:
    length = 320
    q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
    positions, rules = single_sequence(length), build_rules()
    assert set(rules) == set(PATTERNS)
    for (name, method), attend in attention_methods(length).items():
        expected = explicit_attention(q, k, v, AttentionArgs(rules[name].dense(positions, positions)))
        assert torch.allclose(attend(q, k, v), expected, rtol=0, atol=1e-5), (name, method)


def test_the_table_has_one_row_per_pattern_and_method() -> None:
    rows = measure(128, rounds=2)
    assert [(row["pattern"], row["method"]) for row in rows] == list(attention_methods(128))
    assert rows[0]["visible_pairs"] == 128 * 129 // 2 and all(row["forward_ms"] > 0 for row in rows)
    facts = {"date": "today", "processor": "p", "threads": 1, "load_before": 0, "versions": {"torch": "2"}, "command": "c"}
    page = pattern_tables(json.loads(json.dumps({"facts": facts, "shape": {"n_heads": 8, "d_head": 64}, "rows": rows})))
    assert page.count("\n| ") == len(rows) + 2 and "#### 128 tokens" in page


def test_peak_memory_is_that_of_the_workload() -> None:
    grown = peak_bytes(lambda: torch.ones(8 * 2**20))
    assert grown is None or 30e6 < grown < 60e6


def test_results_are_printed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "patterns.json"
    monkeypatch.setattr(sys, "argv", ["patterns", "--out", str(out), "--shortest", "128", "--longest", "128", "--rounds", "1"])
    main()
    assert capsys.readouterr().out.count(" ms\n") == len(json.loads(out.read_text())["rows"]) == len(attention_methods(128))
