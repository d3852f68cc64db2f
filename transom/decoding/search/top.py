"""The best few tokens of each row of a large vocabulary."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

WIDTH = 128
"""Tokens a block."""


def top_tokens(values: Float[Tensor, "rows vocab"], k: int) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
    """Return the ``k`` largest values of each row, largest first, and their places: ``values.topk(k)``, several times faster on a CPU.

    The vocabulary is cut into blocks. A value among the k largest lies in one of the k blocks with the largest maxima: were it in
    another, k blocks would each hold a value at least as large. So only those blocks, and what the last whole block left over, are
    sorted. Ties may be broken in another order than by ``topk``.
    """
    n_blocks = values.shape[1] // WIDTH
    if n_blocks <= 2 * k:
        return values.topk(k)
    cut = n_blocks * WIDTH
    blocks = values[:, :cut].view(-1, n_blocks, WIDTH)
    chosen = blocks.amax(-1).topk(k, sorted=False).indices
    near = torch.cat([blocks.gather(1, chosen[..., None].expand(-1, -1, WIDTH)).flatten(1), values[:, cut:]], 1)
    best, places = near.topk(k)
    in_block = chosen.gather(1, (places // WIDTH).clamp_(max=k - 1)) * WIDTH + places % WIDTH
    return best, torch.where(places < k * WIDTH, in_block, places + (cut - k * WIDTH))
