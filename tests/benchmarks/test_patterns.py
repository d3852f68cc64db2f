"""The benchmark of patterns compares equal things and its table says what was measured."""

import json

import torch

from benchmarks.patterns import PATTERNS, attention_methods, build_rules, measure, peak_bytes, single_sequence
from benchmarks.tables import pattern_tables
from transom.layers.attention import AttentionArgs, explicit_attention


def test_every_way_attends_as_its_rule_says() -> None:
    length = 320
    q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
    places, found = single_sequence(length), build_rules()
    assert set(found) == set(PATTERNS)
    for (name, way), attend in attention_methods(length).items():
        expected = explicit_attention(q, k, v, AttentionArgs(found[name].dense(places, places)))
        assert torch.allclose(attend(q, k, v), expected, rtol=0, atol=1e-5), (name, way)


def test_a_record_is_whole_and_its_table_has_a_row_a_way() -> None:
    rows = measure(128, rounds=2)
    assert [(row["pattern"], row["way"]) for row in rows] == list(attention_methods(128))
    assert rows[0]["visible_pairs"] == 128 * 129 // 2 and all(row["forward_ms"] > 0 for row in rows)
    facts = {"date": "today", "processor": "p", "threads": 1, "load_before": 0, "versions": {"torch": "2"}, "command": "c"}
    page = pattern_tables(json.loads(json.dumps({"facts": facts, "shape": {"n_heads": 8, "d_head": 64}, "rows": rows})))
    assert page.count("\n| ") == len(rows) + 2 and "#### 128 tokens" in page


def test_memory_is_what_work_takes() -> None:
    grown = peak_bytes(lambda: torch.ones(8 * 2**20))
    assert grown is None or 30e6 < grown < 60e6
