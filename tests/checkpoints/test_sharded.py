"""Pieces of several ranks make up whole tensors, of which any block is read; what does not fit together is refused and named."""

import json
import math
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoints.checking import names, one_line
from transom.checkpoints.checkpoint import Checkpoints
from transom.checkpoints.piece_files import SavedTensors, write_pieces
from transom.checkpoints.pieces import Block, Piece, Pieces, are_exact_cover, assign_writers, describe
from transom.checkpoints.save_pieces import save_pieces
from transom.checkpoints.tensors import read_tensors
from transom.errors import CheckpointError
from transom.files.atomic_io import json_bytes

WHOLE = torch.arange(35.0).view(7, 5)
PARTS = [Block((0, 0), (4, 3)), Block((0, 3), (4, 2)), Block((4, 0), (3, 5))]


def piece(x: torch.Tensor, block: Block) -> Piece:
    return Piece(x[block.slices_in(Block.whole(x.shape))], tuple(x.shape), block.offset)


class BothRanks:
    """Ranks 0 and 1 in one process: rank 1's part is written with rank 0's, in the same order as between processes."""

    rank, size = 0, 2

    def __init__(self, checkpoints: Checkpoints, step: int, pieces: Pieces) -> None:
        self.checkpoints, self.step, self.pieces, self.exchanged = checkpoints, step, pieces, list[Any]()

    def on_all(self, function: Callable[[], Any]) -> list[Any]:
        results = [function(), None]
        if len(self.exchanged) == 1:
            (name, _), part = self.exchanged[0], []
            second = Second([(name, None), lambda: part.append(results[0])])
            save_pieces(self.checkpoints, self.step, {}, self.pieces, {}, second)
            results[1] = second.part
        self.exchanged.append(results[0])
        return results


class Second:
    """Rank 1, which learns the folder's name from rank 0 and keeps what it would send."""

    rank, size, part = 1, 2, None

    def __init__(self, received: list[Any]) -> None:
        self.received = received

    def on_all(self, function: Callable[[], Any]) -> list[Any]:
        result = function()
        self.part = self.part or (result if isinstance(result, tuple) and isinstance(result[0], dict) else None)
        return [self.received[0], result]


def tensors(step: int) -> dict[str, torch.Tensor]:
    return {
        "w": WHOLE + step,
        "step": torch.tensor(float(step)),
        "half": torch.tensor([math.nan, -0.0]).bfloat16(),
        "none": torch.empty(0, 4),
    }


def save(folder: Path, *steps: int) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for step in steps:
        xs = tensors(step)
        first = {"model": {"w": piece(xs["w"], PARTS[0]), "step": Piece.whole(xs["step"])}, "optimizer": {"w.m": piece(xs["w"], PARTS[2])}}
        second: Pieces = {
            "model": {"w": Piece(xs["w"][:4, 3:], (4, 5), (0, 3)), "half": Piece.whole(xs["half"]), "none": Piece.whole(xs["none"])},
            "optimizer": {"w.m": Piece(xs["w"][:4], (7, 5), (0, 0))},
        }
        first["model"]["w"] = Piece(xs["w"][:4, :3], (4, 5), (0, 0))
        save_pieces(
            checkpoints, step, {"generators": {"cpu": torch.get_rng_state()}}, first, {"n": step}, BothRanks(checkpoints, step, second)
        )
    return checkpoints


def test_pieces_come_back_whole_bit_for_bit(tmp_path: Path) -> None:
    groups, state, version = save(tmp_path / "run", 5).load(5)
    expected = tensors(5)
    assert (state, version) == ({"n": 5}, 4)
    assert groups["model"].keys() == expected.keys() and groups.keys() == {"model", "optimizer", "generators"}
    expected["w"], moments = expected["w"][:4], expected["w"]
    for name, x in (*expected.items(), ("w.m", moments)):
        found = groups["optimizer" if name == "w.m" else "model"][name]
        assert (found.dtype, found.shape) == (x.dtype, x.shape)
        assert torch.equal(found.reshape(-1).view(torch.uint8), x.reshape(-1).view(torch.uint8))


