"""Write a safetensors file tensor by tensor, so that only two tensors at a time are in memory: one is made while the last is written."""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from transom.checkpoints.tensors import METADATA_KEY, FileMetadata, Origin, TensorSpec, bytes_of, dtype_name, update_hash
from transom.files.atomic_io import write_stream

_ALIGNMENT = 8
_SYNCED_BYTES = 512 << 20
"""Least number of bytes that are synced at once.

An import of 2 GB from and to the same disk took 3.3 s, with 64 MiB 4.8 s, and with a single sync at the end 4.0 s.
"""

_NO_HASH = "0" * 64

_Tensors = Generator[tuple[str, Tensor], None, None]
"""Names and tensors; closing it ends its threads."""


def write_tensors(path: Path, specs: Mapping[str, TensorSpec], produce: Callable[[str], Tensor], origin: Origin) -> None:
    """Write a tensor file of transom, with the hash of its tensors.

    Args:
        path: the file.
        specs: dtype and shape of each tensor by name.
        produce: returns the tensor with a name, of the dtype and shape in ``specs``. Called once per tensor, in the order of
            the names, in another thread.
        origin: run and step.

    Raises:
        DiskError: the file could not be written.
    """
    metadata = FileMetadata(sha256=_NO_HASH, **origin._asdict()).model_dump_json(exclude_none=True)
    names = sorted(specs)

    def write(file: BinaryIO) -> None:
        header = safetensors_header(specs, names, {METADATA_KEY: metadata})
        file.write(header)
        total = hashlib.sha256()
        with ThreadPoolExecutor(1) as writer, closing(_written_through(file, _produced(specs, names, produce))) as tensors:
            for name, tensor in tensors:
                written = writer.submit(file.write, bytes_of(tensor))
                update_hash(total, name, tensor)  # which releases the interpreter, as the write does
                written.result()
        # The hash of the tensors, known only now, replaces the zeros of the same length.
        file.seek(header.index(_NO_HASH.encode()))
        file.write(total.hexdigest().encode())

    write_stream(path, write)


def write_foreign_tensors(path: Path, specs: Mapping[str, TensorSpec], produce: Callable[[str], Tensor]) -> None:
    """Write a safetensors file for the transformers library; arguments and errors as for ``write_tensors``."""
    names = sorted(specs)

    def write(file: BinaryIO) -> None:
        file.write(safetensors_header(specs, names, {"format": "pt"}))
        with closing(_written_through(file, _produced(specs, names, produce))) as tensors:
            for _, tensor in tensors:
                file.write(bytes_of(tensor))

    write_stream(path, write)


def _produced(specs: Mapping[str, TensorSpec], names: list[str], produce: Callable[[str], Tensor]) -> _Tensors:
    """Yield the name of each tensor and the tensor; a thread makes the next one meanwhile."""

    def make(name: str) -> Tensor:
        tensor = produce(name).detach().contiguous()
        assert TensorSpec.of(tensor) == specs[name], name
        return tensor

    with ThreadPoolExecutor(1) as maker:
        following = maker.submit(make, names[0]) if names else None
        for name, after in zip(names, [*names[1:], None], strict=True):
            assert following is not None
            tensor = following.result()
            following = None if after is None else maker.submit(make, after)
            yield name, tensor


def _written_through(file: BinaryIO, tensors: _Tensors) -> _Tensors:
    """Yield the tensors; the caller writes each one before it asks for the next. Meanwhile a thread syncs what is written (fsync(2)).

    Without it, the system would write most of a large file to the disk only when the file is complete.
    """
    with closing(tensors), ThreadPoolExecutor(1) as syncer:
        synced: Future[None] | None = None
        n_unsynced = 0
        for name, tensor in tensors:
            yield name, tensor
            n_unsynced += tensor.nbytes
            if n_unsynced >= _SYNCED_BYTES and (synced is None or synced.done()):
                if synced is not None:
                    synced.result()
                synced, n_unsynced = syncer.submit(os.fsync, file.fileno()), 0
        if synced is not None:
            synced.result()


def safetensors_header(specs: Mapping[str, TensorSpec], names: list[str], metadata: Mapping[str, str]) -> bytes:
    """Return the length and the JSON of a header for tensors in the order ``names``, padded with spaces as the format recommends."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        end = start + specs[name].n_bytes
        header[name] = {"dtype": dtype_name(specs[name].dtype), "shape": list(specs[name].shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
