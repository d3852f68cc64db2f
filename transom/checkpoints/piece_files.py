"""Tensor files of checkpoints that several ranks write: each rank's file holds pieces, and any block of a whole tensor can be read."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from transom.checkpoints.pieces import Block, Piece, are_exact_cover
from transom.checkpoints.tensor_stream import safetensors_header
from transom.checkpoints.tensors import (
    METADATA_KEY,
    FileMetadata,
    Origin,
    PieceMetadata,
    TensorFile,
    TensorSpec,
    bytes_of,
    open_tensor_file,
)
from transom.errors import CheckpointError
from transom.files.atomic_io import Entry, write_new_stream


def write_pieces(path: Path, pieces: Mapping[str, Piece], origin: Origin | None) -> Entry:
    """Write a new safetensors file with the pieces of one rank, and with the place of each in its metadata; return size and hash.

    Args:
        path: the file.
        pieces: pieces by name of their tensor.
        origin: run and step.
    """
    names = sorted(pieces)
    places = {name: PieceMetadata(shape=list(pieces[name].shape), offset=list(pieces[name].offset)) for name in names}
    metadata = FileMetadata(pieces=places, **({} if origin is None else origin._asdict())).model_dump_json(exclude_none=True)
    tensors = {name: pieces[name].tensor.detach().cpu().contiguous() for name in names}
    header = safetensors_header({name: TensorSpec.of(x) for name, x in tensors.items()}, names, {METADATA_KEY: metadata})
    return write_new_stream(path, (header, *(bytes_of(tensors[name]) for name in names)))


class _StoredPiece(NamedTuple):
    """A piece in a file."""

    path: Path
    file: TensorFile
    block: Block


class SavedTensors:
    """The tensors of one group of a checkpoint, whole in one file or in pieces in the files of several ranks, of which blocks are read.

    Attributes:
        path: the file; of several, a pattern of their names, for messages.
        specs: dtype and shape of each whole tensor by name.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read the headers of the group's files.

        Raises:
            CheckpointError: a file is damaged, or the pieces of a tensor leave elements out, overlap or differ in dtype or shape.
        """
        first = paths[0]
        self.path = first if len(paths) == 1 else first.with_name(f"{first.name.partition('.')[0]}.*{first.suffix}")
        self.specs: dict[str, TensorSpec] = {}
        self._pieces: dict[str, list[_StoredPiece]] = defaultdict(list)
        for path in paths:
            file = open_tensor_file(path)
            for name, spec in file.specs.items():
                whole, block = _place(path, file, name, spec)
                if self.specs.setdefault(name, whole) != whole:
                    raise CheckpointError(f"{path}: expected a piece of tensor {name[:200]!r} as {self.specs[name]}, found one of {whole}")
                self._pieces[name].append(_StoredPiece(path, file, block))
        for name, spec in self.specs.items():
            if not are_exact_cover(spec.shape, [piece.block for piece in self._pieces[name]]):
                found = sum(piece.block.n_elements for piece in self._pieces[name])
                raise CheckpointError(
                    f"{paths[0].parent}: expected pieces with each of the {math.prod(spec.shape):,} elements of tensor {name[:200]!r} once,"
                    f" found {found:,} elements in {', '.join(piece.path.name for piece in self._pieces[name])}"
                )

    def read(self, name: str, block: Block | None = None) -> Tensor:
        """Read a block of a tensor into new memory; by default all of it.

        Args:
            name: name of the tensor.
            block: a block inside the tensor; no more memory than for its elements is allocated.
        """
        dtype, shape = self.specs[name]
        block = Block.whole(shape) if block is None else block
        assert block.is_inside(shape), f"expected a block inside {shape}, found {block}"
        result = torch.empty(block.size, dtype=dtype)
        for piece in self._pieces[name]:
            if (common := block.overlap(piece.block)) is not None:
                result[common.slices_in(block)] = piece.file.mapped(name)[common.slices_in(piece.block)]
        return result

    def read_all(self) -> dict[str, Tensor]:
        """Read all tensors as a whole, by name."""
        return {name: self.read(name) for name in self.specs}


def _place(path: Path, file: TensorFile, name: str, spec: TensorSpec) -> tuple[TensorSpec, Block]:
    """Return dtype and shape of the whole tensor, and the block of it that a file holds."""
    if file.metadata.pieces is None:
        return spec, Block.whole(spec.shape)
    place = file.metadata.pieces.get(file.stored[name])
    if place is None:
        raise CheckpointError(f"{path}: damaged, its metadata do not say which piece of tensor {name[:200]!r} it holds")
    block = Block(tuple(place.offset), spec.shape)
    if not block.is_inside(place.shape):
        raise CheckpointError(f"{path}: damaged, expected a piece of tensor {name[:200]!r} inside {place.shape}, found {block}"[:600])
    return TensorSpec(spec.dtype, tuple(place.shape)), block
