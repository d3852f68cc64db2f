"""A checkpoint that ranks write in pieces is read by any other number of ranks, in any layout, bit for bit."""

import os
import resource
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.checkpoints.checking import names
from transom.checkpoints import save_pieces
from transom.checkpoints.checkpoint import Checkpoints
from transom.checkpoints.pieces import Piece
from transom.errors import CheckpointError, DiskError
from transom.parallel import shared_checkpoints
from transom.parallel.local_pieces import local_pieces
from transom.parallel.processes.collectives import ProcessLostError, World
from transom.parallel.processes.local_ranks import RanksFailedError, run_on_ranks
from transom.parallel.shared_checkpoints import SharedCheckpoints
from transom.training import resume
from transom.training.train_state import (
    CheckpointState,
    TrainState,
    load_optimizer,
    load_trainable,
    optimizer_tensors,
    trainable_tensors,
)

RUN = "0123456789abcdef" * 2
STATE = {"position": 7, "loss": 0.1}


class Model(nn.Module):
    """Odd widths, a norm, a buffer and a parameter that never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(7, 11), nn.Linear(11, 5, bias=False), nn.LayerNorm(5)
        self.unused = nn.Parameter(torch.ones(3, 2))
        self.register_buffer("count", torch.tensor(3))


def built(shard: int = 1, tensor: int = 1) -> tuple[Model, torch.optim.Optimizer]:
    """Build the model and its optimizer in a layout, from the same seed on all ranks."""
    torch.manual_seed(3)
    model = Model()
    if shard * tensor > 1:
        mesh = init_device_mesh("cpu", (shard, tensor), mesh_dim_names=("shard", "tensor"))
        if tensor > 1:
            parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if shard > 1:
            fully_shard(model, mesh=mesh["shard"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for name, x in model.named_parameters():
        x.grad = None if name == "unused" else x.detach() * 3 + 1
    optimizer.step()


def groups_of(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> dict[str, dict[str, Piece]]:
    return {
        "model": local_pieces(trainable_tensors(model)),
        "optimizer": local_pieces(optimizer_tensors(model, optimizer)),
        "generators": {} if rank else local_pieces({"cpu": torch.get_rng_state()}),
    }


def checkpoints_of(folder: Path) -> Checkpoints:
    return Checkpoints(folder / "checkpoints", lambda: RUN)


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def save_in(rank: int, folder: Path, shard: int, tensor: int, step: int = 1, n_steps: int = 1) -> dict[str, dict[str, Tensor]] | None:
    """Train and save in a layout; return the whole tensors."""
    model, optimizer = built(shard, tensor)
    for _ in range(n_steps):
        take_step(model, optimizer)
    with SharedCheckpoints(checkpoints_of(folder), World(rank, shard * tensor)) as shared:
        shared.save(step, groups_of(model, optimizer, rank), STATE)
    gathered = {group: {name: whole(x.detach()) for name, x in xs.items()} for group, xs in all_tensors(model, optimizer).items()}
    return gathered if rank == 0 else None


def all_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    return {"model": trainable_tensors(model), "optimizer": optimizer_tensors(model, optimizer)}


def load_in(rank: int, folder: Path, shard: int, tensor: int) -> dict[str, dict[str, Tensor]] | None:
    """Load the latest checkpoint into other weights and a new optimizer in a layout, as a resumed run does; return the whole tensors."""
    model, optimizer = built(shard, tensor)
    with torch.no_grad():
        for x in model.parameters():
            x.zero_()
    with SharedCheckpoints(checkpoints_of(folder), World(rank, shard * tensor)) as shared:
        newest = shared.latest(lambda step: None)
    assert newest is not None
    groups, state, _ = shared.checkpoints.open(newest.step)
    assert state == STATE
    load_trainable(model, resume._read_weights(groups["model"], trainable_tensors(model), ()))
    progress = CheckpointState(progress=TrainState(step=newest.step), scaler=None, snapshots=[])
    moments = groups["optimizer"]
    load_optimizer(model, optimizer, resume._read_optimizer(moments, {x: x for x in moments.specs}, progress, model, optimizer, ()))
    gathered = {group: {name: whole(x.detach()) for name, x in xs.items()} for group, xs in all_tensors(model, optimizer).items()}
    return gathered if rank == 0 else None


def assert_same(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for group in expected:
        assert found[group].keys() == expected[group].keys()
        for name, x in expected[group].items():
            assert torch.equal(found[group][name], x), (group, name)


CHAIN = [(8, 1), (3, 1), (1, 1), (1, 2), (2, 2), (8, 1)]
"""(shard, tensor), each of which reads what the one before wrote."""


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ((3, 1), (1, 2)),
        ((2, 2), (3, 1)),
        *(pytest.param(a, b, marks=pytest.mark.long) for a, b in pairwise(CHAIN)),
    ],
)
def test_any_layout_reads_what_another_wrote(tmp_path: Path, saved: tuple[int, int], loaded: tuple[int, int]) -> None:
    expected = run_on_ranks(saved[0] * saved[1], save_in, tmp_path, *saved)[0]
    assert_same(run_on_ranks(loaded[0] * loaded[1], load_in, tmp_path, *loaded)[0], expected)
    groups = checkpoints_of(tmp_path).load(1).groups
    assert groups.pop("generators").keys() == {"cpu"}
    assert_same(groups, expected)


def test_what_no_rank_splits_has_the_format_of_one_process(tmp_path: Path) -> None:
    run_on_ranks(2, save_replicated, tmp_path / "two")
    run_on_ranks(1, save_replicated, tmp_path / "one")
    one, two = checkpoints_of(tmp_path / "one"), checkpoints_of(tmp_path / "two")
    assert names(one.path(1)) == {"model.safetensors", "optimizer.safetensors", "generators.safetensors", "state.json", "manifest.json"}
    assert all((two.path(1) / name).read_bytes() == (one.path(1) / name).read_bytes() for name in names(one.path(1)))


def save_replicated(rank: int, folder: Path) -> None:
    model, optimizer = built()
    take_step(model, optimizer)
    with SharedCheckpoints(checkpoints_of(folder), World(rank, distributed.get_world_size())) as shared:
        shared.save(1, groups_of(model, optimizer, rank), STATE)


def test_each_piece_is_written_once_and_files_name_their_rank(tmp_path: Path) -> None:
    run_on_ranks(4, save_in, tmp_path, 2, 2)
    folder = checkpoints_of(tmp_path).path(1)
    assert names(folder) == {
        *(f"{group}.rank-000{rank}.safetensors" for group in ("model", "optimizer") for rank in range(4)),
        "generators.safetensors",
        "state.json",
        "manifest.json",
    }


def save_and_change(rank: int, folder: Path, free: int) -> None:
    """Change the tensors as soon as ``save`` returns, while the thread is held back."""
    model, optimizer = built(shard=2)
    take_step(model, optimizer)
    hold, write = threading.Event(), save_pieces.write_pieces

    def held(*arguments: Any) -> Any:
        assert not free or hold.wait(60)
        return write(*arguments)

    save_pieces.write_pieces = held
    shared_checkpoints.free_memory = lambda n_processes: free
    saved = list[int]()
    with SharedCheckpoints(checkpoints_of(folder), World(rank, 2), saved.append) as shared:
        shared.save(1, groups_of(model, optimizer, rank), STATE, lambda: saved.append(-1))
        take_step(model, optimizer)
        with torch.no_grad():
            for x in [*trainable_tensors(model).values(), *optimizer_tensors(model, optimizer).values()]:
                x.zero_()
        shared.check()
        assert saved == [] or not free
        hold.set()
        shared.wait()
        shared.check()
    assert saved == ([] if rank else [-1, 1])


@pytest.mark.parametrize("free", [2**40, 0], ids=["copied", "written at once"])
def test_weights_that_change_after_the_call_do_not_reach_the_file(tmp_path: Path, free: int) -> None:
    expected = run_on_ranks(2, save_in, tmp_path / "expected", 2, 1)[0]
    run_on_ranks(2, save_and_change, tmp_path / "changed", free)
    groups = checkpoints_of(tmp_path / "changed").load(1).groups
    del groups["generators"]
    assert_same(groups, expected)


def save_beyond_a_limit(rank: int, folder: Path, full: int) -> str:
    """Save with a limit of the file size on one rank."""
    model, optimizer = built(shard=2)
    take_step(model, optimizer)
    with SharedCheckpoints(checkpoints_of(folder), World(rank, 2)) as shared:
        shared.save(1, groups_of(model, optimizer, rank), STATE)
        shared.wait()
        if rank == full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
        shared.save(2, groups_of(model, optimizer, rank), STATE)
        with pytest.raises(DiskError) as error:
            shared.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return str(error.value)


@pytest.mark.parametrize("full", [0, 1])
def test_a_full_disk_of_any_rank_is_the_error_of_one_process(tmp_path: Path, full: int) -> None:
    for rank, message in enumerate(run_on_ranks(2, save_beyond_a_limit, tmp_path, full)):
        assert message.startswith(f"cannot write {checkpoints_of(tmp_path).path(2)}: the file would exceed the maximum file size"), message
        assert rank or message.endswith("existing files are unchanged; the checkpoint of step 1 is kept")
    assert names(checkpoints_of(tmp_path).folder) == {"step-1"}


PLACES = ["before its files", "after a file", "after its files", "before the state", "before the rename"]


def save_and_die(rank: int, folder: Path, dying: int, place: str) -> None:
    """Save a second checkpoint, in which one rank exits at a place in the writing; the other must notice."""
    model, optimizer = built(shard=2)
    shared = SharedCheckpoints(checkpoints_of(folder), World(rank, 2))
    take_step(model, optimizer)
    shared.save(1, groups_of(model, optimizer, rank), STATE)
    shared.wait()
    if rank == dying:
        die_at(place)
    shared.save(2, groups_of(model, optimizer, rank), STATE)
    with pytest.raises(ProcessLostError, match="expected 2 running processes, found that one has exited"):
        shared.wait()
    os._exit(0)


def die_at(place: str) -> None:
    """Exit the process, as a kill does, at a place in the writing."""
    n_calls, write, part, state = 0, save_pieces.write_pieces, save_pieces._write_part, save_pieces.state_bytes

    def dying_write(*arguments: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if (n_calls == 1 and place == "before its files") or (n_calls == 2 and place == "after a file"):
            os._exit(0)
        return write(*arguments)

    def dying_part(*arguments: Any) -> Any:
        result = part(*arguments)
        if place == "after its files":
            os._exit(0)
        return result

    def dying_state(*arguments: Any) -> Any:
        if place == "before the state":
            os._exit(0)
        return state(*arguments)

    save_pieces.write_pieces, save_pieces._write_part, save_pieces.state_bytes = dying_write, dying_part, dying_state
    if place == "before the rename":
        Path.rename = lambda *_: os._exit(0)  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(
    ("dying", "place"),
    [
        (0, "before the rename"),
        (1, "after a file"),
        *(pytest.param(0, place, marks=pytest.mark.long) for place in PLACES[:-1]),
        *(pytest.param(1, place, marks=pytest.mark.long) for place in (PLACES[0], PLACES[2])),
    ],
)
def test_a_rank_killed_while_writing_leaves_the_checkpoint_before(tmp_path: Path, dying: int, place: str) -> None:
    with pytest.raises(RanksFailedError, match=r"rank [01]: exited with code 0\nrank [01]: exited with code 0"):
        run_on_ranks(2, save_and_die, tmp_path, dying, place)
    checkpoints = checkpoints_of(tmp_path)
    newest = checkpoints.latest()
    assert newest is not None and (newest.step, newest.rejected) == (1, ())
    run_on_ranks(3, save_in, tmp_path, 3, 1, 2)
    assert names(checkpoints.folder) == {"step-1", "step-2"}


def resume_together(rank: int, folder: Path, refusing: int) -> tuple[int, tuple[str, ...]]:
    """Find the latest checkpoint; one rank refuses that of step 2."""

    def accept(step: int) -> None:
        if rank == refusing and step == 2:
            raise CheckpointError(f"{folder.name}: expected another tensor")

    with SharedCheckpoints(checkpoints_of(folder), World(rank, 2)) as shared:
        newest = shared.latest(accept)
    assert newest is not None
    return newest.step, newest.rejected


def test_ranks_resume_from_the_same_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2):
        run_on_ranks(2, save_in, tmp_path, 2, 1, step)
    assert run_on_ranks(2, resume_together, tmp_path, 2) == [(2, ())] * 2
    assert run_on_ranks(2, resume_together, tmp_path, 1) == [(1, (f"{tmp_path.name}: expected another tensor",))] * 2
    file = checkpoints_of(tmp_path).path(2) / "optimizer.rank-0001.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(data)
    reason = f"{file}: damaged, its SHA-256 differs from the one in manifest.json"
    assert run_on_ranks(2, resume_together, tmp_path, 2) == [(1, (reason,))] * 2


def save_stages(rank: int, folder: Path) -> None:
    """Save and load as pipeline stages: each rank holds tensors of its own names, and both hold one."""
    mine = {f"blocks.{rank}.weight": torch.full((2, 3), float(rank)), "embedding.weight": torch.ones(4)}
    with SharedCheckpoints(checkpoints_of(folder), World(rank, 2)) as shared:
        shared.save(1, {"model": local_pieces(mine)}, STATE)
        elsewhere = shared.names_elsewhere(mine)
    assert elsewhere == {f"blocks.{1 - rank}.weight"}
    saved = shared.checkpoints.open(1).groups["model"]
    assert_same({"model": resume._read_weights(saved, mine, elsewhere)}, {"model": mine})
    with pytest.raises(CheckpointError, match=rf"expected the 2 tensors of this run, found 'blocks.{1 - rank}.weight' unexpected"):
        resume._read_weights(saved, mine, ())


def test_stages_hold_names_of_their_own(tmp_path: Path) -> None:
    run_on_ranks(2, save_stages, tmp_path)
    model = checkpoints_of(tmp_path).load(1).groups["model"]
    assert model.keys() == {"blocks.0.weight", "blocks.1.weight", "embedding.weight"}
    assert torch.equal(model["blocks.1.weight"], torch.ones(2, 3))


def fail_to_write(rank: int, folder: Path, function: Callable[[], Any]) -> str:
    shared = SharedCheckpoints(checkpoints_of(folder), World(rank, 2))
    with pytest.raises((ValueError, ZeroDivisionError)) as error:
        shared.peers.on_all(function if rank else str)
    return f"{type(error.value).__name__} {error.value}"


def divide() -> float:
    return 1 / 0


def test_an_internal_error_of_one_rank_reaches_all(tmp_path: Path) -> None:
    assert run_on_ranks(2, fail_to_write, tmp_path, divide) == [
        "TransomError expected rank 1 to take part in the checkpoint, found ZeroDivisionError: division by zero",
        "ZeroDivisionError division by zero",
    ]
