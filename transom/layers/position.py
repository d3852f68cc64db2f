"""Position encodings: sinusoidal, learned, rotary (RoPE), ALiBi and T5's relative bias.

A position encoding acts at one of three places: it adds a vector to the embeddings (``forward``), rotates queries and keys (``rotation``,
then ``turn``), or adds a bias to the attention scores (``bias``). At the other places it returns None.
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
"""Score bias as a function (head, query position, key position) of scalars; it closes over tensors, not modules."""


class Rotation(NamedTuple):
    """Cosines and sines of the rotation angles, per position and pair of head dimensions."""

    cos: Float[Tensor, "#batch 1 length pairs"]
    sin: Float[Tensor, "#batch 1 length pairs"]


@implements(bricks.NoPosition)
class Position(nn.Module):
    """Base class of position encodings, and the encoding ``none``."""

    def __init__(self, config: Architecture, causal: bool) -> None:
        """Initialize tables and parameters.

        Args:
            config: model configuration.
            causal: whether the stack is causal: keys never come after their query.
        """
        super().__init__()

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"] | None:
        """Return the vectors to add to the embeddings; None for none."""
        return None

    def rotation(self, positions: Int[Tensor, "#batch length"]) -> Rotation | None:
        """Return the rotary cosines and sines at these positions; None for no rotation."""
        return None

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """Parameters that the bias depends on."""
        return ()

    def bias(
        self, queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"], *learned: Tensor
    ) -> Float[Tensor, "#batch n_heads query key"] | None:
        """Return the bias to add to the attention scores; None for none. It is differentiable in ``learned`` only."""
        return None

    def one_bias(self) -> OneBias | None:
        """Return the bias as a scalar function, as FlexAttention's score_mod needs it; None for no bias."""
        return None


