"""The benchmark of the page measures what it says, with a tiny model."""

import json
from pathlib import Path

import pytest

from benchmarks import explore
from tests.browser import chromium

pytestmark = pytest.mark.soak


def test_every_part_runs(tmp_path: Path) -> None:
    if chromium() is None:
        pytest.skip("needs Chromium")
    explore.main(["--quick", "--rounds", "2", "--out", str(tmp_path / "r.json")])
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert found["tile_ms"]["tokens"] == 2048 and found["javascript_bytes"] <= 200_000
    for name in ("first_paint_ms", "edit_to_picture_ms", "tile_ms"):
        assert 0 < found[name]["low"] <= found[name]["median"] <= found[name]["high"] <= found[name]["max"]
