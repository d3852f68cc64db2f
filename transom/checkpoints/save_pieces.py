"""Save a checkpoint whose tensors several ranks hold in pieces."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from transom.checkpoints.checkpoint import STATE, SUFFIX, Checkpoints, state_bytes, write_group
from transom.checkpoints.peers import Peers
from transom.checkpoints.piece_files import write_pieces
from transom.checkpoints.pieces import Pieces
from transom.checkpoints.tensors import Origin
from transom.files.atomic_io import SHARDED_FORMAT_VERSION, Entries, convert_disk_errors, new_folder, write_new_file


def save_pieces(
    checkpoints: Checkpoints,
    step: int,
    whole: Mapping[str, Mapping[str, Tensor]],
    pieces: Pieces,
    state: Mapping[str, Any],
    peers: Peers,
    on_written: Callable[[], None] = lambda: None,
) -> None:
    """Save a checkpoint durably together with the other ranks, each of which must call this function.

    Each rank writes its pieces into files of its own. Once all of them are on the disk, rank 0 writes the state with their hashes and
    renames the folder, which makes it a checkpoint. As in ``Checkpoints.save``, checkpoints of later steps are then removed.

    Args:
        checkpoints: checkpoints of the run, in a folder that all ranks share.
        step: number of optimizer steps.
        whole: tensors by group and name of the groups that rank 0 writes as whole tensors; empty on other ranks.
        pieces: pieces by group and name that this rank writes, as ``assign_writers`` says.
        state: further state for resuming, as JSON values, of rank 0.
        peers: the ranks that hold the pieces.
        on_written: called when this rank has written its files, so that the tensors may change.

    Raises:
        DiskError: the checkpoint could not be written on some rank; earlier checkpoints are unchanged.
    """
    path = checkpoints.path(step)
    with ExitStack() as stack:
        entries: Entries = {}
        if peers.rank == 0:
            stack.enter_context(checkpoints.removing_later_than(step))

        def start() -> tuple[str, str | None]:
            nonlocal entries
            if peers.rank:
                return "", None
            run = checkpoints.prepare()
            folder, entries = stack.enter_context(new_folder(path, SHARDED_FORMAT_VERSION))
            return folder.name, run

        name, run = peers.on_all(start)[0]
        folder, origin = path.with_name(name), None if run is None else Origin(run, step)
        parts = peers.on_all(lambda: _write_part(folder, path, whole, pieces, peers.rank, origin))
        on_written()

        def finish() -> None:
            if peers.rank:
                return
            hashes: dict[str, Any] = {}
            for part, of_groups in parts:
                entries.update(part)
                for group, recorded in of_groups.items():
                    hashes[group] = recorded if isinstance(recorded, str) else hashes.get(group, {}) | recorded
            entries[STATE] = write_new_file(folder / STATE, state_bytes(SHARDED_FORMAT_VERSION, step, run, hashes, state))
            stack.close()  # renames the folder

        peers.on_all(finish)


def _write_part(
    folder: Path, path: Path, whole: Mapping[str, Mapping[str, Tensor]], pieces: Pieces, rank: int, origin: Origin | None
) -> tuple[Entries, dict[str, Any]]:
    """Write the files of one rank; return their entries in the manifest, and the hashes by group as in ``state.json``."""
    entries: Entries = {}
    hashes: dict[str, Any] = {}
    with convert_disk_errors(path):
        for group, tensors in whole.items():
            entries[group + SUFFIX], hashes[group] = write_group(folder / (group + SUFFIX), tensors, origin)
        for group, named in pieces.items():
            file = f"{group}.rank-{rank:04}{SUFFIX}"
            entries[file] = write_pieces(folder / file, named, origin)
            hashes[group] = {file: entries[file]["sha256"]}
    return entries, hashes
