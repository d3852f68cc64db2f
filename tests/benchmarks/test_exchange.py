"""The benchmark of import and export measures what it says, with a tiny model."""

from pathlib import Path

import pytest
import torch

from benchmarks import exchange

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40}


@pytest.mark.long
def test_every_part_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "SIZES", SMALL)
    found = exchange.measure(tmp_path, torch.bfloat16, 0.0, rounds=1)
    assert found["weights"] == 2 * (2 * 40 * 32 + 2 * 32 * (32 + 16) + 3 * 32 * 48 + 3 * 32)
    assert set(found["seconds"]) == {"read", "copy", "import", "export"} and min(found["of_copy"].values()) > 0
    assert not (tmp_path / "out").exists() and (tmp_path / "run" / "model.safetensors").exists()