class TabulatedPosition(Position):
    """A position encoding with computed tables, which are not saved. A model converted to float64 recomputes them in float64."""

    def __init__(self, config: Any, causal: bool) -> None:
        """Compute the tables in the default dtype."""
        super().__init__(config, causal)
        self.config = config
        for name, table in self.tables(torch.get_default_dtype()).items():
            self.register_buffer(name, table, persistent=False)

    @abstractmethod
    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Compute the tables by name, in float64 before the cast to ``dtype``."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert the module; recompute tables that become float64."""
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
    """Compute the table of sinusoidal position encodings, in float64 before the cast.

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
"""Positions computed at a time: all of a long table in float64 would take many times its own memory."""


def _angles(start: int, max_seq_len: int, frequency: Float[Tensor, "pairs"]) -> Float[Tensor, "rows pairs"]:
    """Return position times frequency for a chunk of positions from ``start``, in float64."""
    return torch.arange(start, min(start + _ROWS, max_seq_len), dtype=torch.float64)[:, None] * frequency


@implements(bricks.Sinusoidal)
class Sinusoidal(TabulatedPosition):
    """Sinusoidal position encoding, added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    config: Transformer
    table: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Compute the encodings of ``n_positions`` positions."""
        c = self.config
        assert isinstance(c.position, bricks.Sinusoidal)
        return {"table": sinusoids(c.n_positions, c.d_model, c.position.base, dtype)}

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"]:
        """Look up the encoding of each position."""
        return self.table[positions]


@implements(bricks.Sinusoidal2d)
class Sinusoidal2d(TabulatedPosition):
    """Sinusoidal encodings of a patch's row and column, half of the vector each (He et al. 2022, section 3); zeros for a class token."""

    config: VisionTransformer
    table: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Compute the encodings of a grid of patches, preceded by zeros for a class token."""
        c = self.config
        assert isinstance(c, VisionTransformer) and isinstance(c.position, bricks.Sinusoidal2d)
        side, half = c.grid, c.d_model // 2
        line = sinusoids(side, half, c.position.base, dtype)
        grid = torch.cat([line[:, None].expand(-1, side, -1), line[None].expand(side, -1, -1)], -1).reshape(side * side, -1)
        return {"table": torch.cat([grid.new_zeros(c.n_positions - len(grid), 2 * half), grid])}

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"]:
        """Look up the encoding of each patch."""
        return self.table[positions]


@implements(bricks.Learned)
class Learned(Position):
    """Learned position embeddings, added to the token embeddings (Gehring et al. 2017, section 3.1)."""

    def __init__(self, config: Transformer, causal: bool) -> None:
        """Initialize ``n_positions`` embeddings."""
        super().__init__(config, causal)
        self.table = nn.Embedding(config.n_positions, config.d_model)

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"]:
        """Look up the embedding of each position."""
        return self.table(positions)


def resized_grid(table: Float[Tensor, "old_places d_model"], n_positions: int) -> Float[Tensor, "new_places d_model"]:
    """Resize learned position embeddings of a square grid of patches by bicubic interpolation (Dosovitskiy et al. 2021, section 3.2).

    The embedding of a class token, which precedes the grid, is unchanged.

    Args:
        table: embeddings of a square grid, with or without a class token.
        n_positions: new number of positions; a class token is included exactly if ``table`` has one.
    """
    old, new = math.isqrt(len(table)), math.isqrt(n_positions)
    front = len(table) - old**2
    assert front == n_positions - new**2 and front in (0, 1)
    grid = table[front:].reshape(1, old, old, -1).permute(0, 3, 1, 2)  # (1, d_model, rows, columns)
    grid = F.interpolate(grid, (new, new), mode="bicubic", align_corners=False)
    return torch.cat([table[:front], grid.permute(0, 2, 3, 1).reshape(new * new, -1)])


def resized_line(table: Float[Tensor, "old_places d_model"], n_positions: int) -> Float[Tensor, "new_places d_model"]:
    """Resize learned position embeddings of text to ``n_positions``.

    A shorter table is a truncation, so that positions keep their meaning. A longer one is a linear interpolation whose last position is the
    last trained one, like the position interpolation of rotary embeddings (Chen et al. 2023, section 3).
    """
    if n_positions <= len(table):
        return table[:n_positions]
    return F.interpolate(table.T[None], n_positions, mode="linear", align_corners=True)[0].T


def frequencies(brick: bricks.Rotary, width: int, max_seq_len: int) -> tuple[Float[Tensor, "pairs"], float]:
    """Compute the rotary frequencies (radians per position, in float64) and the factor of cosines and sines.

    theta_k = base^(-2k / width) (Su et al. 2021, eq. 15). ``scaling`` extends the context window by f = factor:

    - linear: theta / f (Chen et al. 2023, eq. 3).
    - ntk: base times f^(width / (width - 2)); the highest frequency is unchanged, the lowest is divided by f.
    - yarn (Peng et al. 2023, section 3): theta / f for pairs with less than 1 rotation in the original length, theta for more than 32,
      and a linear ramp between. The ramp is linear in k, as in the authors' code; in the paper it is linear in the number of rotations.
      Cosines and sines are multiplied by 0.1 ln f + 1, which sharpens the attention scores.
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
    most, fewest = 32.0, 1.0  # rotations in the original length: beta and alpha of Peng et al.

    def pair(turns: float) -> float:
        """Return the (fractional) index of the pair with this many rotations in the original length."""
        return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(brick.base))

    low, high = max(math.floor(pair(most)), 0), min(math.ceil(pair(fewest)), width - 1)
    squeezed = ((torch.arange(width // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return theta * (1 - squeezed) + theta / f * squeezed, 0.1 * math.log(f) + 1


@implements(bricks.Rotary)
class Rotary(TabulatedPosition):
    """Rotary position embedding (RoPE): queries and keys are rotated by angles proportional to their position (Su et al. 2021).

    ``Attention.forward`` and ``Attention.project`` apply it with ``turn``.
    """

    config: Transformer
    cos: Tensor
    sin: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Compute cosines and sines for ``n_positions`` positions."""
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
        """Look up the cosines and sines of each position."""
        return Rotation(self.cos[positions][:, None], self.sin[positions][:, None])


@operation("rotary")
def rotate(
    x: Float[Tensor, "batch heads length d_head"], cos: Float[Tensor, "#batch 1 length pairs"], sin: Float[Tensor, "#batch 1 length pairs"]
) -> Float[Tensor, "batch heads length d_head"]:
    """Rotate the pairs (x_k, x_{k + d/2}) of each vector; dimensions beyond the pairs are unchanged (after Su et al. 2021, eq. 34).

    Products are computed in the dtype of the cosines, or a wider one.
    """
    pairs = cos.shape[-1]
    a, b, rest = x.to(torch.promote_types(x.dtype, cos.dtype)).split([pairs, pairs, x.shape[-1] - 2 * pairs], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)


def turn(x: Float[Tensor, "batch heads length d_head"], rotation: Rotation | None) -> Float[Tensor, "batch heads length d_head"]:
    """Apply RoPE: rotate each vector by the angles of its position; with None return ``x`` unchanged."""
    return x if rotation is None else rotate(x, *rotation)


def slopes(n_heads: int) -> list[float]:
    """Return the ALiBi slope of each head (Press et al. 2022, section 3).

    The slopes are the powers of 2^(-8 / n), n the largest power of two <= n_heads, followed by every other slope of 2n heads.

    >>> slopes(8)[:3], slopes(3)
    ([0.5, 0.25, 0.125], [0.0625, 0.00390625, 0.25])
    """
    n = 2 ** int(math.log2(n_heads))
    whole = [2 ** (-8 * (h + 1) / n) for h in range(n)]
    return whole + [2 ** (-4 * (2 * h + 1) / n) for h in range(n_heads - n)]


@implements(bricks.Alibi)
class Alibi(TabulatedPosition):
    """ALiBi, attention with linear biases: adds -m_h |i - j| to the scores (Press et al. 2022, section 3)."""

    config: Transformer
    slopes: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Compute the slopes."""
        return {"slopes": torch.tensor(slopes(self.config.n_heads), dtype=dtype)}

    def bias(
        self, queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"], *learned: Tensor
    ) -> Float[Tensor, "#batch n_heads query key"]:
        """Return -m_h |i - j|."""
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        return -self.slopes[:, None, None] * distance

    def one_bias(self) -> OneBias:
        """Return -m_h |i - j| of one head and pair."""
        slopes = self.slopes
        return lambda head, query, key: -slopes[head] * (query - key).abs()


def bucket(offsets: Int[Tensor, "*axes"], n_buckets: int, max_distance: int, causal: bool) -> Int[Tensor, "*axes"]:
    """Return T5's bucket of each offset, key minus query position: exact for small distances, then logarithmic up to ``max_distance``.

    Without ``causal``, half of the buckets are for keys after the query; half of a side's buckets are exact.
    """
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
    """T5's relative position bias: a learned scalar per head and distance bucket, added to the scores (Raffel et al. 2020, section 2.1)."""

    def __init__(self, config: Transformer, causal: bool) -> None:
        """Initialize the table of biases."""
        super().__init__(config, causal)
        assert isinstance(config.position, bricks.Relative)
        self.n_buckets, self.max_distance, self.causal = config.position.n_buckets, config.position.max_distance, causal
        self.table = nn.Embedding(self.n_buckets, config.n_heads)

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """The table of biases."""
        return (self.table.weight,)

    def bias(
        self, queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"], *learned: Tensor
    ) -> Float[Tensor, "#batch n_heads query key"]:
        """Look up the bias of each head and pair."""
        (table,) = learned
        buckets = bucket(keys[:, None, :] - queries[:, :, None], self.n_buckets, self.max_distance, self.causal)
        return F.embedding(buckets, table).permute(0, 3, 1, 2)

    def one_bias(self) -> OneBias:
        """Look up the bias of one head and pair."""
        table, sizes = self.table.weight, (self.n_buckets, self.max_distance, self.causal)
        return lambda head, query, key: table[bucket(key - query, *sizes), head]


def build_position(config: Transformer, causal: bool) -> Position:
    """Build the position encoding of one stack; ``causal`` if no query attends to later keys."""
    return implementation(config.position)(config, causal)
