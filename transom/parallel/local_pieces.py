"""Pieces of this rank: what it holds of each tensor of a model or an optimizer, and the same blocks of saved tensors."""

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor

from transom.checkpoints.piece_files import SavedTensors
from transom.checkpoints.pieces import Piece
from transom.parallel.axes.sharding import from_local


def local_piece(x: Tensor) -> Piece:
    """Return the piece of a tensor that this rank holds; the tensor is not copied.

    Args:
        x: a plain tensor, of which this rank holds all, or a ``DTensor`` without partial sums, whose shards are blocks: ``Shard`` on any
            axes, also of uneven or no length, and ``fully_shard`` of a tensor-parallel parameter.
    """
    if not isinstance(x, DTensor):
        return Piece.whole(x.detach())
    (chunk,) = x.__create_chunk_list__()
    return Piece(x.to_local().detach(), tuple(x.shape), tuple(chunk.offsets))


def local_pieces(tensors: Mapping[str, Tensor]) -> dict[str, Piece]:
    """Return the piece of each tensor that this rank holds, by name."""
    return {name: local_piece(x) for name, x in tensors.items()}


def read_like(saved: SavedTensors, name: str, like: Tensor) -> Tensor:
    """Read the block of a saved tensor that this rank holds of ``like``; return it sharded as ``like``, without communication.

    Args:
        saved: tensors of a checkpoint, written by any number of ranks.
        name: name of the tensor.
        like: a tensor of the same shape.
    """
    local = saved.read(name, local_piece(like).block)
    return from_local(local.to(like.device_mesh.device_type), like) if isinstance(like, DTensor) else local
