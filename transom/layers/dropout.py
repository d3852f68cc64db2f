"""Dropout with masks from random bytes, because on a CPU generating random floats would dominate the cost of dropout.

Two sources of random bytes:

- PyTorch's generator, one number after another (``draw_dropout_mask``). It serves forward passes outside a training step, and runs that
  were begun with it.
- A counter-based generator (Salmon et al. 2011), which computes the byte of an element from its key (``KeyedMasks``): seed, optimizer step,
  module, sample, copy of the sample, and the element's indices. A training step opens ``keyed_dropout``, and each forward pass in it
  ``keyed_rows``. So the same elements are dropped however a batch is split into micro-batches, processes, tokens, heads or channels, and
  however it is padded.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.layers.dispatch import operation

BYTE, WORD = 2**8, 2**32
"""Number of different values of one byte, and of four bytes. Dropout probabilities below 1/256 are sampled with four bytes."""

_GOLDEN = -0x61C8864680B583EB
"""Increment of SplitMix64 (Steele et al. 2014), as a signed number: 2^64 divided by the golden ratio."""

_MIX = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
"""Shifts and factors of SplitMix64's finalizer (Stafford's variant 13); a last shift by ``_LAST_SHIFT`` follows."""

_LAST_SHIFT = 31


def round_probability(p: float) -> float:
    """Round a probability below 1 to a multiple of 1/256, the resolution of a random byte; if it is at most 1/512, of 2^-32 instead."""
    levels = BYTE if round(p * BYTE) else WORD
    return min(round(p * levels), levels - 1) / levels


def resolution(p: float) -> tuple[int, torch.dtype]:
    """Return the number of levels and the type of the random numbers with which probability ``p`` is sampled."""
    return (BYTE, torch.int8) if p >= 1 / BYTE else (WORD, torch.int32)


def _numbers(words: Int[Tensor, "..."], dtype: torch.dtype) -> Int[Tensor, "..."]:
    """Return the signed numbers of 8 or 32 bits that 64-bit words consist of, the lowest first.

    A compiled graph shifts them out of the words: Inductor (torch 2.13) may overwrite a tensor whose view in another dtype is still to be
    read.
    """
    if not torch.compiler.is_compiling():
        return words.view(dtype)
    bits = 8 * dtype.itemsize
    below_top = torch.arange(64 - bits, -1, -bits, device=words.device)
    return (words[..., None] << below_top >> 64 - bits).flatten(-2)


def _scale_kept(numbers: Int[Tensor, "*axes"], p: float, dtype: torch.dtype) -> Float[Tensor, "*axes"]:
    """Return 1 / (1 - p) where a random number is below the quantile 1 - ``p``, else 0; the numbers are overwritten."""
    return numbers.lt_(kept_below(p)).to(dtype).mul_(1 / (1 - p))


def kept_below(p: float) -> int:
    """Return the signed random number below which an element is kept, the quantile 1 - ``p``."""
    levels = resolution(p)[0]
    return round((1 - p) * levels) - levels // 2


def draw_dropout_mask(x: Float[Tensor, "*axes"], p: float) -> Float[Tensor, "*axes"]:
    """Draw a dropout mask: 1 / (1 - p) with probability 1 - p, else 0, with the shape and dtype of ``x``.

    One 64-bit number of PyTorch's generator yields eight elements, or two if ``p`` is below 1/256.
    """
    n, dtype = x.numel(), resolution(p)[1]
    words = torch.empty(-(-n * dtype.itemsize // 8), dtype=torch.int64).random_(-(2**63), None)
    return _scale_kept(_numbers(words, dtype)[:n], p, x.dtype).view(x.shape)


def _mix(z: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
    """Apply SplitMix64's finalizer in place: z ^= z >> 30, z *= a, z ^= z >> 27, z *= b, z ^= z >> 31, in unsigned 64-bit arithmetic."""
    shifted = torch.empty_like(z)
    for shift, factor in _MIX:
        z.bitwise_xor_(_shift_right(z, shift, shifted)).mul_(factor)
    return z.bitwise_xor_(_shift_right(z, _LAST_SHIFT, shifted))


