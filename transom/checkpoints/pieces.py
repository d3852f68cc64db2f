"""Pieces of tensors that several processes share: which block of the whole tensor each process holds, and which process writes it."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Self

from torch import Tensor

from transom.checkpoints.tensors import TensorSpec, dtype_name


class Block(NamedTuple):
    """Block of consecutive elements of a tensor: its first index and its number of elements along each axis."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Self:
        """Return the block of all elements of a tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def n_elements(self) -> int:
        return math.prod(self.size)

    def is_inside(self, shape: Sequence[int]) -> bool:
        """Return whether a tensor of this shape has all elements of the block."""
        bounds = zip(self.offset, self.size, shape, strict=False)
        return len(self.offset) == len(self.size) == len(shape) and all(o >= 0 and n >= 0 and o + n <= end for o, n, end in bounds)

    def overlap(self, other: "Block") -> "Block | None":
        """Return the block of elements that both have; None if there are none."""
        starts = tuple(map(max, self.offset, other.offset))
        ends = (min(a + n, b + m) for a, n, b, m in zip(self.offset, self.size, other.offset, other.size, strict=True))
        size = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Block(starts, size) if all(n > 0 for n in size) else None

    def slices_in(self, outer: "Block") -> tuple[slice, ...]:
        """Return the index of this block in a tensor that holds the block ``outer``."""
        return tuple(slice(o - first, o - first + n) for o, n, first in zip(self.offset, self.size, outer.offset, strict=True))


class Piece(NamedTuple):
    """The block of a tensor that a process holds.

    Attributes:
        tensor: the elements of the block.
        shape: shape of the whole tensor.
        offset: index of the block's first element in the whole tensor.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    @classmethod
    def whole(cls, tensor: Tensor) -> Self:
        """Return a tensor that one process holds as a whole."""
        return cls(tensor, tuple(tensor.shape), (0,) * tensor.ndim)

    @property
    def block(self) -> Block:
        return Block(self.offset, tuple(self.tensor.shape))

    @property
    def spec(self) -> TensorSpec:
        """Dtype and shape of the whole tensor."""
        return TensorSpec(self.tensor.dtype, self.shape)


Pieces = Mapping[str, Mapping[str, Piece]]
"""Pieces by group and name of their tensor."""


def are_exact_cover(shape: Sequence[int], blocks: Collection[Block]) -> bool:
    """Return whether each element of a tensor is in exactly one of the blocks."""
    if not all(block.is_inside(shape) for block in blocks) or sum(block.n_elements for block in blocks) != math.prod(shape):
        return False
    if not shape:
        return True
    axis = max(range(len(shape)), key=lambda i: len({block.offset[i] for block in blocks}))
    open_blocks = list[Block]()  # those that reach beyond the start of the next one along the axis
    for block in sorted(blocks, key=lambda each: each.offset[axis]):
        open_blocks = [each for each in open_blocks if each.offset[axis] + each.size[axis] > block.offset[axis]]
        if any(each.overlap(block) for each in open_blocks):
            return False
        open_blocks.append(block)
    return True


Description = dict[str, dict[str, tuple[str, list[int], list[int], list[int]]]]
"""Dtype, shape of the whole tensor, offset and size of each piece of a process, by group and name, as JSON values."""


def describe(pieces: Pieces) -> Description:
    """Describe the pieces of this process for ``assign_writers``."""
    return {
        group: {
            name: (dtype_name(piece.tensor.dtype), list(piece.shape), list(piece.offset), list(piece.tensor.shape))
            for name, piece in named.items()
        }
        for group, named in pieces.items()
    }


class Assignment(NamedTuple):
    """Division of the pieces of all processes among those that write them.

    Attributes:
        whole: groups that rank 0 writes as whole tensors.
        names: for each rank, the names of the tensors of which it writes its piece, by group, without those of ``whole``.
    """

    whole: set[str]
    names: list[dict[str, list[str]]]


def assign_writers(descriptions: Sequence[Description]) -> Assignment:
    """Assign each piece to the first rank that holds it. Every rank computes the same from the descriptions of all.

    Args:
        descriptions: of each rank, in rank order; the ranks may hold different groups and names.
    """
    groups = dict.fromkeys(group for each in descriptions for group in each)
    whole, names = set[str](), [dict[str, list[str]]() for _ in descriptions]
    for group in groups:
        blocks = dict[str, dict[Block, int]]()
        specs = dict[str, tuple[str, list[int]]]()
        for rank, each in enumerate(descriptions):
            for name, (dtype, shape, offset, size) in each.get(group, {}).items():
                expected = specs.setdefault(name, (dtype, shape))
                assert expected == (dtype, shape), (
                    f"{group}, {name}: expected {expected} as on other ranks, found {dtype}, {shape} on {rank}"
                )
                block = Block(tuple(offset), tuple(size))
                if block.n_elements or not math.prod(shape):
                    blocks.setdefault(name, {}).setdefault(block, rank)
        for name, (_, shape) in specs.items():
            assert are_exact_cover(shape, blocks.get(name, {})), f"{group}, {name}: expected pieces of {shape}, found {blocks.get(name)}"
        if all(rank == 0 and list(block.size) == specs[name][1] for name, ranks in blocks.items() for block, rank in ranks.items()):
            whole.add(group)
            continue
        for name, ranks in blocks.items():
            for rank in ranks.values():
                names[rank].setdefault(group, []).append(name)
    return Assignment(whole, names)
