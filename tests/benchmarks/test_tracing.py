"""The benchmark of tracing measures what it says, with a tiny model."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import tracing
from benchmarks.shapes import random_tokens
from transom.layers.observe import ActivationRecorder


def test_a_model_without_sites_computes_the_same_and_records_nothing() -> None:
    model, x = tracing.gpt2(quick=True), random_tokens(1, 8, tracing.VOCAB, 1)
    recorder = ActivationRecorder(["*"])
    with torch.no_grad():
        expected = model(x)
        with tracing.without_sites():
            assert torch.equal(model(x, recorder), expected) and not recorder.activations
        model(x, recorder)
    assert len(recorder.activations) > 10


@pytest.mark.soak
def test_every_part_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)  # the other tools are no dependencies
    monkeypatch.setattr(tracing, "in_process", lambda part, *_: tracing.long(True) if part == "long" else tracing.map_of(part, True))
    tracing.main(["--quick", "--rounds", "2", "--no-compile", "--out", str(tmp_path / "r.json")])
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert found["off"]["pairs"] == 10 and found["off"]["extra_bytes"] == 0 < found["off"]["allocated_bytes"]
    assert set(found["certification"]) == {"faults", "no_fault", "smallest_scale"}
    assert set(found["on"]) == {"transom"} and set(found["map"]) == {"transom", "transformers"}
    assert found["map"]["transom"]["extra_mib"] >= 128**2 * 4 / 2**20
    assert found["long"]["tokens"] == 512 and found["long"]["named_certificate_ratio"] < 1 > found["long"]["files_certificate_ratio"]


def test_the_committed_results_meet_the_aims_that_the_page_states() -> None:
    found = json.loads((Path(tracing.__file__).parent / "results" / "tracing.json").read_text(encoding="utf-8"))
    assert found["off"]["upper_95"] <= 1.01 and found["off"]["extra_bytes"] == 0
    assert found["on"]["transom"]["ratio"] <= 1.05 and found["on"]["transom compiled"]["ratio"] <= 1.10
    own = found["map"]["transom"]
    for peer in ("transformers", "transformer_lens"):
        assert found["map"][peer]["extra_mib"] >= 20 * own["extra_mib"] and found["map"][peer]["seconds"] > own["seconds"]
    long = found["long"]
    assert long["tokens"] == 32768 and max(long[name] for name in long if name.endswith("extra_mib")) <= 256
    assert max(long["named_tile_ms_median"], long["files_tile_ms_median"]) <= 5
