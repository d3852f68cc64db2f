"""Every layout takes the steps of one process, and continues the runs of another layout."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiers import tiers
from tests.training.test_processes import EXACT, history
from tests.training.test_train_loop import MODEL, same, sit, traces

EXACT_MODEL = {**MODEL, "dropout": 0.0}
LAYOUTS: list[dict[str, int]] = [{"shard": 2}, {"shard": 3}, {"data": 2, "shard": 2}]


def by_name(layout: Mapping[str, int]) -> str:
    return "-".join(f"{axis}{size}" for axis, size in layout.items())


@pytest.mark.parametrize("layout", tiers(LAYOUTS[:1], long=LAYOUTS[1:]), ids=by_name)
def test_a_layout_takes_the_steps_of_one_process(tmp_path: Path, layout: dict[str, int]) -> None:
    fields: dict[str, Any] = {"model": EXACT_MODEL, "optimizer": "adamw", "average": {"kind": "ema", "decay": 0.8}}
    alone, together = (history(tmp_path / str(n), parallel=each, **fields) for n, each in enumerate(({}, layout)))
    for one, several in zip(alone, together, strict=True):
        assert one.n_target_tokens == several.n_target_tokens
        assert (one.loss, one.nll, one.grad_norm) == pytest.approx((several.loss, several.nll, several.grad_norm), rel=2e-4)
    (tensors, _), (others, _) = (traces(tmp_path / name) for name in "01")
    assert tensors.keys() - others.keys() == set()
    for name in tensors:
        if name.startswith(("model/", "ema/", "kept/", "optimizer/")):
            assert tensors[name].shape == others[name].shape
            torch.testing.assert_close(tensors[name], others[name], rtol=1e-2, atol=2e-4)


@pytest.mark.long
def test_a_run_continues_in_other_layouts(tmp_path: Path) -> None:
    """A run of one process ends as one that two shards, then three, then one process continue, but for rounding."""
    fields: dict[str, Any] = {**EXACT, "model": EXACT_MODEL, "average": {"kind": "checkpoints", "n_checkpoints": 2}, "max_steps": 12}
    sit(tmp_path / "alone", **fields)
    steps: list[int] = [0]
    for last, layout in ((3, {"shard": 2}), (6, {"shard": 3}), (9, {"data": 2}), (12, {})):
        over = partial(lambda last: steps[-1] >= last, last)
        sit(tmp_path / "several", lambda e: steps.append(e.step), over, **fields, parallel=layout)
    (tensors, history_alone), (others, history_several) = traces(tmp_path / "alone"), traces(tmp_path / "several")
    assert [record["step"] for record in history_alone] == [record["step"] for record in history_several]
    for name in tensors:
        if name.startswith("model/"):
            torch.testing.assert_close(tensors[name], others[name], rtol=1e-2, atol=1e-3)


@pytest.mark.long
def test_a_stopped_run_of_shards_ends_as_the_run_left_alone(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"parallel": {"shard": 2}, "average": {"kind": "ema", "decay": 0.8}}
    sit(tmp_path / "alone", **fields)
    steps: list[int] = []
    stopped = sit(tmp_path / "stopped", lambda e: steps.append(e.step), lambda: bool(steps) and steps[-1] >= 5, **fields)
    assert stopped.reason == "stopped"
    sit(tmp_path / "stopped", **fields)
    same(tmp_path / "alone", tmp_path / "stopped")
