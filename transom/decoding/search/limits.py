"""How short and how long a translation may be."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from transom.config.decoding import Decoding


@dataclass(frozen=True)
class Limits:
    """Bounds on each source's translation.

    Attributes:
        shortest: fewest tokens before the end symbol.
        longest: most tokens, the end symbol included.
    """

    shortest: Int[Tensor, "sources"]
    longest: Int[Tensor, "sources"]

    @cached_property
    def all_may_end_from(self) -> int:
        """Tokens after which no lower bound is left to mind."""
        return int(self.shortest.max())

    @cached_property
    def first_must_end_at(self) -> int:
        """Tokens, the end symbol included, at which the first upper bound is met."""
        return int(self.longest.min())

    @cached_property
    def last_must_end_at(self) -> int:
        """Tokens, the end symbol included, that no translation exceeds."""
        return int(self.longest.max())

    def keep(self, places: Int[Tensor, "kept"]) -> "Limits":
        """Return the bounds of the sources at these places."""
        return Limits(self.shortest[places], self.longest[places])


def limits_of(source_lengths: Sequence[int], decoding: Decoding, max_seq_len: int, device: torch.device | None = None) -> Limits:
    """Bound the translations of sources of these lengths.

    longest = min(max_length, max_seq_len, max_length_ratio * source length + 10), but always room for ``min_length`` and the end.

    Args:
        source_lengths: tokens, the end symbol not counted.
        decoding: the search's settings.
        max_seq_len: most tokens the decoder can read; it reads the start symbol and all but the end.
        device: where the bounds are needed.
    """
    most = min(decoding.max_length, max_seq_len)
    shortest = min(decoding.min_length, most - 1)
    longest = [max(min(most, int(decoding.max_length_ratio * length) + 10), shortest + 1) for length in source_lengths]
    return Limits(torch.full((len(longest),), shortest, device=device), torch.tensor(longest, device=device))
