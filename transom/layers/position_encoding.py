"""Position encodings: sinusoidal, learned, rotary (RoPE), ALiBi and T5's relative bias.

A position encoding acts at one of three places: it adds a vector to the embeddings (``forward``), rotates queries and keys (``rotary``,
then ``apply_rotary``), or adds a bias to the attention scores (``bias``). The methods for the other two places return None.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config import components
from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.component_registry import implementation, implements
from transom.config.vision import VisionTransformerConfig
from transom.layers.dispatch import operation
from transom.layers.rope_scaling import RotaryFrequencies, rotary_frequencies

BiasMod = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Score bias as a function of three scalars: head, query position and key position. The function may close over tensors, not modules."""


class RotaryCosSin(NamedTuple):
    """Cosines and sines of the rotation angles, per position and pair of head dimensions."""

    cos: Float[Tensor, "#batch 1 length pairs"]
    sin: Float[Tensor, "#batch 1 length pairs"]


@implements(components.NoPositionConfig)
class PositionEncoding(nn.Module):
    """Base class of position encodings. The class itself is the encoding ``none``."""

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        """Initialize tables and parameters.

        Args:
            config: model configuration.
            causal: whether the stack is causal: keys never come after their query.
        """
        super().__init__()

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"] | None:
        """Return the vectors to add to the embeddings; None for no vectors."""
        return None

    def text_lengths(self, positions: Int[Tensor, "#batch length"], segments: Int[Tensor, "batch length"]) -> Tensor | None:
        """Return the length of the text of each token, (batch, length), if the encoding depends on it; else None."""
        return None

    def rotary_cycle(
        self, positions: Int[Tensor, "#batch length"], lengths: Int[Tensor, "#batch #length"] | None = None
    ) -> Sequence[RotaryCosSin | None]:
        """Return the rotary cosines and sines of the first blocks, which later blocks repeat; None for no rotation.

        Args:
            positions: positions of the tokens.
            lengths: length of the text of each token; None for the whole context window.
        """
        return (None,)

    def rotary(
        self, positions: Int[Tensor, "#batch length"], lengths: Int[Tensor, "#batch #length"] | None = None, layer_index: int = 0
    ) -> RotaryCosSin | None:
        """Return the rotary cosines and sines of block ``layer_index``; the other arguments are those of ``rotary_cycle``."""
        cycle = self.rotary_cycle(positions, lengths)
        return cycle[layer_index % len(cycle)]

    @property
    def bias_parameters(self) -> tuple[Tensor, ...]:
        """Learned parameters on which the score bias depends; empty if there are none."""
        return ()

    def bias(
        self, queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"], *bias_parameters: Tensor
    ) -> Float[Tensor, "#batch n_heads query key"] | None:
        """Return the bias to add to the attention scores; None for no bias. It has gradients for ``bias_parameters`` only."""
        return None

    def bias_mod(self) -> BiasMod | None:
        """Return the bias as a function of scalars, which FlexAttention's score_mod requires; None for no bias."""
        return None


class TabulatedPositionEncoding(PositionEncoding):
    """A position encoding with computed tables, which are not saved. Converting the model to float64 recomputes the tables in float64."""

    def __init__(self, config: Any, causal: bool) -> None:
        """Compute the tables in the default dtype."""
        super().__init__(config, causal)
        self.config = config
        for name, table in self.tables(torch.get_default_dtype()).items():
            self.register_buffer(name, table, persistent=False)

    @abstractmethod
    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the tables by name, computed in float64 and cast to ``dtype``."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert the module to another dtype or device; recompute tables that become float64."""
        before = {name: table.dtype for name, table in self.named_buffers(recurse=False)}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = dict(self.named_buffers(recurse=False))
        if any(table.dtype == torch.float64 != before[name] for name, table in after.items()):
            for name, table in self.tables(torch.float64).items():
                setattr(self, name, table.to(after[name].device))
        return self


