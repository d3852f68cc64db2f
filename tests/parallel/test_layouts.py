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

LAYOUTS: list[dict[str, int]] = [
    {"shard": 2},
    {"shard": 3},
    {"data": 2, "shard": 2},
    {"tensor": 2},
    {"context": 3},
    {"expert": 2},
    {"tensor": 2, "context": 2},
    {"shard": 2, "tensor": 2},
    {"shard": 2, "context": 2},
    {"shard": 2, "expert": 2},
    {"pipeline": 2},
    {"pipeline": 2, "data": 2},
    {"pipeline": 2, "shard": 2},
    {"pipeline": 2, "tensor": 2},
]


def by_name(layout: Mapping[str, int]) -> str:
    return "-".join(f"{axis}{size}" for axis, size in layout.items())


@pytest.mark.parametrize("layout", tiers(LAYOUTS, long=[LAYOUTS[0], LAYOUTS[5], LAYOUTS[6], LAYOUTS[10]]), ids=by_name)
def test_a_layout_takes_the_steps_of_one_process(tmp_path: Path, layout: dict[str, int]) -> None:
    mixture = {"feed_forward": {"kind": "moe", "n_experts": 4}} if "expert" in layout else {}
    fields: dict[str, Any] = {"model": MODEL | mixture, "optimizer": "adamw", "average": {"kind": "ema", "decay": 0.8}}
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


IN_BFLOAT16: list[dict[str, int]] = [{"pipeline": 2}, {"shard": 2}, {"tensor": 2}, {"context": 2}, {"expert": 2}]


@pytest.mark.parametrize("layout", tiers(IN_BFLOAT16, long=[IN_BFLOAT16[0]]), ids=by_name)
def test_a_layout_in_bfloat16_takes_about_the_steps_of_one_process(tmp_path: Path, layout: dict[str, int]) -> None:
    """Stages of a pipeline send hidden states in bfloat16; rounding is that of another order of sums."""
    mixture = {"feed_forward": {"kind": "moe", "n_experts": 4}} if "expert" in layout else {}
    fields: dict[str, Any] = {"model": MODEL | mixture, "precision": "bf16"}
    alone, together = (history(tmp_path / str(n), parallel=each, **fields) for n, each in enumerate(({}, layout)))
    for one, several in zip(alone, together, strict=True):
        assert several.loss == pytest.approx(one.loss, rel=5e-3) and several.grad_norm == pytest.approx(one.grad_norm, rel=5e-2)


@pytest.mark.long
def test_a_run_continues_in_other_layouts(tmp_path: Path) -> None:
    """A run of one process ends as one that two shards, then three, then one process continue, but for rounding."""
    fields: dict[str, Any] = {**EXACT, "model": MODEL, "average": {"kind": "checkpoints", "n_checkpoints": 2}, "max_steps": 12}
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


REPORTED: list[dict[str, int]] = [{"data": 2}, {"shard": 2, "tensor": 2}, {"pipeline": 2, "context": 2}]


@pytest.mark.parametrize("layout", tiers(REPORTED, long=[REPORTED[1]]), ids=by_name)
def test_a_layout_validates_averages_selects_and_stops_early_as_one_process(tmp_path: Path, layout: dict[str, int]) -> None:
    """R-Drop too: two passes with different masks. The learning rate is so high that early stopping ends the run."""
    fields: dict[str, Any] = EXACT | {"r_drop": 0.5, "patience": 1, "validate_every": 2, "validate_bleu": 4, "checkpoint_every": 2}
    fields |= {"average": {"kind": "checkpoints", "n_checkpoints": 2}, "max_steps": 40, "model": MODEL}
    fields |= {"learning_rate": 0.3, "schedule": {"kind": "wsd", "warmup_steps": 1}}
    ends = [sit(tmp_path / str(n), **fields, parallel=each) for n, each in enumerate(({}, layout))]
    assert ends[0].reason == ends[1].reason == "patience" and ends[0].step == ends[1].step < 40
    alone, together = (traces(tmp_path / name)[1] for name in "01")
    assert_equal_records(alone, together)
    assert {"train", "validation"} <= {record["kind"] for record in alone}


@pytest.mark.parametrize("layout", tiers([{"expert": 2}, {"data": 2}, {"pipeline": 2}], long=[]), ids=by_name)
def test_the_balance_of_experts_is_reported_as_by_one_process(tmp_path: Path, layout: dict[str, int]) -> None:
    mixture = {"kind": "moe", "n_experts": 4, "load_balancing": {"kind": "aux-loss", "aux_loss_coef": 0.5}, "z_loss_coef": 0.1}
    for n, each in enumerate(({}, layout)):
        sit(tmp_path / str(n), **EXACT, model=MODEL | {"feed_forward": mixture}, parallel=each)
    alone, together = (traces(tmp_path / name)[1] for name in "01")
    assert all(record["max_expert_load"] > 0 for record in alone if record["kind"] == "train")
    assert_equal_records(alone, together)


def assert_equal_records(alone: list[dict[str, Any]], together: list[dict[str, Any]]) -> None:
    """Assert that two runs have the same records, but for rounding and for what a process measures of itself."""
    own = ("peak_memory", "needed_memory", "utilization")
    assert len(alone) == len(together)
    for one, several in zip(alone, together, strict=True):
        assert one.keys() - {*own} == several.keys() - {*own}
        for name in one.keys() - {*own}:
            if isinstance(one[name], float):
                assert several[name] == pytest.approx(one[name], rel=2e-3, abs=1e-6), name
            else:
                assert several[name] == one[name], name


@pytest.mark.long
def test_another_layout_follows_in_the_same_process(tmp_path: Path) -> None:
    """The tensor axes of both have equal ranks, and process groups of other names."""
    fields: dict[str, Any] = EXACT | {"max_steps": 2, "validate_every": 2, "checkpoint_every": 2, "model": MODEL}
    fields |= {"average": {"kind": "checkpoints", "n_checkpoints": 1}}
    for layout in ({"tensor": 2, "context": 2}, {"shard": 2, "tensor": 2}):
        sit(tmp_path / by_name(layout), **fields, parallel=layout)
