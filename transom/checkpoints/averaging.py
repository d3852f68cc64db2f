"""The mean of the weights of several checkpoints (Vaswani et al. 2017, section 6.1)."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def average_tensors(sets: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of each tensor over several sets with the same names, such as the weights of checkpoints.

    Sums are in at least float32; the mean has the dtype of the first set. Tensors of integers are taken from the last set. At most two sets
    are in memory at a time.

    Args:
        sets: at least one set of tensors by name, from the oldest checkpoint to the newest.
    """
    sums, dtypes, n = dict[str, Tensor](), dict[str, torch.dtype](), 0
    for tensors in sets:
        assert not n or tensors.keys() == sums.keys(), f"expected the same tensors, found a difference at {tensors.keys() ^ sums.keys()}"
        for name, x in tensors.items():
            dtypes.setdefault(name, x.dtype)
            if not x.dtype.is_floating_point or not n:
                sums[name] = x.to(torch.promote_types(x.dtype, torch.float32) if x.dtype.is_floating_point else x.dtype, copy=True)
            else:
                sums[name] += x
        n += 1
    assert n, "expected at least one set of tensors"
    return {name: (x / n).to(dtypes[name]) if x.dtype.is_floating_point else x for name, x in sums.items()}