def _shift_right(z: Int[Tensor, "*axes"], n: int, out: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
    """Compute z >> n of unsigned z into ``out``; PyTorch's shift of int64 copies the sign, which the mask removes."""
    return torch.bitwise_right_shift(z, n, out=out).bitwise_and_(2 ** (64 - n) - 1)


def _absorb(key: Int[Tensor, "..."], value: Int[Tensor, "..."] | int) -> Int[Tensor, "..."]:
    """Return the key derived from ``key`` and ``value``: output number ``value`` of SplitMix64 with seed ``key``."""
    return _mix(key + ((value + 1) * _GOLDEN if isinstance(value, Tensor) else _signed((value + 1) * _GOLDEN)))


def _absorb_number(key: int, value: int) -> int:
    """Return ``_absorb`` of plain integers, as a signed number."""
    return int(_absorb(torch.tensor(_signed(key)), value))


def _signed(value: int) -> int:
    """Reduce an integer modulo 2^64 to the range of int64."""
    return (value + 2**63) % 2**64 - 2**63


class WordRange(NamedTuple):
    """The 64-bit words of a tensor's keyed mask: those at each token of each seed, counted along the last axis.

    Attributes:
        seeds: seed of each row and each index of the axes between row and token.
        first_token: index of the first token.
        n_tokens: number of tokens.
        first_word: index of the first word of each token.
        n_skipped: elements of that word before the first element of the tensor.
        width: elements per token.
        n_words: words per token.
    """

    seeds: Int[Tensor, "rows *axes"]
    first_token: int
    n_tokens: int
    first_word: int
    n_skipped: int
    width: int
    n_words: int


class KeyedMasks(NamedTuple):
    """Dropout masks of one call of a module, a function of keys and indices.

    The element with indices (i_1, ..., i_n) after the row is dropped by byte i_n mod 8 of a 64-bit word: output number
    i_{n-1} 2^32 + i_n // 8 of SplitMix64, whose seed is the key of the row with i_1 to i_{n-2} hashed into it. With a probability below
    1/256 a word yields two elements instead of eight.

    Attributes:
        keys: key of each row.
        offsets: indices of the first element along the axes after the rows; missing ones are 0.
    """

    keys: Int[Tensor, "rows"]
    offsets: tuple[int, ...] = ()

    def draw(self, x: Float[Tensor, "rows *axes"], p: float) -> Float[Tensor, "rows *axes"]:
        """Compute the mask of ``x``: 1 / (1 - p) with probability 1 - p, else 0; any part of a tensor has that part of its mask."""
        if not x.numel():
            return torch.empty_like(x)
        found = self.words(x.shape, p)
        tokens, of_token = _indices(found.first_token, found.n_tokens, x), _indices(found.first_word, found.n_words, x)
        bits = _numbers(_hash_words(found.seeds, tokens, of_token), resolution(p)[1])
        return _scale_kept(bits.narrow(-1, found.n_skipped, found.width), p, x.dtype).view(x.shape)

    def words(self, shape: Sequence[int], p: float) -> WordRange:
        """Return the words of the mask of a tensor with this shape; vectors have one token per row, and numbers one of width 1."""
        offsets, axes = self.offsets, tuple(shape[1:])
        if len(axes) < 2:
            axes, offsets = (1, *axes) if axes else (1, 1), (0, *offsets)
        *outer, n_tokens, width = axes
        offsets = (*offsets, *[0] * len(axes))
        per_word = 8 // resolution(p)[1].itemsize
        first_word, n_skipped = divmod(offsets[len(axes) - 1], per_word)
        n_words = -(-(n_skipped + width) // per_word)
        return WordRange(self._of_outer(outer, offsets), offsets[len(axes) - 2], n_tokens, first_word, n_skipped, width, n_words)

    def draw_at(
        self,
        x: Float[Tensor, "tiles n_heads query key"],
        p: float,
        rows: Int[Tensor, "tiles"],
        queries: Int[Tensor, "tiles query"],
        keys: Int[Tensor, "tiles key"],
        ordered: bool = False,
    ) -> Float[Tensor, "tiles n_heads query key"]:
        """Compute the mask of gathered attention weights: element (t, h, i, j) is that of (rows[t], h, queries[t, i], keys[t, j]).

        ``ordered`` keys come in runs of eight successive ones, the first of which is a multiple of eight: each run is hashed once.
        """
        head, query, key = (*self.offsets, 0, 0, 0)[:3]
        dtype = resolution(p)[1]
        seeds = KeyedMasks(self.keys.index_select(0, rows))._of_outer([x.shape[1]], (head,))
        bytes_before = (keys[:, None] + key) * dtype.itemsize
        if ordered and key % 8 == 0:
            words = _hash_words(seeds, queries[:, None] + query, bytes_before[..., :: 8 // dtype.itemsize] // 8)
            return _scale_kept(_numbers(words, dtype), p, x.dtype)
        words = _hash_words(seeds, queries[:, None] + query, bytes_before // 8)
        return _scale_kept(words.bitwise_right_shift_(bytes_before[..., None, :] % 8 * 8).to(dtype), p, x.dtype)

    def _of_outer(self, sizes: Sequence[int], offsets: Sequence[int]) -> Int[Tensor, "rows *axes"]:
        """Return the keys with the indices along the outer axes, such as the heads, hashed into them."""
        keys = self.keys
        for size, offset in zip(sizes, offsets, strict=False):
            keys = _absorb(keys[..., None], _indices(offset, size, keys))
        return keys


def _indices(first: int, n: int, like: Tensor) -> Int[Tensor, "length"]:
    return torch.arange(first, first + n, device=like.device)


def _hash_words(keys: Int[Tensor, "*axes"], tokens: Int[Tensor, "..."], words: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return the 64-bit words (*axes, token, word) at the indices of tokens (..., token) and of words in a token (..., word)."""
    return _absorb(keys[..., None, None], (tokens[..., :, None] << 32) + words[..., None, :])


class _StepKey(NamedTuple):
    """Key of an optimizer step, and the number of copies of each sample in its batches."""

    key: int
    n_copies: int


@dataclass(frozen=True)
class _RowKeys:
    """Keys of the rows of a forward pass, and the number of calls of each module so far in this pass."""

    rows: Int[Tensor, "rows"]
    calls: dict[int, int] = field(default_factory=dict)


_STEP: ContextVar[_StepKey | None] = ContextVar("dropout_step", default=None)
_ROWS: ContextVar[_RowKeys | None] = ContextVar("dropout_rows", default=None)


class _TracedRows:
    """The rows in place of ``_ROWS`` while ``torch.compile`` traces a forward pass, because its graphs cannot read context variables."""

    def __init__(self) -> None:
        self.keys: _RowKeys | None = None


_TRACED_ROWS = _TracedRows()


@contextmanager
def keyed_dropout(seed: int, step: int, n_copies: int = 1) -> Iterator[None]:
    """Within the ``with`` block, ``keyed_rows`` takes effect: dropout masks are keyed by seed and optimizer step.

    Args:
        seed: seed of the run.
        step: number of the optimizer step.
        n_copies: copies of each sample in a batch, one after another along the rows; each copy has its own masks (R-Drop).
    """
    token = _STEP.set(_StepKey(_absorb_number(_absorb_number(0, seed), step), n_copies))
    try:
        yield
    finally:
        _STEP.reset(token)


@contextmanager
def keyed_rows(sample_ids: Sequence[int], device: torch.device) -> Iterator[None]:
    """Open a forward pass over rows that hold these samples; without an enclosing ``keyed_dropout`` this has no effect.

    A pass that is repeated, such as one without gradients before it, has the same masks. With pipeline parallelism each stage opens it for
    each of its micro-batches.
    """
    step = _STEP.get()
    if step is None or not sample_ids:
        yield
        return
    samples = torch.tensor(sample_ids, dtype=torch.int64)
    copies = torch.arange(len(samples)) * step.n_copies // len(samples)
    with _entered(_absorb(_absorb(torch.tensor(step.key), samples), copies).to(device)):
        yield


def _present_rows() -> _RowKeys | None:
    return _TRACED_ROWS.keys if torch.compiler.is_compiling() else _ROWS.get()


@contextmanager
def _entered(rows: Int[Tensor, "rows"]) -> Iterator[None]:
    if torch.compiler.is_compiling():
        before, _TRACED_ROWS.keys = _TRACED_ROWS.keys, _RowKeys(rows)
        try:
            yield
        finally:
            _TRACED_ROWS.keys = before
        return
    token = _ROWS.set(_RowKeys(rows))
    try:
        yield
    finally:
        _ROWS.reset(token)


class DropoutSite:
    """Base of modules that draw dropout masks.

    A module that is called several times per pass has different masks in each call: those of its call number, counted from 0 in each pass.
    So a module must be called equally often before this call, whatever the padding.

    Attributes:
        site: hash of the module's name in the whole model; None before ``name_dropout_sites``, without keyed masks.
        offsets: indices of the first element that this process holds, along the axes after the rows: (token, channel), for attention
            weights (head, query, key), for pooled vectors and tokens of an expert (channel,); missing ones are 0. Parallel plans set them
            per pass, if a process holds a part of a whole tensor, which then has that part of the mask of the whole.
    """

    site: int | None = None
    offsets: tuple[int, ...] = ()

    def dropout_masks(self, x: Float[Tensor, "rows *axes"]) -> KeyedMasks | None:
        """Return the masks of the next call, on ``x``; None if the pass has no keys or keys of other rows than those of ``x``."""
        keys = _present_rows()
        if keys is None or self.site is None or x.dim() == 0 or len(x) != len(keys.rows):
            return None
        call = keys.calls.get(self.site, 0)
        keys.calls[self.site] = call + 1
        return KeyedMasks(_absorb(_absorb(keys.rows, self.site), call), self.offsets)


def name_dropout_sites(model: nn.Module) -> None:
    """Set ``site`` of all dropout sites of a model; one that has been named keeps its name, also in a part of the model."""
    for name, module in model.named_modules():
        if isinstance(module, DropoutSite) and module.site is None:
            module.site = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little", signed=True)


@contextmanager
def keyed_tokens(site: DropoutSite, x: Float[Tensor, "*axes width"]) -> Iterator[None]:
    """Within the ``with`` block, the rows are the tokens of ``x``, flattened; ``site.offsets`` is (first token,)."""
    masks = site.dropout_masks(x) if x.dim() == 3 else None
    if masks is None:
        yield
        return
    tokens = _indices((*masks.offsets, 0)[0], x.shape[1], masks.keys)
    with _entered(_absorb(masks.keys[:, None], tokens).flatten()):
        yield


@contextmanager
def selected_rows(indices: Int[Tensor, "selected"], n_rows: int) -> Iterator[None]:
    """Within the ``with`` block, the rows are those at ``indices``, followed by padding up to ``n_rows`` rows."""
    keys = _present_rows()
    if keys is None:
        yield
        return
    with _entered(F.pad(keys.rows.index_select(0, indices), (0, n_rows - len(indices)))):
        yield


def keep_call_numbers() -> None:
    """Let modules count their calls from here on in the present context only, so that a copy of it begins with the present numbers."""
    if (keys := _present_rows()) is not None:
        _ROWS.set(_RowKeys(keys.rows, dict(keys.calls)))


def row_keys() -> Int[Tensor, "rows"] | None:
    """Return the keys of the rows of the present forward pass; None without keyed masks."""
    keys = _present_rows()
    return None if keys is None else keys.rows


@contextmanager
def rows_keyed_by(keys: Int[Tensor, "rows"] | None) -> Iterator[None]:
    """Within the ``with`` block, the rows have these keys, as those of rows that came from other processes; None changes nothing."""
    if keys is None:
        yield
        return
    with _entered(keys):
        yield


@operation("dropout_add")
def add_masked(residual: Float[Tensor, "*axes"], x: Float[Tensor, "*axes"], mask: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Compute residual + x * mask."""
    return residual + x * mask


@operation("keyed_dropout")
def drop_keyed(
    x: Float[Tensor, "rows *axes"], residual: Float[Tensor, "rows *axes"] | None, masks: KeyedMasks, p: float
) -> Float[Tensor, "rows *axes"]:
    """Compute x * mask, or residual + x * mask, with the keyed mask of ``x``."""
    mask = masks.draw(x, p)
    return x * mask if residual is None else add_masked(residual, x, mask)


def dropout(x: Float[Tensor, "*axes"], p: float, training: bool, masks: KeyedMasks | None = None) -> Float[Tensor, "*axes"]:
    """Zero elements with probability ``p`` and scale the others by 1 / (1 - p), in training only (Srivastava et al. 2014).

    ``masks`` are the keyed masks; None for PyTorch's generator. On a CPU, and with keyed masks, ``p`` is first rounded by
    ``round_probability``.
    """
    if not training or round_probability(p) == 0:
        return x
    if masks is not None:
        return drop_keyed(x, None, masks, round_probability(p))
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return x * draw_dropout_mask(x, round_probability(p))


def dropout_add(
    residual: Float[Tensor, "*axes"], x: Float[Tensor, "*axes"], p: float, training: bool, masks: KeyedMasks | None = None
) -> Float[Tensor, "*axes"]:
    """Compute ``residual + dropout(x, p, training, masks)``."""
    if not training or round_probability(p) == 0 or (masks is None and x.device.type != "cpu"):
        return residual + dropout(x, p, training)
    q = round_probability(p)
    return add_masked(residual, x, draw_dropout_mask(x, q)) if masks is None else drop_keyed(x, residual, masks, q)


class Dropout(DropoutSite, nn.Module):
    """Module that applies ``dropout`` with a fixed probability ``p``."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Apply dropout in training; return ``x`` in evaluation."""
        return dropout(x, self.p, self.training, self._masks(x))

    def add(self, residual: Float[Tensor, "*axes"], x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return ``residual + dropout(x)``."""
        return dropout_add(residual, x, self.p, self.training, self._masks(x))

    def _masks(self, x: Float[Tensor, "*axes"]) -> KeyedMasks | None:
        return self.dropout_masks(x) if self.training and self.p else None
