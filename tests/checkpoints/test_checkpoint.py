"""A checkpoint is whole or not there, and the newest whole one is found."""

import json
import math
import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoints.checking import one_line
from transom.checkpoints import checkpoint
from transom.checkpoints.checkpoint import Checkpoints, LatestCheckpoint
from transom.errors import CheckpointError, DiskError
from transom.files import atomic_io

STATE = {"position": 7, "best": {"loss": 0.1 + 0.2, "bleu": None}, "name": "Ñandú", "file": "\udce9.txt", "worst": math.inf, "empty": []}


def groups(step: int) -> checkpoint.TensorGroups:
    return {
        "model": {"w": torch.full((3, 2), float(step)), "half": torch.tensor([math.nan, -0.0]).bfloat16()},
        "optimizer": {"w.exp_avg": torch.rand(3, 2), "w.step": torch.tensor(float(step)), "none": torch.empty(0, 4)},
        "generators": {"cpu": torch.get_rng_state()},
        "empty": {},
    }


def saved(folder: Path, *steps: int) -> Checkpoints:
    checkpoints = Checkpoints(folder / "checkpoints")
    for step in steps:
        checkpoints.save(step, groups(step), STATE | {"step": step})
    return checkpoints


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    checkpoints, given_groups = Checkpoints(tmp_path / "run" / "checkpoints"), groups(5)
    checkpoints.save(5, given_groups, STATE)
    back, state, _ = checkpoints.load(5)
    assert state == STATE
    assert back.keys() == given_groups.keys()
    for group, tensors in given_groups.items():
        assert back[group].keys() == tensors.keys()
        for name, tensor in tensors.items():
            found = back[group][name]
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


@settings(max_examples=10)
@given(
    st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists))
)
def test_any_state_comes_back_exactly(tmp_path_factory, state):
    checkpoints = Checkpoints(tmp_path_factory.mktemp("run"))
    checkpoints.save(0, {}, state)
    assert checkpoints.load(0).state == state


def test_the_newest_is_found(tmp_path):
    assert Checkpoints(tmp_path / "none").latest() is None
    checkpoints = saved(tmp_path, 9, 10, 100)
    for name in ("step-0101", "step-1000.partial-00000000", "step-x", "steps-5", "step--1"):
        (checkpoints.folder / name).mkdir()
    (checkpoints.folder / "step-999").write_text("a file")
    assert checkpoints.steps() == [9, 10, 100]
    assert checkpoints.latest() == LatestCheckpoint(100, ())


def test_only_some_groups_are_read_on_wish(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)
    (checkpoints.path(1) / "optimizer.safetensors").write_bytes(b"damaged")
    assert checkpoints.load(1, ["model"])[0].keys() == {"model"}
    with pytest.raises(CheckpointError, match=r"expected the file teacher\.safetensors, which this checkpoint does not have"):
        checkpoints.load(1, ["teacher"])
    with pytest.raises(CheckpointError, match=r"no such checkpoint; the run has checkpoints of steps \[1\]"):
        checkpoints.load(2)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["gone", "cut", "flipped", "empty", "longer", "folder", "outside"])
