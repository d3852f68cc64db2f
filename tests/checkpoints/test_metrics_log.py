"""The history of a run: appended, cut to the step that is resumed, read whatever a killed process left."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom.checkpoints.metrics_log import MetricsLog
from transom.errors import CheckpointError, DiskError


def history(path, *steps):
    metrics = MetricsLog(path)
    for step in steps:
        metrics.append({"step": step, "loss": 1 / (step + 1)})
    return metrics


def test_records_come_back_exactly(tmp_path):
    metrics = history(tmp_path / "metrics.jsonl", 0, 3, 7)
    assert metrics.read() == [{"step": step, "loss": 1 / (step + 1)} for step in (0, 3, 7)]


def test_no_file_is_no_history(tmp_path):
    metrics = MetricsLog(tmp_path / "metrics.jsonl")
    assert metrics.read() == []
    metrics.truncate(5)
    metrics.sync()
    assert not metrics.path.exists()


def test_what_json_has_no_word_for_becomes_null(tmp_path):
    metrics = MetricsLog(tmp_path / "metrics.jsonl")
    metrics.append({"step": 1, "loss": math.nan, "deep": [math.inf, (1.5, -math.inf)], "more": {"x": math.nan}})
    assert "NaN" not in metrics.path.read_text()
    assert metrics.read() == [{"step": 1, "loss": None, "deep": [None, [1.5, None]], "more": {"x": None}}]


def test_a_resumed_run_forgets_what_it_will_write_again(tmp_path):
    metrics = history(tmp_path / "metrics.jsonl", 0, 10, 20, 20, 30)
    metrics.append({"note": "a record of no step"})
    metrics.truncate(20)
    assert [record.get("step") for record in metrics.read()] == [0, 10, 20, 20, None]
    metrics.append({"step": 30, "loss": 9.0})
    metrics.truncate(None)
    assert metrics.read() == []


def test_the_history_of_a_resumed_run_is_that_of_one_never_stopped(tmp_path):
    alone = history(tmp_path / "alone", *range(10))
    resumed = history(tmp_path / "resumed", *range(7))
    with resumed.path.open("a") as file:
        file.write('{"step": 7, "lo')
    resumed.truncate(4)
    history(tmp_path / "resumed", *range(5, 10))
    assert resumed.path.read_bytes() == alone.path.read_bytes()


def test_cut_at_any_byte_only_the_last_record_is_lost(tmp_path):
    whole = history(tmp_path / "metrics.jsonl", 0, 1, 2).path.read_bytes()
    for length in range(len(whole) + 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        assert len(MetricsLog(tmp_path / "cut").read()) == whole[:length].count(b"\n")
        MetricsLog(tmp_path / "cut").truncate(9)
        assert (tmp_path / "cut").read_bytes() == whole[: whole[:length].rfind(b"\n") + 1]


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "[1]", "5", '{"step": "x"}', '{"step": true}', "[" * 10**5, "\0\0\0\0", '{"step": ' + "9" * 5000 + "}"),
        *('{"step": ' + "9" * 400 + "}", '{"step": NaN}', '{"step": 1, "loss": 1e400}', '{"step": 1, "x": ' + "[" * 900 + "]" * 900 + "}"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    for use in (MetricsLog(path).read, lambda: MetricsLog(path).truncate(1)):
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl:2: damaged, expected a JSON object; remove this line") as error:
            use()
        assert "\n" not in str(error.value)


def test_a_full_disk_keeps_the_history(tmp_path, limited_files):
    metrics = history(tmp_path / "metrics.jsonl", 0, 1)
    with limited_files(60), pytest.raises(DiskError, match="its earlier lines are unchanged"):
        metrics.append({"step": 2, "text": "x" * 100})
    assert len(metrics.read()) == 2


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none()).map(lambda d: d | {"step": 1}), max_size=4))
def test_any_text_keeps_to_its_line(tmp_path_factory, records):
    """U+2028, U+0085, lone carriage returns and the like must not make a line of their own."""
    metrics = MetricsLog(tmp_path_factory.mktemp("any") / "metrics.jsonl")
    for record in records:
        metrics.append(record)
    assert metrics.read() == records
    assert not records or json.loads(metrics.path.read_bytes().split(b"\n")[0]) == records[0]