def sinusoidal_table(
    max_seq_len: int, d_model: int, base: float = 10000.0, dtype: torch.dtype | None = None
) -> Float[Tensor, "max_seq_len d_model"]:
    """Return the table of sinusoidal position encodings, computed in float64 and cast to ``dtype``.

    P[i, 2k] = sin(i / base^(2k / d_model)), P[i, 2k + 1] = cos(i / base^(2k / d_model)) (Vaswani et al. 2017, section 3.5).
    """
    frequency = base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    table = torch.empty(max_seq_len, d_model, dtype=dtype)
    for start in range(0, max_seq_len, _CHUNK):
        angles = _angles(start, max_seq_len, frequency)
        table[start : start + _CHUNK, 0::2] = angles.sin()
        table[start : start + _CHUNK, 1::2] = angles[:, : d_model // 2].cos()
    return table


_CHUNK = 1024
"""Number of positions computed at a time: the float64 angles of all positions would take much more memory than the table."""


def _angles(start: int, max_seq_len: int, frequency: Float[Tensor, "pairs"]) -> Float[Tensor, "rows pairs"]:
    """Return position times frequency in float64, for at most ``_CHUNK`` positions from ``start``."""
    return torch.arange(start, min(start + _CHUNK, max_seq_len), dtype=torch.float64)[:, None] * frequency


@implements(components.SinusoidalConfig)
class Sinusoidal(TabulatedPositionEncoding):
    """Sinusoidal position encoding, added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    config: TransformerConfig
    table: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        c = self.config
        assert isinstance(c.position, components.SinusoidalConfig)
        return {"table": sinusoidal_table(c.n_positions, c.d_model, c.position.base, dtype)}

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"]:
        """Look up the encoding of each position."""
        return self.table[positions]


@implements(components.Sinusoidal2dConfig)
class Sinusoidal2d(TabulatedPositionEncoding):
    """2D sinusoidal encoding: half of the vector for a patch's row, half for its column (He et al. 2022, section 3); 0 for class tokens."""

    config: VisionTransformerConfig
    table: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Compute the encodings of a grid of patches, preceded by zeros if there is a class token."""
        c = self.config
        assert isinstance(c, VisionTransformerConfig) and isinstance(c.position, components.Sinusoidal2dConfig)
        side, half = c.grid, c.d_model // 2
        line = sinusoidal_table(side, half, c.position.base, dtype)
        grid = torch.cat([line[:, None].expand(-1, side, -1), line[None].expand(side, -1, -1)], -1).reshape(side * side, -1)
        return {"table": torch.cat([grid.new_zeros(c.n_positions - len(grid), 2 * half), grid])}

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"]:
        """Look up the encoding of each patch."""
        return self.table[positions]


@implements(components.LearnedPositionConfig)
class LearnedPosition(PositionEncoding):
    """Learned position embeddings, added to the token embeddings (Gehring et al. 2017, section 3.1)."""

    def __init__(self, config: TransformerConfig, causal: bool) -> None:
        """Initialize a table of one embedding per position, ``table``."""
        super().__init__(config, causal)
        self.table = nn.Embedding(config.n_positions, config.d_model)

    def forward(self, positions: Int[Tensor, "#batch length"]) -> Float[Tensor, "#batch length d_model"]:
        """Look up the embedding of each position."""
        return self.table(positions)


def resize_position_grid(table: Float[Tensor, "old_positions d_model"], n_positions: int) -> Float[Tensor, "new_positions d_model"]:
    """Resize learned position embeddings of a square grid of patches by bicubic interpolation (Dosovitskiy et al. 2021, section 3.2).

    The embeddings of a class token and a distillation token, which precede the grid, are unchanged.

    Args:
        table: embeddings of a square grid, with or without tokens before it.
        n_positions: new number of positions, including the tokens before the grid that ``table`` has.
    """
    old, new = math.isqrt(len(table)), math.isqrt(n_positions)
    n_prefix = len(table) - old**2
    assert n_prefix == n_positions - new**2 and n_prefix in (0, 1, 2)
    grid = table[n_prefix:].reshape(1, old, old, -1).permute(0, 3, 1, 2)  # (1, d_model, rows, columns)
    grid = F.interpolate(grid, (new, new), mode="bicubic", align_corners=False)
    return torch.cat([table[:n_prefix], grid.permute(0, 2, 3, 1).reshape(new * new, -1)])


def resize_position_table(table: Float[Tensor, "old_positions d_model"], n_positions: int) -> Float[Tensor, "new_positions d_model"]:
    """Resize learned position embeddings of text to ``n_positions``.

    A shorter table is the beginning of the old one. A longer table interpolates the old one linearly, so that its last embedding equals the
    last old embedding, like the position interpolation of rotary embeddings (Chen et al. 2023, section 3).
    """
    if n_positions <= len(table):
        return table[:n_positions]
    return F.interpolate(table.T[None], n_positions, mode="linear", align_corners=True)[0].T


@implements(components.RotaryConfig)
class Rotary(TabulatedPositionEncoding):
    """Rotary position embedding (RoPE): queries and keys are rotated by angles proportional to their position (Su et al. 2021).

    ``Attention.forward`` and ``Attention.project_kv`` apply the rotation with ``apply_rotary``. The tables have one entry per distinct
    pair of base and scaling. Those of a length-dependent scaling are for texts that fill the context window.

    Attributes:
        rotations: the distinct pairs of base and scaling.
        cycle: index in ``rotations`` of the first blocks, which later blocks repeat.
        by_length: whether the frequencies of each rotation depend on the length of the text.
    """

    config: TransformerConfig
    cos: Float[Tensor, "rotations n_positions pairs"]
    sin: Float[Tensor, "rotations n_positions pairs"]

    def __init__(self, config: TransformerConfig, causal: bool) -> None:
        """Compute the tables in the default dtype."""
        assert isinstance(config.position, components.RotaryConfig)
        rotations = config.position.rotations
        self.rotations = list(dict.fromkeys(rotations))
        self.cycle = [self.rotations.index(rotation) for rotation in rotations]
        self.by_length = [scaling.LENGTH_DEPENDENT for _, scaling in self.rotations]
        super().__init__(config, causal)

    def frequencies(self, index: int, lengths: Int[Tensor, "*lengths"] | None = None) -> RotaryFrequencies:
        """Return the frequencies of a rotation; ``lengths`` is that of ``rotary_frequencies``."""
        base, scaling = self.rotations[index]
        return rotary_frequencies(scaling, base, self.config.rotary_dim, self.config.n_positions, lengths)

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Compute the cosines and sines of the rotation angles of every position."""
        c, n = self.config, len(self.rotations)
        cos, sin = (torch.empty(n, c.n_positions, c.rotary_dim // 2, dtype=dtype) for _ in range(2))
        for index in range(n):
            theta, scale = self.frequencies(index)
            for start in range(0, c.n_positions, _CHUNK):
                angles = _angles(start, c.n_positions, theta)
                cos[index, start : start + _CHUNK] = angles.cos() * scale
                sin[index, start : start + _CHUNK] = angles.sin() * scale
        return {"cos": cos, "sin": sin}

    def text_lengths(self, positions: Int[Tensor, "#batch length"], segments: Int[Tensor, "batch length"]) -> Tensor | None:
        """Return the length of the text of each token, (batch, length); None if no frequency depends on it."""
        if not any(self.by_length):
            return None
        ends = (positions + 1).expand_as(segments)
        lengths = ends.new_zeros(len(segments), segments.shape[1] + 1)  # per segment id, which is at most the number of tokens
        return lengths.scatter_reduce(1, segments, ends, "amax").gather(1, segments)

    def rotary_cycle(
        self, positions: Int[Tensor, "#batch length"], lengths: Int[Tensor, "#batch #length"] | None = None
    ) -> list[RotaryCosSin | None]:
        """Look up the cosines and sines of each position, or compute those that depend on ``lengths``."""
        found: list[RotaryCosSin] = []
        for index, by_length in enumerate(self.by_length):
            if by_length and lengths is not None:
                theta, scale = self.frequencies(index, lengths)
                angles = positions[..., None] * theta
                cos, sin = ((x * scale).to(self.cos.dtype) for x in (angles.cos(), angles.sin()))
            else:
                cos, sin = self.cos[index][positions], self.sin[index][positions]
            found.append(RotaryCosSin(cos[:, None], sin[:, None]))
        return [found[index] for index in self.cycle]


@operation("rotary")
def rotate_pairs(
    x: Float[Tensor, "batch heads length d_head"], cos: Float[Tensor, "#batch 1 length pairs"], sin: Float[Tensor, "#batch 1 length pairs"]
) -> Float[Tensor, "batch heads length d_head"]:
    """Rotate the pairs (x_k, x_{k + d/2}) of the first d dimensions of each vector, with d = 2 ``pairs`` (after Su et al. 2021, eq. 34).

    Further dimensions are unchanged. Products are computed in the wider dtype of ``x`` and ``cos``.
    """
    pairs = cos.shape[-1]
    a, b, rest = x.to(torch.promote_types(x.dtype, cos.dtype)).split([pairs, pairs, x.shape[-1] - 2 * pairs], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)


def apply_rotary(x: Float[Tensor, "batch heads length d_head"], rotary: RotaryCosSin | None) -> Float[Tensor, "batch heads length d_head"]:
    """Apply RoPE: rotate each vector by the angles of its position; return ``x`` unchanged if ``rotary`` is None."""
    return x if rotary is None else rotate_pairs(x, *rotary)


def alibi_slopes(n_heads: int) -> list[float]:
    """Return the ALiBi slope of each head (Press et al. 2022, section 3).

    With n the largest power of two <= n_heads, the first n slopes are the powers 1 to n of 2^(-8 / n). The other heads get the 1st, 3rd,
    5th, ... slope of a layer with 2n heads.

    >>> alibi_slopes(8)[:3], alibi_slopes(3)
    ([0.5, 0.25, 0.125], [0.0625, 0.00390625, 0.25])
    """
    n = 2 ** int(math.log2(n_heads))
    whole = [2 ** (-8 * (h + 1) / n) for h in range(n)]
    return whole + [2 ** (-4 * (2 * h + 1) / n) for h in range(n_heads - n)]


@implements(components.AlibiConfig)
class Alibi(TabulatedPositionEncoding):
    """ALiBi, attention with linear biases: adds -m_h |i - j| to the scores (Press et al. 2022, section 3)."""

    config: TransformerConfig
    slopes: Tensor

    def tables(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"slopes": torch.tensor(alibi_slopes(self.config.n_heads), dtype=dtype)}

    def bias(
        self, queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"], *bias_parameters: Tensor
    ) -> Float[Tensor, "#batch n_heads query key"]:
        """Return -m_h |i - j| for each head h, query position i and key position j."""
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        return -self.slopes[:, None, None] * distance

    def bias_mod(self) -> BiasMod:
        """Return a function that computes -m_h |i - j| of one head h, query position i and key position j."""
        slopes = self.slopes
        return lambda head, query, key: -slopes[head] * (query - key).abs()


def relative_position_bucket(offsets: Int[Tensor, "*axes"], n_buckets: int, max_distance: int, causal: bool) -> Int[Tensor, "*axes"]:
    """Return the index of T5's bucket of each offset, key position minus query position.

    With ``causal`` all buckets are for keys before the query; otherwise half of them are for keys after the query. In either group, the
    first half of the buckets holds one distance each. The other half holds ranges of distances that grow logarithmically up to
    ``max_distance``.
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


@implements(components.RelativePositionConfig)
class RelativePositionBias(PositionEncoding):
    """T5's relative position bias: a learned scalar per head and distance bucket, added to the scores (Raffel et al. 2020, section 2.1)."""

    def __init__(self, config: TransformerConfig, causal: bool) -> None:
        """Initialize the table of biases, (n_buckets, n_heads)."""
        super().__init__(config, causal)
        assert isinstance(config.position, components.RelativePositionConfig)
        self.n_buckets, self.max_distance, self.causal = config.position.n_buckets, config.position.max_distance, causal
        self.table = nn.Embedding(self.n_buckets, config.n_heads)

    @property
    def bias_parameters(self) -> tuple[Tensor, ...]:
        """The table of biases, (n_buckets, n_heads)."""
        return (self.table.weight,)

    def bias(
        self, queries: Int[Tensor, "#batch query"], keys: Int[Tensor, "#batch key"], *bias_parameters: Tensor
    ) -> Float[Tensor, "#batch n_heads query key"]:
        """Look up the bias of each head, query position and key position."""
        (table,) = bias_parameters
        buckets = relative_position_bucket(keys[:, None, :] - queries[:, :, None], self.n_buckets, self.max_distance, self.causal)
        return F.embedding(buckets, table).permute(0, 3, 1, 2)

    def bias_mod(self) -> BiasMod:
        """Return a function that looks up the bias of one head, query position and key position."""
        (table,), sizes = self.bias_parameters, (self.n_buckets, self.max_distance, self.causal)
        return lambda head, query, key: table[relative_position_bucket(key - query, *sizes), head]


def build_position_encoding(config: TransformerConfig, causal: bool) -> PositionEncoding:
    """Build the position encoding of one stack; ``causal`` means that no query of the stack attends to later keys."""
    return implementation(config.position)(config, causal)