@settings(max_examples=15)
@given(st.data())
def test_any_block_of_any_division_is_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), max_size=3))
    whole = torch.arange(math.prod(shape)).view(shape)
    cuts = [[0, *sorted(data.draw(st.sets(st.integers(1, n), max_size=3)) - {n}), n] for n in shape]
    blocks = [Block((), ())]
    for cut in cuts:
        blocks = [Block((*b.offset, i), (*b.size, j - i)) for b in blocks for i, j in pairwise(cut)]
    folder = tmp_path_factory.mktemp("pieces")
    for rank, block in enumerate(blocks):
        write_pieces(folder / f"model.rank-{rank:04}.safetensors", {"w": piece(whole, block)}, None)
    assert are_exact_cover(shape, blocks)
    assert not are_exact_cover(shape, blocks[1:]) and not are_exact_cover(shape, [*blocks, blocks[-1]])
    saved = SavedTensors(sorted(folder.iterdir()))
    starts = [data.draw(st.integers(0, n)) for n in shape]
    block = Block(tuple(starts), tuple(data.draw(st.integers(0, n - start)) for n, start in zip(shape, starts, strict=True)))
    assert torch.equal(saved.read("w", block), whole[block.slices_in(Block.whole(shape))])


def test_a_piece_of_several_ranks_is_written_by_the_first() -> None:
    shared, own = piece(WHOLE, PARTS[2]), Piece.whole(torch.ones(3))
    ranks: list[Pieces] = [
        {"model": {"w": piece(WHOLE, PARTS[0])}, "generators": {"cpu": own}},
        {"model": {"w": piece(WHOLE, PARTS[1]), "b": own}},
        {"model": {"w": shared, "b": own}},
        {"model": {"w": shared}, "generators": {}},
    ]
    whole, written = assign_writers([json.loads(json.dumps(describe(each))) for each in ranks])
    assert whole == {"generators"}
    assert written == [{"model": ["w"]}, {"model": ["w", "b"]}, {"model": ["w"]}, {}]
    with pytest.raises(AssertionError, match="model, w: expected pieces of"):
        assign_writers([describe(each) for each in ranks[1:]])