def test_a_damaged_newest_one_is_passed_over_with_a_reason(tmp_path, name, harm):
    checkpoints = saved(tmp_path, 1, 2)
    path = checkpoints.path(2) / name
    data = bytearray(path.read_bytes())
    if harm in ("gone", "folder", "outside"):
        path.unlink()
    if harm == "folder":
        path.mkdir()
    elif harm == "outside":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    elif harm != "gone":
        data[len(data) // 2] ^= 4
        path.write_bytes({"cut": data[:-1], "flipped": data, "empty": b"", "longer": data + b"x"}[harm])
    newest = checkpoints.latest()
    assert newest is not None
    assert newest.step == 1
    (reason,) = newest.rejected
    assert "step-2" in reason
    assert "\n" not in reason
    with pytest.raises(CheckpointError, match="step-2"):
        checkpoints.load(2)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_no_flipped_bit_goes_unseen(tmp_path, name):
    checkpoints = saved(tmp_path, 1)
    path = checkpoints.path(1) / name
    whole, expected = path.read_bytes(), checkpoints.load(1, ["model"])
    for bit in range(0, 8 * len(whole), 8 * len(whole) // 100):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 7
        path.write_bytes(data)
        try:  # a bit of the manifest that is not about these files may flip unharmed
            back = checkpoints.load(1, ["model"])
            assert name == "manifest.json"
            assert torch.equal(back[0]["model"]["w"], expected[0]["model"]["w"])
        except CheckpointError as error:
            assert "\n" not in str(error)


def test_nothing_whole_is_an_error_that_says_why(tmp_path):
    checkpoints = saved(tmp_path, 1, 2)
    for step in (1, 2):
        (checkpoints.path(step) / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError) as error:
        checkpoints.latest()
    one_line(error, "no checkpoint to resume from", "step-2/model.safetensors: damaged, expected", "another --out")


def test_a_renamed_checkpoint_is_not_believed(tmp_path):
    checkpoints = saved(tmp_path, 1)
    checkpoints.path(1).rename(checkpoints.path(9))
    with pytest.raises(CheckpointError, match=r"expected the state of step 9, found the state of step 1"):
        checkpoints.load(9)


def hostile(checkpoints: Checkpoints, step: int, document: object) -> None:
    (checkpoints.path(step) / "manifest.json").write_text(json.dumps(document))


def test_file_names_in_a_manifest_never_lead_out(tmp_path):
    checkpoints = saved(tmp_path, 1)
    entry = {"bytes": 4, "sha256": "0" * 64}
    for name in ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", "model.pt", "MODEL.safetensors", "x\n.safetensors", "a" * 99]:
        hostile(checkpoints, 1, {"format_version": 1, "files": {name: entry}})
        with pytest.raises(CheckpointError, match=r"expected names of checkpoint files, found .*; no file was read"):
            checkpoints.load(1)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"format_version": "1", "files": {}},
        {"format_version": 1},
        {"format_version": 1, "files": []},
        {"format_version": 1, "files": {}},
        {"format_version": 1, "files": {"state.json": 5}},
        {"format_version": 1, "files": {"state.json": {"bytes": True, "sha256": "0"}}},
        {"format_version": 1, "files": {"state.json": {"bytes": 10**400, "sha256": "0"}}},
        {"format_version": 1, "files": {"state.json": {"bytes": 1, "sha256": 5}}},
    ],
    ids=str,
)
def test_a_hostile_manifest_is_refused(tmp_path, document):
    checkpoints = saved(tmp_path, 1)
    hostile(checkpoints, 1, document)
    with pytest.raises(CheckpointError) as error:
        checkpoints.load(1)
    one_line(error, "step-1")


def test_a_hostile_text_in_place_of_json_is_refused(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)
    path = checkpoints.path(1) / "manifest.json"
    for text in (b"[" * 10**6, b"\xff\xfe", b'{"format_version": 1' + b"0" * 5000 + b"}", b"\0" * 100):
        path.write_bytes(text)
        with pytest.raises(CheckpointError, match="damaged, expected JSON"):
            checkpoints.load(1)
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(CheckpointError, match=r"expected at most 67,108,864 bytes, found 1,099,511,627,776"):
        checkpoints.load(1)


def test_a_newer_format_says_so(tmp_path):
    checkpoints = saved(tmp_path, 1)
    hostile(checkpoints, 1, {"format_version": 5, "files": {}})
    with pytest.raises(CheckpointError, match="expected format_version 1 to 4, found 5; use the transom version that wrote this file"):
        checkpoints.load(1)


def test_pruning_keeps_the_newest_whole_and_some_weights(tmp_path):
    checkpoints = saved(tmp_path, 1, 2, 3, 4, 5)
    checkpoints.prune(keep_full=2, keep_weights=[2, 3])
    assert checkpoints.steps() == [2, 3, 4, 5]
    assert {path.name for path in checkpoints.path(3).iterdir()} == {"model.safetensors", "state.json", "manifest.json"}
    back, state, _ = checkpoints.load(3)
    assert torch.equal(back["model"]["w"], groups(3)["model"]["w"])
    assert back.keys() == {"model"}
    assert state["step"] == 3
    assert checkpoints.load(4)[0].keys() == groups(4).keys()
    checkpoints.prune(keep_full=2, keep_weights=[2, 3])
    assert checkpoints.steps() == [2, 3, 4, 5]
    checkpoints.prune(keep_full=1)
    assert checkpoints.steps() == [5]
    assert checkpoints.latest() == LatestCheckpoint(5, ())
    checkpoints.prune(keep_full=9)
    assert checkpoints.steps() == [5]


