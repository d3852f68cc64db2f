"""A file written tensor by tensor is that of all tensors at once; an error leaves no file and no thread."""

import os
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from transom.checkpoints import tensor_stream
from transom.checkpoints.tensor_stream import write_tensors
from transom.checkpoints.tensors import Origin, TensorSpec, read_tensors
from transom.files.atomic_io import DiskError

TENSORS = {name: torch.arange(1000.0) + i for i, name in enumerate("abcde")}
SPECS = {name: TensorSpec.of(x) for name, x in TENSORS.items()}
ORIGIN = Origin("0" * 32, 3)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync after every few tensors."""
    monkeypatch.setattr(tensor_stream, "_SYNCED_BYTES", 5000)


def test_the_tensors_are_read_as_written(tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash in the file is checked when it is read; several syncs come before the last."""
    synced, fsync = list[int](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(number) or fsync(number))
    write_tensors(tmp_path / "x.safetensors", SPECS, TENSORS.__getitem__, ORIGIN)
    found = read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == TENSORS.keys() and all(torch.equal(found[name], x) for name, x in TENSORS.items())
    assert len(synced) >= 3  # during the writing, of the file at its end, and of the folder


@pytest.mark.parametrize("where", ["produce", "sync"])
def test_an_error_leaves_neither_file_nor_thread(where: str, tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def produce(name: str) -> Tensor:
        if where == "produce" and name == "d":
            raise DiskError("no more tensors")
        return TENSORS[name]

    def fsync(_: int) -> None:
        raise OSError(28, "no space left")

    if where == "sync":
        monkeypatch.setattr(os, "fsync", fsync)
    n_threads = threading.active_count()
    with pytest.raises(DiskError):
        write_tensors(tmp_path / "x.safetensors", SPECS, produce, ORIGIN)
    assert list(tmp_path.iterdir()) == [] and threading.active_count() == n_threads