@pytest.mark.parametrize("harm", ["gone", "cut", "flipped", "outside"])
@pytest.mark.parametrize(
    "name", [*(f"{group}.rank-000{rank}.safetensors" for group in ("model", "optimizer") for rank in (0, 1)), "state.json"]
)
def test_a_damaged_piece_names_its_file_and_the_checkpoint_before_is_used(tmp_path: Path, name: str, harm: str) -> None:
    checkpoints = save(tmp_path / "run", 1, 2)
    path = checkpoints.path(2) / name
    data = bytearray(path.read_bytes())
    path.unlink()
    if harm == "outside":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    elif harm != "gone":
        data[len(data) // 2] ^= 4
        path.write_bytes(data[:-1] if harm == "cut" else data)
    newest = checkpoints.latest()
    assert newest is not None and newest.step == 1
    assert newest.rejected[0].startswith(f"{path}: ") and "\n" not in newest.rejected[0]
    with pytest.raises(CheckpointError, match=name):
        checkpoints.load(2)


def test_pieces_of_another_step_are_refused(tmp_path: Path) -> None:
    """Also under a manifest that was written for them."""
    checkpoints = save(tmp_path, 1, 2)
    name = "model.rank-0001.safetensors"
    shutil.copy(checkpoints.path(1) / name, checkpoints.path(2))
    manifests = [json.loads((checkpoints.path(step) / "manifest.json").read_bytes()) for step in (1, 2)]
    manifests[1]["files"][name] = manifests[0]["files"][name]
    (checkpoints.path(2) / "manifest.json").write_bytes(json_bytes(manifests[1]))
    with pytest.raises(CheckpointError, match=f"{name}: expected tensors with the hash in state.json, found tensors with another hash"):
        checkpoints.load(2)
    del manifests[1]["files"][name]
    (checkpoints.path(2) / "manifest.json").write_bytes(json_bytes(manifests[1]))
    with pytest.raises(CheckpointError, match=f"damaged, its manifest does not list {name}"):
        checkpoints.load(2)


HOSTILE: dict[str, list[tuple[torch.Tensor, tuple[int, ...], tuple[int, ...]]]] = {
    "a gap": [(torch.ones(2, 3), (5, 3), (0, 0)), (torch.ones(2, 3), (5, 3), (3, 0))],
    "an overlap": [(torch.ones(2, 3), (4, 3), (0, 0)), (torch.ones(2, 3), (4, 3), (1, 0))],
    "a huge shape": [(torch.ones(2, 3), (10**15, 10**15), (0, 0))],
    "beyond the end": [(torch.ones(2, 3), (2, 3), (1, 0))],
    "before the start": [(torch.ones(2, 3), (2, 3), (-1, 0))],
    "another number of axes": [(torch.ones(2, 3), (6,), (0,))],
    "another shape": [(torch.ones(2, 3), (4, 3), (0, 0)), (torch.ones(2, 3), (5, 3), (2, 0))],
    "another dtype": [(torch.ones(2, 3), (4, 3), (0, 0)), (torch.ones(2, 3).long(), (4, 3), (2, 0))],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_pieces_that_make_up_no_tensor_are_refused_before_memory_is_allocated(tmp_path: Path, case: str) -> None:
    paths = [tmp_path / f"model.rank-{rank:04}.safetensors" for rank in range(len(HOSTILE[case]))]
    for path, (x, shape, offset) in zip(paths, HOSTILE[case], strict=True):
        write_pieces(path, {"w": Piece(x, shape, offset)}, None)
    with pytest.raises(CheckpointError) as error:
        SavedTensors(paths)
    one_line(error, "tensor 'w'", "expected", "found", str(tmp_path))


def test_one_file_of_pieces_is_no_file_of_weights(tmp_path: Path) -> None:
    write_pieces(tmp_path / "w.safetensors", {"w": piece(WHOLE, PARTS[0])}, None)
    with pytest.raises(CheckpointError, match="expected whole tensors, found the pieces of one rank"):
        read_tensors(tmp_path / "w.safetensors")


def test_pruning_keeps_the_weights_of_all_ranks(tmp_path: Path) -> None:
    checkpoints = save(tmp_path, 1, 2, 3)
    checkpoints.prune(keep_full=1, keep_weights=[1])
    assert checkpoints.steps() == [1, 3]
    assert names(checkpoints.path(1)) == {"model.rank-0000.safetensors", "model.rank-0001.safetensors", "state.json", "manifest.json"}
    assert torch.equal(checkpoints.load(1).groups["model"]["w"], tensors(1)["w"][:4])
    assert json.loads((checkpoints.path(1) / "manifest.json").read_bytes())["format_version"] == 4
    (checkpoints.path(3) / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-3/state\.json: expected a file, found none"):
        checkpoints.latest()


def test_all_is_on_the_disk_before_the_checkpoint_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = list[str]()
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("sync"), fsync(descriptor))[1])
    monkeypatch.setattr(Path, "rename", lambda path, to: (events.append(f"rename {to.name}"), rename(path, to))[1])
    (tmp_path / "run").mkdir()
    save(tmp_path / "run", 1)
    # generators, four files of pieces, state, manifest and the folder's names; then the name of the folder
    assert events == [*["sync"] * 8, "rename step-1", "sync"]


@pytest.mark.long
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.soak), 41])
def test_a_run_survives_kill_9_at_every_line_of_saving_pieces(python: Callable[[str], str], stride: int) -> None:
    points = python(
        f"stride = {stride}"
        + """
import shutil
from pathlib import Path
import torch
from kills import survive
from tests.checkpoints.test_sharded import save, tensors
def check():
    newest = checkpoints.latest()
    assert newest.step in (2, 3) and not newest.rejected, newest
    for step in checkpoints.steps():
        assert torch.equal(checkpoints.load(step, ["model"]).groups["model"]["w"], tensors(step)["w"][:4])
    checkpoints.load(newest.step)
    save(Path("run"), 4)
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == [f"step-{step}" for step in checkpoints.steps()]
    shutil.rmtree("run")
    shutil.copytree("before", "run")
checkpoints = save(Path("run"), 1, 2)
shutil.copytree("run", "before")
def save_and_prune():
    save(Path("run"), 3).prune(keep_full=2, keep_weights=[1])
survive(save_and_prune, check, stride)
"""
    )
    assert int(points) > 300
