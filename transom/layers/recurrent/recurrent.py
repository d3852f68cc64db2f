"""Recurrent layers: cells over PyTorch's kernels, an encoder that reads both ways, and a stack that can be run or taken step by step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.components import build, implements
from transom.config.recurrent import CellBrick, Gru, Lstm, RecurrentSeq2Seq, Rnn
from transom.layers.context import LayerContext
from transom.layers.dropout import Dropout
from transom.layers.observe import observe

State = tuple[Tensor, ...]
"""A layer's state, (rows, width) each: h, and behind it an LSTM's c."""


class CellKernels(NamedTuple):
    """PyTorch's kernels of a cell.

    Attributes:
        rows: whole rows at once.
        step: one step, by the same weights.
    """

    rows: type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]
    step: Callable[..., Any]


implements(Rnn)(lambda cell: CellKernels(nn.RNN, torch.rnn_tanh_cell))
implements(Lstm)(lambda cell: CellKernels(nn.LSTM, torch.lstm_cell))
implements(Gru)(lambda cell: CellKernels(nn.GRU, torch.gru_cell))


class Group(NamedTuple):
    """Sequences of like length out of packed rows.

    Attributes:
        places: of each token in the flattened rows; behind a sequence's end its first place again.
        real: True where there is a token.
    """

    places: Int[Tensor, "rows length"]
    real: Bool[Tensor, "rows length"]


class Recurrence(nn.Module):
    """One recurrent layer in one direction; the equations are the cells' (``config.recurrent``).

    PyTorch's kernels keep the maps of all gates as one, under the names ``weight_ih_l0`` (W) and ``weight_hh_l0`` (U), and a bias for each.
    """

    def __init__(self, cell: CellBrick, d_in: int, d_out: int) -> None:
        """Make the maps from ``d_in`` columns to a state of ``d_out``."""
        super().__init__()
        kernels: CellKernels = build(cell)
        self.kernel: nn.RNNBase = kernels.rows(d_in, d_out, batch_first=True)
        self._step, self.n_states = kernels.step, cell.STATES

    def forward(self, x: Float[Tensor, "rows length d_in"], state: State | None = None) -> tuple[Float[Tensor, "rows length d_out"], State]:
        """Read whole rows; return the state h at each place, and the state at the end.

        Args:
            x: what is read, from the first place on.
            state: before the first place; left out, zeros.
        """
        h = state or self.zeros(x)
        before = tuple(each[None].to(x.dtype) for each in h)
        y, after = self.kernel(x, before if self.n_states > 1 else before[0])
        return y, tuple(each[0] for each in (after if self.n_states > 1 else (after,)))

    def read(self, x: Float[Tensor, "batch length d_in"], groups: Sequence[Group]) -> Float[Tensor, "batch length d_out"]:
        """Read packed rows, each sequence from zeros, group by group; return the states at each place, zeros in padding."""
        flat, n = x.flatten(0, 1), x.shape[0] * x.shape[1]
        states, order = [x.new_zeros(1, self.kernel.hidden_size)], [torch.zeros(1, dtype=torch.long, device=x.device)]
        for places, real in groups:
            y = self(flat.index_select(0, places.flatten()).view(*places.shape, -1))[0]
            states.append(y.flatten(0, 1).index_select(0, real.flatten().nonzero()[:, 0]))
            order.append(places[real])
        back = torch.zeros(n, dtype=torch.long, device=x.device)
        back[torch.cat(order[1:])] = torch.arange(1, sum(map(len, order)), device=x.device)
        return torch.cat([part.to(states[-1].dtype) for part in states]).index_select(0, back).view(*x.shape[:2], -1)

    def step(self, x: Float[Tensor, "rows d_in"], state: State) -> State:
        """Read one place."""
        after = self._step(x, state if self.n_states > 1 else state[0], *self.kernel.all_weights[0])
        return tuple(after) if self.n_states > 1 else (after,)

    def zeros(self, like: Float[Tensor, "rows ..."]) -> State:
        """Give the state before anything was read."""
        return (like.new_zeros(len(like), self.kernel.hidden_size),) * self.n_states


def backwards(segments: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Give, for each place of a row that holds one sequence, the place that mirrors it there; padding stays where it is.

    >>> backwards(torch.tensor([[1, 1, 1], [1, 1, 0]])).tolist()
    [[2, 1, 0], [1, 0, 2]]
    """
    places = torch.arange(segments.shape[1], device=segments.device)[None]
    mirrored = (segments > 0).sum(1, keepdim=True) - 1 - places
    return torch.where(mirrored < 0, places, mirrored)


def groups_of(segments: Int[Tensor, "batch length"]) -> list[Group] | None:
    """Take packed rows apart, so that no sequence reads another's state; None where each row is one sequence without padding.

    A group's longest sequence has less than twice the tokens of its shortest, so that less than half of what is read is padding.

    >>> [group.places.tolist() for group in groups_of(torch.tensor([[1, 1, 2, 3, 3], [1, 1, 1, 1, 0]]))]
    [[[2]], [[0, 1], [3, 4]], [[5, 6, 7, 8]]]
    """
    if bool((segments == 1).all()):
        return None
    begins = ((segments > 0) & (segments != F.pad(segments, (1, 0))[:, :-1])).flatten()
    lengths = torch.bincount((begins.cumsum(0) - 1)[segments.flatten() > 0])
    firsts, magnitudes = begins.nonzero()[:, 0], lengths.double().log2().floor()
    groups = []
    for magnitude in magnitudes.unique():
        chosen = magnitudes == magnitude
        steps = torch.arange(int(lengths[chosen].max()), device=segments.device)
        real = steps < lengths[chosen][:, None]
        groups.append(Group(firsts[chosen][:, None] + steps.where(real, 0), real))
    return groups


