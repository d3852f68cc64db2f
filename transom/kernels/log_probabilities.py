"""Log probabilities of a search on a CPU and their largest ones, in the project's own C++ (``native/elementwise.cpp``)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transom.kernels.elementwise import call_native, is_supported

MIN_ELEMENTS = 2**15
"""Number of elements from which several threads are faster than one."""


def are_plain_scores(x: Tensor) -> bool:
    """Return whether the functions of this module apply: to contiguous rows in float32 on a CPU, of which no gradient is required."""
    return x.dtype == torch.float32 and x.is_contiguous() and x.numel() > 0 and not x.requires_grad and is_supported(x)


def log_softmax_(logits: Float[Tensor, "*axes vocab"]) -> Float[Tensor, "*axes vocab"]:
    """Replace logits z by log p = z - log(sum(exp(z))), and return them."""
    width = logits.shape[-1]
    call_native("log_softmax", logits, logits.numel() // width, width, _n_threads(logits))
    return logits


def largest(values: Float[Tensor, "rows vocab"]) -> tuple[Float[Tensor, "rows"], Int[Tensor, "rows"]]:
    """Return the largest value of each row and the first index at which it stands; NaN is larger than any number."""
    found, indices = values.new_empty(len(values)), values.new_empty(len(values), dtype=torch.int64)
    call_native("largest", values, found, indices, *values.shape, _n_threads(values))
    return found, indices


def _n_threads(x: Tensor) -> int:
    return torch.get_num_threads() if x.numel() >= MIN_ELEMENTS else 1
