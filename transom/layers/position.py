"""Positions: where a token stands, told to a model that is otherwise blind to order."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.model import Sinusoidal as SinusoidalBrick


def sinusoids(max_seq_len: int, d_model: int, base: float = 10000.0) -> Float[Tensor, "max_seq_len d_model"]:
    """Tabulate sines and cosines of geometrically spaced wavelengths, in float64 before the cast.

    P[i, 2k] = sin(i / base^(2k / d_model)), P[i, 2k + 1] = cos(i / base^(2k / d_model)) (Vaswani et al. 2017, section 3.5).
    """
    place = torch.arange(max_seq_len, dtype=torch.float64)[:, None]
    frequency = base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    table = torch.empty(max_seq_len, d_model, dtype=torch.float64)
    table[:, 0::2] = torch.sin(place * frequency)
    table[:, 1::2] = torch.cos(place * frequency[: d_model // 2])
    return table.to(torch.get_default_dtype())


class Sinusoidal(nn.Module):
    """Fixed sinusoids, added to the embeddings."""

    def __init__(self, brick: SinusoidalBrick, max_seq_len: int, d_model: int) -> None:
        """Tabulate ``max_seq_len`` positions; the table is derived, never saved."""
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", sinusoids(max_seq_len, d_model, brick.base), persistent=False)

    def forward(self, positions: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length d_model"]:
        """Look up each position's vector."""
        return self.table[positions]
