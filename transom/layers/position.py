"""Positions: where a token stands, told to a model that is otherwise blind to order.

A position brick may speak at three places: a vector added to the embeddings (``forward``), a turn of queries and keys (``rotation``), a
bias on the scores (``bias``). Each kind has its own and is silent at the others.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config import bricks
from transom.config.architecture import Architecture, Transformer
from transom.config.components import implementation, implements
from transom.config.vision import VisionTransformer
from transom.layers.dispatch import operation

OneBias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The bias of a head between the positions of a query and a key, each a single number; it holds tensors and no module."""


class Rotation(NamedTuple):
    """Cosines and sines of the angles by which the pairs of a head's columns are turned at each position."""

    cos: Float[Tensor, "#batch 1 length pairs"]
    sin: Float[Tensor, "#batch 1 length pairs"]


@implements(bricks.NoPosition)
class Position(nn.Module):
    """What every kind has, and what ``none`` is."""

    def __init__(self, config: Architecture, causal: bool) -> None:
        """Make what is computed once.

        Args:
            config: the model's.
            causal: whether keys stand only before queries.
        """
        super().__init__()

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"] | None:
        """Return what is added to the embeddings, or None for nothing."""
        return None

    def rotation(self, positions: Int[Tensor, "#batch length"]) -> Rotation | None:
        """Return how queries and keys at these positions are turned, or None for not at all."""
        return None

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """What the bias is learned from."""
        return ()

    def bias(
        self, queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"], *learned: Tensor
    ) -> Float[Tensor, "#batch n_heads query key"] | None:
        """Return what is added to the scores between these positions, or None for nothing; a function of ``learned`` alone."""
        return None

    def one_bias(self) -> OneBias | None:
        """Return the bias as a function of single numbers, for kernels that are compiled, or None for nothing."""
        return None


class TabulatedPosition(Position):
    """A position whose tables are computed, never saved, and as accurate as the type of the model: float64 tables in a float64 model."""

    def __init__(self, config: Any, causal: bool) -> None:
        """Compute the tables in the default type."""
        super().__init__(config, causal)
        self.config = config
        for name, table in self.tables(torch.get_default_dtype()).items():
            self.register_buffer(name, table, persistent=False)

    @abstractmethod
    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Compute the tables by name, in float64 before the cast to ``dtype``."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert the tables as any module does, but compute them anew where they become float64."""
        before = {name: table.dtype for name, table in self.named_buffers(recurse=False)}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = dict(self.named_buffers(recurse=False))
        if any(table.dtype == torch.float64 != before[name] for name, table in after.items()):
            for name, table in self.tables(torch.float64).items():
                setattr(self, name, table.to(after[name].device))
        return self