class EncoderLayer(nn.Module):
    """One layer over the source: a recurrence from its start, or two of half the width, one of them from its end (Bahdanau et al. 2015).

    Behind the last token there is padding only, in either direction, so that nothing is read of it that is used.
    """

    def __init__(self, config: RecurrentSeq2Seq, d_in: int) -> None:
        """Make one recurrence, or two."""
        super().__init__()
        width = config.d_model // config.n_directions
        self.ahead = Recurrence(config.cell, d_in, width)
        self.back = Recurrence(config.cell, d_in, width) if config.bidirectional else None

    def forward(self, x: Float[Tensor, "batch source d_in"], mirror: Int[Tensor, "batch source"]) -> Float[Tensor, "batch source d_model"]:
        """Return the states at each place, of both directions side by side."""
        y = self.ahead(x)[0]
        if self.back is None:
            return y
        turned = mirror[..., None]
        return torch.cat([y, self.back(x.take_along_dim(turned, 1))[0].take_along_dim(turned, 1)], -1)

    def ends(self, y: Float[Tensor, "batch source d_model"], mirror: Int[Tensor, "batch source"]) -> Float[Tensor, "batch d_model"]:
        """Return the state of each direction where it ends: at the last token, and at the first."""
        width, last = self.ahead.kernel.hidden_size, y.take_along_dim(mirror[:, :1, None], 1)[:, 0]
        return torch.cat([last[:, :width], y[:, 0, width:]], -1)


class RecurrentEncoder(nn.Module):
    """Recurrent layers over the source, one upon the other, with dropout between them."""

    def __init__(self, config: RecurrentSeq2Seq) -> None:
        """Make the layers."""
        super().__init__()
        self.layers = cast(Sequence[EncoderLayer], nn.ModuleList(EncoderLayer(config, d_in) for d_in in config.encoder_inputs))
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "batch source d_embedding"], segments: Int[Tensor, "batch source"], ctx: LayerContext = LayerContext()
    ) -> tuple[Float[Tensor, "batch source d_model"], list[Float[Tensor, "batch d_model"]]]:
        """Read sources, one a row; return the last layer's states, and where each layer ends.

        Args:
            x: the embedded tokens.
            segments: 1 for tokens, 0 for padding.
            ctx: has the observer.
        """
        mirror, ends = backwards(segments), []
        for i, layer in enumerate(self.layers):
            x = layer(self.dropout(x) if i else x, mirror)
            x = observe(ctx, self, f"layers.{i}.h", x)
            ends.append(layer.ends(x, mirror))
        return x, ends


class RecurrentStack(nn.Module):
    """Recurrent layers from left to right, one upon the other, with dropout between them (Zaremba et al. 2014, section 3.1).

    Attributes:
        packed: whether a row may hold several sequences; if not, the values of ``segments`` are not read.
    """

    packed = True

    def __init__(self, cell: CellBrick, inputs: Sequence[int], d_model: int, dropout: float) -> None:
        """Make a layer for each of the widths ``inputs`` that are read."""
        super().__init__()
        self.layers = cast(Sequence[Recurrence], nn.ModuleList(Recurrence(cell, d_in, d_model) for d_in in inputs))
        self.dropout = Dropout(dropout)

    def run(
        self, x: Float[Tensor, "rows length d_in"], states: Sequence[State | None], ctx: LayerContext = LayerContext()
    ) -> tuple[Float[Tensor, "rows length d_model"], tuple[State, ...]]:
        """Read whole rows; return the last layer's states at each place, and each layer's state at the end."""
        after = []
        for i, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            x, end = layer(self.dropout(x) if i else x, state)
            x = observe(ctx, self, f"layers.{i}.h", x)
            after.append(end)
        return x, tuple(after)

    def read(
        self, x: Float[Tensor, "batch length d_in"], segments: Int[Tensor, "batch length"], ctx: LayerContext = LayerContext()
    ) -> Float[Tensor, "batch length d_model"]:
        """Read rows of one or more sequences, each from a state of zeros; return the last layer's states, zeros in padding."""
        groups = groups_of(segments) if self.packed else None
        for i, layer in enumerate(self.layers):
            x = self.dropout(x) if i else x
            x = layer(x)[0] if groups is None else layer.read(x, groups)
            x = observe(ctx, self, f"layers.{i}.h", x)
        return x

    def step(self, x: Float[Tensor, "rows d_in"], states: Sequence[State], ctx: LayerContext = LayerContext()) -> tuple[State, ...]:
        """Read one place; return each layer's state behind it."""
        after = []
        for i, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            h, *c = layer.step(self.dropout(x) if i else x, state)
            x = h[:, None]
            x = observe(ctx, self, f"layers.{i}.h", x)
            x = x[:, 0]
            after.append((x, *c))
        return tuple(after)
