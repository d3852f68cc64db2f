"""LoRA's matrices A and B on both sides: those of several layers here may be those of one fused layer of a foreign model."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from transom.config.adapter import TargetModule
from transom.exchange.tensor_rows import ByHead, Configs, Equal, ScaledQuery, TensorGroup, Transposed
from transom.models.apply_lora import target_module

SUFFIX = ".weight"


class LowRank(NamedTuple):
    """The update scale * B A of a weight matrix.

    Attributes:
        a: A, of shape (rank, d_in).
        b: B, of shape (d_out, rank).
    """

    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        """Number of rows of A."""
        return len(self.a)


def is_adaptable(group: TensorGroup) -> bool:
    """Return whether tensors are weights of linear layers that LoRA adapts here, and their outputs are those of the foreign layer."""
    targets = [target_module(name.removesuffix(SUFFIX)) for name in group.ours if name.endswith(SUFFIX)]
    linear = isinstance(group.how, Transposed | ByHead | ScaledQuery) or (isinstance(group.how, Equal) and len(group.ours) == 1)
    return (
        linear
        and len(group.foreign) == 1
        and len(targets) == len(group.ours)
        and all(target in get_args(TargetModule) for target in targets)
    )


def fuse(parts: Sequence[LowRank | None], group: TensorGroup, like: Mapping[str, Tensor], configs: Configs) -> LowRank:
    """Return A and B of a foreign layer.

    Layers with one and the same A share it. Otherwise A is the matrices A one above the other, and B has a block for each layer, so that
    the rank is the sum of their ranks.

    Args:
        parts: A and B of each of our layers; None for one without an adapter.
        group: the layers.
        like: our weights by name, for their shapes.
        configs: configuration of the model on both sides.
    """
    present = [part for part in parts if part is not None]
    shared = len(present) == len(parts) and all(torch.equal(part.a, present[0].a) for part in present)
    total = present[0].rank if shared else sum(part.rank for part in present)
    blocks, start = list[Tensor](), 0
    for name, part in zip(group.ours, parts, strict=True):
        block = present[0].b.new_zeros(len(like[name]), total)
        if part is not None:
            block[:, start : start + part.rank] = part.b
            start += 0 if shared else part.rank
        blocks.append(block)
    (b,) = group.how.write(blocks, configs)
    a = present[0].a if shared else torch.cat([part.a for part in present])
    return LowRank(a, b.t() if isinstance(group.how, Transposed) else b)


def split(foreign: LowRank, group: TensorGroup, like: Mapping[str, Tensor], configs: Configs) -> list[LowRank]:
    """Return A and B of each of our layers, all with the A of the foreign layer; arguments as for ``fuse``."""
    stored = foreign.b.t() if isinstance(group.how, Transposed) else foreign.b
    parts = group.how.read([stored], [like[name] for name in group.ours], configs)
    return [LowRank(foreign.a, part.contiguous()) for part in parts]


def without_blocks(layers: Sequence[Sequence[LowRank]]) -> list[list[LowRank | None]] | None:
    """Undo the blocks of ``fuse`` in layers of the same kind; None if their B has no blocks.

    Args:
        layers: ``split`` of each foreign layer of one kind. All layers are treated alike, since LoRA here adapts a layer in every block.
    """
    present = [i for i in range(len(layers[0])) if any(layer[i].b.any() for layer in layers)]
    n = len(present)
    if n == 0 or len(layers[0]) == 1 or any(layer[0].rank % n for layer in layers):
        return None
    found = []
    for layer in layers:
        rank = layer[0].rank // n
        parts: list[LowRank | None] = [None] * len(layer)
        for block, i in enumerate(present):
            columns = slice(block * rank, (block + 1) * rank)
            a, b = layer[i]
            if b[:, : columns.start].any() or b[:, columns.stop :].any():
                return None
            parts[i] = LowRank(a[columns].contiguous(), b[:, columns].contiguous())
        found.append(parts)
    return found