def sinusoids(
    max_seq_len: int, d_model: int, base: float = 10000.0, dtype: torch.dtype | None = None
) -> Float[Tensor, "max_seq_len d_model"]:
    """Tabulate sines and cosines of geometrically spaced wavelengths, in float64 before the cast.

    P[i, 2k] = sin(i / base^(2k / d_model)), P[i, 2k + 1] = cos(i / base^(2k / d_model)) (Vaswani et al. 2017, section 3.5).
    """
    frequency = base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    table = torch.empty(max_seq_len, d_model, dtype=dtype)
    for start in range(0, max_seq_len, _ROWS):
        angles = _angles(start, max_seq_len, frequency)
        table[start : start + _ROWS, 0::2] = angles.sin()
        table[start : start + _ROWS, 1::2] = angles[:, : d_model // 2].cos()
    return table


_ROWS = 1024
"""Positions that are tabulated at once: all of a long table in float64 would take many times its own memory."""


def _angles(start: int, max_seq_len: int, frequency: Float[Tensor, "pairs"]) -> Float[Tensor, "rows pairs"]:
    """Multiply the positions of the rows from ``start`` by each frequency, in float64."""
    return torch.arange(start, min(start + _ROWS, max_seq_len), dtype=torch.float64)[:, None] * frequency


@implements(bricks.Sinusoidal)
class Sinusoidal(TabulatedPosition):
    """Fixed sinusoids, added to the embeddings."""

    config: Transformer
    table: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Tabulate ``n_positions``."""
        c = self.config
        assert isinstance(c.position, bricks.Sinusoidal)
        return {"table": sinusoids(c.n_positions, c.d_model, c.position.base, dtype)}

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"]:
        """Look up each position's vector."""
        return self.table[positions]


@implements(bricks.Sinusoidal2d)
class Sinusoidal2d(TabulatedPosition):
    """Fixed sinusoids of a patch's row and column, half of the vector each (He et al. 2022, section 3); a token in front has zeros."""

    config: VisionTransformer
    table: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Tabulate a grid of patches."""
        c = self.config
        assert isinstance(c, VisionTransformer) and isinstance(c.position, bricks.Sinusoidal2d)
        side, half = c.grid, c.d_model // 2
        line = sinusoids(side, half, c.position.base, dtype)
        grid = torch.cat([line[:, None].expand(-1, side, -1), line[None].expand(side, -1, -1)], -1).reshape(side * side, -1)
        return {"table": torch.cat([grid.new_zeros(c.n_positions - len(grid), 2 * half), grid])}

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"]:
        """Look up each patch's vector."""
        return self.table[positions]


@implements(bricks.Learned)
class Learned(Position):
    """A learned vector a position, added to the embeddings (Gehring et al. 2017, section 3.1)."""

    def __init__(self, config: Transformer, causal: bool) -> None:
        """Make ``n_positions`` vectors."""
        super().__init__(config, causal)
        self.table = nn.Embedding(config.n_positions, config.d_model)

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"]:
        """Look up each position's vector."""
        return self.table(positions)


def resized_grid(table: Float[Tensor, "old_places d_model"], n_positions: int) -> Float[Tensor, "new_places d_model"]:
    """Bring learned positions of one square grid of patches to another, by cubic interpolation (Dosovitskiy et al. 2021, section 3.2).

    A classification token's position, in front of the grid where there is one, stays as it is.

    Args:
        table: of as many positions as a square grid has patches, or one more.
        n_positions: wanted, likewise, with that one more exactly where the table has it.
    """
    old, new = math.isqrt(len(table)), math.isqrt(n_positions)
    front = len(table) - old**2
    assert front == n_positions - new**2 and front in (0, 1)
    grid = table[front:].reshape(1, old, old, -1).permute(0, 3, 1, 2)  # (1, d_model, rows, columns)
    grid = F.interpolate(grid, (new, new), mode="bicubic", align_corners=False)
    return torch.cat([table[:front], grid.permute(0, 2, 3, 1).reshape(new * new, -1)])


def resized_line(table: Float[Tensor, "old_places d_model"], n_positions: int) -> Float[Tensor, "new_places d_model"]:
    """Bring learned positions of a text to another length.

    A shorter table is the beginning of the longer one, since the positions of short texts keep their meaning. A longer one is interpolated
    linearly, so that its last position is the last trained one, as Chen et al. 2023, section 3, squeeze rotary positions.
    """
    if n_positions <= len(table):
        return table[:n_positions]
    return F.interpolate(table.T[None], n_positions, mode="linear", align_corners=True)[0].T


def frequencies(brick: bricks.Rotary, width: int, max_seq_len: int) -> tuple[Float[Tensor, "pairs"], float]:
    """Compute the angle a position of each pair of columns, in float64, and what cosines and sines are multiplied by.

    theta_k = base^(-2k / width) (Su et al. 2021, eq. 15), then by ``scaling``, with f = factor: linear, theta / f (Chen et al. 2023,
    eq. 3); ntk, the base times f^(width / (width - 2)), which leaves the fastest pair and slows the slowest by f; yarn (Peng et al. 2023,
    section 3), theta / f for pairs that make less than 1 turn in the trained length, theta for more than 32, between them a mixture that
    is linear in k, as in the authors' code (in the paper it is linear in the turns), and cosines and sines times 0.1 ln f + 1, which
    makes scores sharper.
    """
    exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
    f = brick.factor
    base = brick.base * f ** (width / (width - 2)) if brick.scaling == "ntk" and width > 2 else brick.base
    theta = base**-exponent
    if brick.scaling == "linear":
        return theta / f, 1.0
    if brick.scaling != "yarn":
        return theta, 1.0
    trained = brick.trained_seq_len or max(1, round(max_seq_len / f))
    most, fewest = 32.0, 1.0  # turns in the trained length: Peng et al. call them beta and alpha

    def pair(turns: float) -> float:
        """Give the place of the pair that makes so many turns in the trained length."""
        return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(brick.base))

    low, high = max(math.floor(pair(most)), 0), min(math.ceil(pair(fewest)), width - 1)
    squeezed = ((torch.arange(width // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return theta * (1 - squeezed) + theta / f * squeezed, 0.1 * math.log(f) + 1


@implements(bricks.Rotary)
class Rotary(TabulatedPosition):
    """Rotary positions: queries and keys are turned by angles proportional to their position (Su et al. 2021)."""

    config: Transformer
    cos: Tensor
    sin: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Tabulate cosines and sines of the angles at ``n_positions``."""
        c = self.config
        assert isinstance(c.position, bricks.Rotary)
        theta, scale = frequencies(c.position, c.width_turned, c.n_positions)
        cos, sin = (torch.empty(c.n_positions, len(theta), dtype=dtype) for _ in range(2))
        for start in range(0, c.n_positions, _ROWS):
            angles = _angles(start, c.n_positions, theta)
            cos[start : start + _ROWS] = angles.cos() * scale
            sin[start : start + _ROWS] = angles.sin() * scale
        return {"cos": cos, "sin": sin}

    def rotation(self, positions: Int[Tensor, "#batch length"]) -> Rotation:
        """Look up the angles' cosines and sines."""
        return Rotation(self.cos[positions][:, None], self.sin[positions][:, None])


@operation("rotary")
def rotate(
    x: Float[Tensor, "batch heads length d_head"], cos: Float[Tensor, "#batch 1 length pairs"], sin: Float[Tensor, "#batch 1 length pairs"]
) -> Float[Tensor, "batch heads length d_head"]:
    """Rotate the pairs (x_k, x_{k + d/2}) of each vector; further columns stay (after Su et al. 2021, eq. 34).

    Products are in the angles' type.
    """
    pairs = cos.shape[-1]
    a, b, rest = x.to(torch.promote_types(x.dtype, cos.dtype)).split([pairs, pairs, x.shape[-1] - 2 * pairs], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)


def turn(x: Float[Tensor, "batch heads length d_head"], rotation: Rotation | None) -> Float[Tensor, "batch heads length d_head"]:
    """Rotate each vector by the angles of its position; None leaves it as it is."""
    return x if rotation is None else rotate(x, *rotation)


def slopes(n_heads: int) -> list[float]:
    """Give each head's slope: the powers of 2^(-8 / n), n the largest power of two among the heads, then every other one of 2n's.

    >>> slopes(8)[:3], slopes(3)
    ([0.5, 0.25, 0.125], [0.0625, 0.00390625, 0.25])
    """
    n = 2 ** int(math.log2(n_heads))
    whole = [2 ** (-8 * (h + 1) / n) for h in range(n)]
    return whole + [2 ** (-4 * (2 * h + 1) / n) for h in range(n_heads - n)]


@implements(bricks.Alibi)
class Alibi(TabulatedPosition):
    """Attention with linear biases: -m_h |i - j| on the scores (Press et al. 2022, section 3)."""

    config: Transformer
    slopes: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Compute the slopes."""
        return {"slopes": torch.tensor(slopes(self.config.n_heads), dtype=dtype)}

    def bias(
        self, queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"], *learned: Tensor
    ) -> Float[Tensor, "#batch n_heads query key"]:
        """Penalise distance."""
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        return -self.slopes[:, None, None] * distance

    def one_bias(self) -> OneBias:
        """Penalise a distance."""
        slopes = self.slopes
        return lambda head, query, key: -slopes[head] * (query - key).abs()


def bucket(offsets: Int[Tensor, "*axes"], n_buckets: int, max_distance: int, causal: bool) -> Int[Tensor, "*axes"]:
    """Number the buckets of ``offsets``, key minus query: exact up to half of a side's buckets, logarithmic up to ``max_distance``."""
    n, first = n_buckets, torch.zeros_like(offsets)
    if causal:
        distance = (-offsets).clamp(min=0)
    else:
        n //= 2
        first, distance = (offsets > 0).long() * n, offsets.abs()
    exact = n // 2
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (n - exact)
    return first + torch.where(distance < exact, distance, (exact + far.long()).clamp(max=n - 1))


@implements(bricks.Relative)
class Relative(Position):
    """Relative biases: a learned number a head and bucket of distance on the scores (Raffel et al. 2020, section 2.1)."""

    def __init__(self, config: Transformer, causal: bool) -> None:
        """Make the table."""
        super().__init__(config, causal)
        assert isinstance(config.position, bricks.Relative)
        self.n_buckets, self.max_distance, self.causal = config.position.n_buckets, config.position.max_distance, causal
        self.table = nn.Embedding(self.n_buckets, config.n_heads)

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """The table."""
        return (self.table.weight,)

    def bias(
        self, queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"], *learned: Tensor
    ) -> Float[Tensor, "#batch n_heads query key"]:
        """Look up each head's bias."""
        (table,) = learned
        buckets = bucket(keys[:, None, :] - queries[:, :, None], self.n_buckets, self.max_distance, self.causal)
        return F.embedding(buckets, table).permute(0, 3, 1, 2)

    def one_bias(self) -> OneBias:
        """Look up one head's bias."""
        table, sizes = self.table.weight, (self.n_buckets, self.max_distance, self.causal)
        return lambda head, query, key: table[bucket(key - query, *sizes), head]


def build_position(config: Transformer, causal: bool) -> Position:
    """Build the position brick of a configuration for one stack; ``causal`` where its queries see only what stands before them."""
    return implementation(config.position)(config, causal)
