"""Changes of one site: replaced values, attention weights that are computed in another way, and removed residual connections."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.errors import ConfigError
from transom.inspection.activations import heads_of
from transom.inspection.derive_attention import AttentionInputs
from transom.inspection.edits.schemas import EditConfig
from transom.layers.attention import Attention, AttentionArgs, attention_weights
from transom.layers.context import AttentionContext
from transom.layers.observe import Visit


class Counter:
    """Counts how often an edit was applied to a tensor.

    Attributes:
        config: the edit; None for a change that is built without one.
        longest: largest number of positions that the edit has seen; 0 if no pass reached its site. Unknown in a compiled pass.
    """

    def __init__(self, device: torch.device, config: EditConfig | None = None) -> None:
        """Start at 0; passes of a compiled model count on ``device``."""
        self.config, self.longest, self._n, self._lock = config, 0, 0, Lock()
        with torch.inference_mode(False):
            self._n_compiled = torch.zeros((), dtype=torch.long, device=device)

    def reset(self) -> None:
        """Start again at 0."""
        with self._lock:
            self.longest = self._n = 0
            self._n_compiled.zero_()

    @property
    def n(self) -> int:
        """Number of tensors that the edit has changed."""
        return self._n + int(self._n_compiled)

    def saw(self, n_positions: int, hit: bool) -> bool:
        """Note that the edit saw a tensor with ``n_positions`` positions; count it if it changes some. Return ``hit``."""
        if torch.compiler.is_compiling():
            self._n_compiled.add_(int(hit))
            return hit
        with self._lock:
            self.longest = max(self.longest, n_positions)
            self._n += hit
        return hit


def index_mask(indices: Sequence[int] | None, size: int, like: Tensor) -> Bool[Tensor, "size"]:
    """Return True at the indices of an axis; everywhere if they are None."""
    places = torch.arange(size, device=like.device)
    return places >= 0 if indices is None else torch.isin(places, torch.tensor(indices, device=like.device))


class Selection(NamedTuple):
    """The part of a tensor that an edit changes.

    Attributes:
        indices: indices per axis, counted from the last one: -1, -2, ...; axes that are not listed are changed as a whole.
        position_axis: axis of the positions; None if the tensor has none.
    """

    indices: dict[int, tuple[int, ...]]
    position_axis: int | None

    def n_positions(self, x: Tensor) -> int:
        """Return the number of positions of ``x``, or of its elements if it has no such axis."""
        return x.numel() if self.position_axis is None else x.shape[self.position_axis]

    def hits(self, x: Tensor) -> bool:
        """Return whether ``x`` has one of the selected positions."""
        positions = None if self.position_axis is None else self.indices.get(self.position_axis)
        return x.numel() > 0 and (positions is None or min(positions) < self.n_positions(x))

    def where(self, x: Tensor) -> Bool[Tensor, "..."] | None:
        """Return True at the selected elements, broadcastable to ``x``; None if all are selected."""
        masks = [
            index_mask(indices, x.shape[axis], x).reshape(*(-1 if a == axis + x.ndim else 1 for a in range(x.ndim)))
            for axis, indices in self.indices.items()
        ]
        found = None
        for mask in masks:
            found = mask if found is None else found & mask
        return found


class NewValues(NamedTuple):
    """Values for a tensor; ``where`` is False where there are none, and None if there are for all elements."""

    value: Float[Tensor, "..."]
    where: Bool[Tensor, "..."] | None = None


ComputeValues = Callable[[Tensor, Visit], NewValues]
"""Returns the values that replace a tensor."""


@dataclass(frozen=True, eq=False)
class ValueEdit:
    """Replaces the selected elements of a tensor by computed values."""

    compute: ComputeValues
    selection: Selection
    counter: Counter
    reads: tuple[str, ...] = ()

    def apply(self, x: Tensor, visit: Visit) -> Tensor:
        """Return ``x`` with new values at the selected elements."""
        if not self.counter.saw(self.selection.n_positions(x), self.selection.hits(x)):
            return x
        new, where = self.compute(x, visit), self.selection.where(x)
        if new.where is not None:
            where = new.where if where is None else where & new.where
        value = new.value.to(x).expand_as(x)
        return value if where is None else torch.where(where, value, x)


def constant(value: float | Tensor) -> ComputeValues:
    """Return the function that gives the same values for every tensor."""
    return lambda x, visit: NewValues(torch.as_tensor(value, dtype=x.dtype, device=x.device))


def scaled(factor: float) -> ComputeValues:
    """Return the function that multiplies by ``factor``."""
    return lambda x, visit: NewValues(x * factor)


def batch_mean(position_axis: int | None, by_row: bool = False) -> ComputeValues:
    """Return the function that computes the mean over all tokens of the batch, padding excluded.

    Args:
        position_axis: axis of the positions; None for tokens of an expert, on the first axis.
        by_row: take the mean over the tokens of each row.
    """

    def compute(x: Tensor, visit: Visit) -> NewValues:
        if position_axis is None:
            return NewValues(x.mean(0, keepdim=True))
        rows_and_positions, mask = (0, position_axis + x.ndim), visit.ctx.token_mask
        weight = x.new_ones(1, 1) if mask is None else mask.to(x)
        shape = [weight.shape[rows_and_positions.index(a)] if a in rows_and_positions else 1 for a in range(x.ndim)]
        weight, axes = weight.reshape(shape).expand_as(x), rows_and_positions[by_row:]
        return NewValues((x * weight).sum(axes, keepdim=True) / weight.sum(axes, keepdim=True))

    return compute


def other_row(seed: int) -> ComputeValues:
    """Return the function that gives each row the values of another row, ``1 + seed % (rows - 1)`` rows further."""

    def compute(x: Tensor, visit: Visit) -> NewValues:
        if len(x) < 2:
            raise ConfigError("resample: expected reference texts or a batch of at least two rows, found one row; give texts")
        return NewValues(x.roll(1 + seed % (len(x) - 1), 0))

    return compute


class OtherPass:
    """Values of other passes at the same positions; each row of a batch takes those of one pass, drawn by a seed."""

    MAX_ROWS = 4096
    """Rows after which the draws repeat."""

    def __init__(self, values: Sequence[Float[Tensor, "..."]], position_axis: int | None, seed: int = 0) -> None:
        """Store the values of one pass or several, each with a first axis of size 1."""
        self.axis = position_axis
        n = 1 if position_axis is None else max(x.shape[position_axis] for x in values)
        self.values = torch.cat([x if position_axis is None else _pad(x, position_axis, n) for x in values])
        self.lengths = torch.tensor([n if position_axis is None else x.shape[position_axis] for x in values], device=values[0].device)
        self.draws = torch.randint(len(values), (self.MAX_ROWS,), generator=torch.Generator().manual_seed(seed)).to(values[0].device)

    def __call__(self, x: Tensor, visit: Visit) -> NewValues:
        """Return the values for the rows of ``x``, and False at positions that a drawn pass lacks."""
        draws = self.draws[torch.arange(len(x), device=x.device) % self.MAX_ROWS]
        values = self.values[draws]
        if self.axis is None:
            return NewValues(values)
        size, axis = x.shape[self.axis], self.axis + x.ndim
        exists = torch.arange(size, device=x.device) < self.lengths[draws][:, None]
        shape = [exists.shape[(0, axis).index(a)] if a in (0, axis) else 1 for a in range(x.ndim)]
        return NewValues(_pad(values, self.axis, size), exists.reshape(shape))


def _pad(x: Tensor, axis: int, size: int) -> Tensor:
    """Cut an axis to ``size``, or pad it with zeros."""
    kept = x.narrow(axis, 0, min(size, x.shape[axis]))
    rest = list(x.shape)
    rest[axis] = size - kept.shape[axis]
    return torch.cat([kept, x.new_zeros(rest)], axis)


@dataclass(frozen=True, eq=False)
class ResidualEdit:
    """Subtracts the input of a sub-layer from the sum of its residual connection."""

    input: str
    counter: Counter

    @property
    def reads(self) -> tuple[str, ...]:
        """The input of the sub-layer."""
        return (self.input,)

    def apply(self, x: Tensor, visit: Visit) -> Tensor:
        """Return f(x) for x + f(x)."""
        self.counter.saw(x.shape[1], True)
        return x - visit.observer.read(self.input)


@dataclass(frozen=True, eq=False)
class AttentionChange:
    """A change of how an attention layer computes its weights.

    Attributes:
        counter: counter of the edit.
        heads: query heads; None for all.
        unscaled: whether the scores are not divided by sqrt(d_k).
        zero_after: whether the mask acts after the softmax.
        queries: positions from which the keys are hidden; None for all.
        keys: positions of the keys that are hidden; None for none.
        hidden: True where a key is hidden from a query, in place of ``queries`` and ``keys``.
    """

    counter: Counter
    heads: tuple[int, ...] | None = None
    unscaled: bool = False
    zero_after: bool = False
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    hidden: Bool[Tensor, "#batch #n_heads query key"] | None = None

    def applies(self, n_queries: int, n_keys: int) -> bool:
        """Return whether the pass has the positions of the change, and count it."""
        found = (self.queries is None or min(self.queries) < n_queries) and (self.keys is None or min(self.keys) < n_keys)
        return self.counter.saw(max(n_queries, n_keys), found and n_queries > 0)

    def hides(self, heads: Int[Tensor, "heads"], n_queries: int, n_keys: int) -> Bool[Tensor, "#batch #heads query key"] | None:
        """Return True where a key is hidden from a query of the given heads; None if no key is hidden."""
        if self.hidden is not None:
            return self.hidden if self.hidden.shape[1] == 1 else self.hidden[:, heads]
        if self.keys is None:
            return None
        queries, keys = index_mask(self.queries, n_queries, heads), index_mask(self.keys, n_keys, heads)
        return self.of(heads) & queries[:, None] & keys

    def of(self, heads: Int[Tensor, "heads"]) -> Bool[Tensor, "1 heads 1 1"]:
        """Return whether the change is for each of the given heads."""
        chosen = heads >= 0 if self.heads is None else torch.isin(heads, torch.tensor(self.heads, device=heads.device))
        return chosen[None, :, None, None]


@dataclass(frozen=True, eq=False)
class AttentionEdit:
    """Recomputes the output of the heads of an attention layer from its queries, keys and values, with changed weights.

    The weights are computed by the layer's own functions, without dropout. Heads and queries that no change concerns keep the kernel's
    output.

    Attributes:
        path: path of the layer in its block, ``attn`` or ``cross``.
        changes: changes, all of which act on the same weights.
    """

    path: str
    changes: tuple[AttentionChange, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """Queries, keys and values of the layer."""
        return tuple(f"{self.path}.{name}" for name in "qkv")

    def apply(self, z: Float[Tensor, "batch n_heads query d_value"], visit: Visit) -> Float[Tensor, "batch n_heads query d_value"]:
        """Return the head outputs A V with the changed weights A."""
        q, k, v = (visit.observer.read(address) for address in self.reads)
        changes = [each for each in self.changes if each.applies(q.shape[2], k.shape[2])]
        if not changes:
            return z
        show = visit.observer.wants(f"{self.path}.weights")
        named = [each.heads for each in changes if each.heads is not None]
        every = show or len(named) < len(changes)
        heads = list(range(q.shape[1])) if every else sorted({head for each in named for head in each})
        args = _arguments(visit.module, visit.ctx)
        weights, touched = self.weights(AttentionInputs.select(q, k, args, heads), changes, heads)
        if show:
            visit.observer.record(f"{self.path}.weights", weights)
        v = heads_of(v, q.shape[1], heads)
        index = torch.tensor(heads, device=z.device)
        new = torch.where(touched, weights.to(v.dtype) @ v, z.index_select(1, index))
        return z.index_copy(1, index, new.to(z.dtype))

    def weights(
        self, inputs: AttentionInputs, changes: Sequence[AttentionChange], heads: Sequence[int]
    ) -> tuple[Float[Tensor, "batch heads query key"], Bool[Tensor, "#batch heads #query 1"]]:
        """Compute the changed weights of some heads; also return True at the queries whose weights are changed."""
        q, k, args = inputs
        index = torch.tensor(heads, device=q.device)
        factor, after = q.new_ones(1, len(heads), 1, 1), torch.zeros(1, len(heads), 1, 1, dtype=torch.bool, device=q.device)
        touched, mask = after, args.mask
        for each in changes:
            chosen, hidden = each.of(index), each.hides(index, q.shape[2], k.shape[2])
            if each.unscaled:
                factor = torch.where(chosen, q.new_full((), q.shape[3] ** 0.5), factor)
            if each.zero_after:
                after = after | chosen
            if hidden is not None:
                mask = ~hidden if mask is None else mask & ~hidden
            touched = touched | (chosen if hidden is None else hidden.any(-1, keepdim=True))
        scores = inputs._replace(q=q * factor).scores()
        weights = attention_weights(scores, args._replace(mask=mask))
        if any(each.zero_after for each in changes) and mask is not None:
            weights = torch.where(after, attention_weights(scores, args._replace(mask=None)) * mask, weights)
        return weights, touched


def _arguments(module: object, ctx: AttentionContext) -> AttentionArgs:
    """Return the arguments of an attention layer, with mask and bias as matrices."""
    assert isinstance(module, Attention)
    if ctx.block_mask is not None:
        mask, bias = ctx.block_mask.dense()
        ctx = replace(ctx, mask=mask, bias=bias, block_mask=None)
    return module.attention_args(ctx)