def test_weights_alone_are_nothing_to_go_on_from(tmp_path):
    checkpoints = saved(tmp_path, 1, 2, 3)
    checkpoints.prune(keep_full=1, keep_weights=[1, 2])
    (checkpoints.path(3) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-3/manifest\.json: expected a file, found none"):
        checkpoints.latest()
    atomic_io.remove(checkpoints.path(3))
    with pytest.raises(CheckpointError, match="the checkpoints of steps 1 to 2 hold weights only"):
        checkpoints.latest()


def test_a_damaged_old_one_does_not_stop_pruning(tmp_path):
    checkpoints = saved(tmp_path, 1, 2, 3)
    (checkpoints.path(2) / "manifest.json").write_bytes(b"x")
    checkpoints.prune(keep_full=1, keep_weights=[1, 2])
    assert checkpoints.steps() == [1, 3]


def test_saving_leaves_the_history_that_was_abandoned(tmp_path):
    """A run that went on from an older checkpoint must not find, or keep for the last one, a newer one of before."""
    checkpoints = saved(tmp_path, 1, 2, 3)
    (checkpoints.path(3) / "model.safetensors").write_bytes(b"x")
    newest = checkpoints.latest()
    assert newest is not None
    assert newest.step == 2
    saved(tmp_path, 2)
    assert checkpoints.steps() == [1, 2]
    checkpoints.prune(keep_full=1)
    assert checkpoints.latest() == LatestCheckpoint(2, ())


def test_saving_again_replaces(tmp_path):
    checkpoints = saved(tmp_path, 1, 1)
    assert checkpoints.load(1)[1]["step"] == 1
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-1"]


@pytest.mark.parametrize("limit", [0, 100, 200, 3000])
def test_a_disk_that_refuses_says_what_is_kept(tmp_path, limited_files, limit):
    checkpoints = saved(tmp_path, 1, 2)
    big = {"model": {"w": torch.zeros(10_000)}}
    with limited_files(limit), pytest.raises(DiskError) as error:
        checkpoints.save(3, big, {})
    one_line(error, "cannot write", "step-3", "the checkpoint of step 2 is kept", "free some space")
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-1", "step-2"]
    assert checkpoints.latest() == LatestCheckpoint(2, ())
    first = Checkpoints(tmp_path / "first")
    with limited_files(limit), pytest.raises(DiskError, match="there is no earlier checkpoint"):
        first.save(1, big, {})


def test_what_a_killed_process_left_goes_at_the_next_save(tmp_path):
    checkpoints = saved(tmp_path, 1)
    (checkpoints.folder / "step-2.partial-0123abcd").mkdir()
    (checkpoints.folder / "step-2.partial-0123abcd" / "model.safetensors").write_bytes(b"half")
    (checkpoints.folder / "notes.txt").write_text("mine")
    checkpoints.save(2, groups(2), {})
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["notes.txt", "step-1", "step-2"]


def test_a_new_checkpoint_is_on_the_disk_before_an_old_one_goes(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)
    events = []
    fsync, remove = os.fsync, atomic_io.remove
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("sync"), fsync(descriptor))[1])
    monkeypatch.setattr(checkpoint, "remove", lambda path: (events.append(f"remove {path.name}"), remove(path))[1])
    checkpoints.save(2, groups(2), {})
    checkpoints.prune(keep_full=1)
    assert events[-1] == "remove step-1"
    assert events[:-1] == ["sync"] * 8  # four groups, state and manifest, the folder of the files, the folder of the checkpoint


@pytest.mark.long
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.long), 13])
def test_a_run_survives_kill_9_at_every_line_of_saving_and_pruning(python, stride):
    points = python(
        f"stride = {stride}"
        + """
import shutil
from pathlib import Path
import torch
from kills import survive
from transom.checkpoints.checkpoint import Checkpoints
checkpoints, before = Checkpoints(Path("checkpoints")), Path("before")
def groups(step):
    return {"model": {"w": torch.full((9,), float(step))}, "optimizer": {"m": torch.full((9,), step + 0.5)}}
def check():
    newest = checkpoints.latest()
    assert newest.step in (3, 4) and not newest.rejected, newest
    loaded, state, _ = checkpoints.load(newest.step)
    assert loaded["model"]["w"][0] == newest.step and loaded["optimizer"]["m"][0] == newest.step + 0.5 and state == {"n": newest.step}
    for step in checkpoints.steps():
        assert checkpoints.load(step, ["model"])[0]["model"]["w"][0] == step
    checkpoints.save(5, groups(5), {"n": 5})
    checkpoints.prune(1, [4])
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == [f"step-{step}" for step in checkpoints.steps()]
    shutil.rmtree("checkpoints")
    shutil.copytree("before", "checkpoints")
for step in (1, 2, 3):
    checkpoints.save(step, groups(step), {"n": step})
shutil.copytree("checkpoints", "before")
def save_and_prune():
    checkpoints.save(4, groups(4), {"n": 4})
    checkpoints.prune(keep_full=2, keep_weights=[2])
survive(save_and_prune, check, stride)
"""
    )
    assert int(points) > 200


def test_step_names_are_the_documented_ones(tmp_path):
    checkpoints = saved(tmp_path, 500)
    assert checkpoints.path(500) == tmp_path / "checkpoints" / "step-500"
    document = json.loads((checkpoints.path(500) / "manifest.json").read_text())
    assert document["format_version"] == 3
    assert all(re.fullmatch("[0-9a-f]{64}", entry["sha256"]) for entry in document["files"].values())
