"""Recurrent layers over PyTorch's RNN, LSTM and GRU: a bidirectional encoder, and a unidirectional stack that also runs step by step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.component_registry import build, implements
from transom.config.recurrent import CellConfig, GruConfig, LstmConfig, RecurrentSeq2SeqConfig, RnnConfig
from transom.layers.context import LayerContext
from transom.layers.dropout import Dropout
from transom.layers.observe import observe

State = tuple[Tensor, ...]
"""State of a layer: h, and for an LSTM c; (rows, width) each."""


class CellFunctions(NamedTuple):
    """PyTorch's implementations of a cell.

    Attributes:
        sequence: module class that runs whole sequences.
        step: function of one time step, with the same weights.
    """

    sequence: type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]
    step: Callable[..., Any]


implements(RnnConfig)(lambda cell: CellFunctions(nn.RNN, torch.rnn_tanh_cell))
implements(LstmConfig)(lambda cell: CellFunctions(nn.LSTM, torch.lstm_cell))
implements(GruConfig)(lambda cell: CellFunctions(nn.GRU, torch.gru_cell))


class LengthBucket(NamedTuple):
    """Sequences of similar length, unpacked from packed rows to one row per sequence.

    Attributes:
        indices: index of each token in the flattened packed rows; padding repeats the index of the sequence's first token.
        token_mask: True at tokens, False at padding.
    """

    indices: Int[Tensor, "rows length"]
    token_mask: Bool[Tensor, "rows length"]


class RecurrentLayer(nn.Module):
    """One unidirectional recurrent layer; ``transom/config/recurrent.py`` gives the equations of the cells.

    PyTorch stacks the weights of all gates: ``weight_ih_l0`` (W) and ``weight_hh_l0`` (U), each with a bias.
    """

    def __init__(self, cell: CellConfig, d_in: int, d_out: int) -> None:
        """Initialize a layer with inputs of width ``d_in`` and a state of width ``d_out``."""
        super().__init__()
        kernels: CellFunctions = build(cell)
        self.rnn: nn.RNNBase = kernels.sequence(d_in, d_out, batch_first=True)
        self._step, self.n_states = kernels.step, cell.N_STATES

    def forward(self, x: Float[Tensor, "rows length d_in"], state: State | None = None) -> tuple[Float[Tensor, "rows length d_out"], State]:
        """Run whole sequences; return h at each time step, and the final state.

        Args:
            x: inputs.
            state: initial state; None for zeros.
        """
        h = state or self.zero_state(x)
        before = tuple(each[None].to(x.dtype).contiguous() for each in h)  # as cuDNN requires
        y, after = self.rnn(x, before if self.n_states > 1 else before[0])
        return y, tuple(each[0] for each in (after if self.n_states > 1 else (after,)))

    def forward_packed(self, x: Float[Tensor, "batch length d_in"], buckets: Sequence[LengthBucket]) -> Float[Tensor, "batch length d_out"]:
        """Run each sequence of packed rows from a zero state, bucket by bucket; return h at each token, 0 at padding."""
        flat, n = x.flatten(0, 1), x.shape[0] * x.shape[1]
        states, order = [x.new_zeros(1, self.rnn.hidden_size)], [torch.zeros(1, dtype=torch.long, device=x.device)]
        for indices, token_mask in buckets:
            y = self(flat.index_select(0, indices.flatten()).view(*indices.shape, -1))[0]
            states.append(y.flatten(0, 1).index_select(0, token_mask.flatten().nonzero()[:, 0]))
            order.append(indices[token_mask])
        backward_rnn = torch.zeros(n, dtype=torch.long, device=x.device)
        backward_rnn[torch.cat(order[1:])] = torch.arange(1, sum(map(len, order)), device=x.device)
        return torch.cat([part.to(states[-1].dtype) for part in states]).index_select(0, backward_rnn).view(*x.shape[:2], -1)

    def step(self, x: Float[Tensor, "rows d_in"], state: State) -> State:
        """Run one time step; return the new state."""
        after = self._step(x, state if self.n_states > 1 else state[0], *self.rnn.all_weights[0])
        return tuple(after) if self.n_states > 1 else (after,)

    def zero_state(self, like: Float[Tensor, "rows ..."]) -> State:
        """Return the zero initial state for ``len(like)`` rows."""
        return (like.new_zeros(len(like), self.rnn.hidden_size),) * self.n_states


def reversal_indices(segments: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Return the indices that reverse the sequence of each row; padding keeps its index.

    >>> reversal_indices(torch.tensor([[1, 1, 1], [1, 1, 0]])).tolist()
    [[2, 1, 0], [1, 0, 2]]
    """
    indices = torch.arange(segments.shape[1], device=segments.device)[None]
    mirrored = (segments > 0).sum(1, keepdim=True) - 1 - indices
    return torch.where(mirrored < 0, indices, mirrored)


def bucket_by_length(segments: Int[Tensor, "batch length"]) -> list[LengthBucket] | None:
    """Split packed rows into sequences, in buckets of similar length; return None if each row is one sequence without padding.

    The longest sequence of a bucket has less than twice the tokens of the shortest, so that less than half of a bucket is padding.

    >>> [bucket.indices.tolist() for bucket in bucket_by_length(torch.tensor([[1, 1, 2, 3, 3], [1, 1, 1, 1, 0]]))]
    [[[2]], [[0, 1], [3, 4]], [[5, 6, 7, 8]]]
    """
    if bool((segments == 1).all()):
        return None
    is_first = ((segments > 0) & (segments != F.pad(segments, (1, 0))[:, :-1])).flatten()
    lengths = torch.bincount((is_first.cumsum(0) - 1)[segments.flatten() > 0])
    firsts, exponents = is_first.nonzero()[:, 0], lengths.double().log2().floor()
    buckets = []
    for exponent in exponents.unique():
        chosen = exponents == exponent
        steps = torch.arange(int(lengths[chosen].max()), device=segments.device)
        token_mask = steps < lengths[chosen][:, None]
        buckets.append(LengthBucket(firsts[chosen][:, None] + steps.where(token_mask, 0), token_mask))
    return buckets


class RecurrentEncoderLayer(nn.Module):
    """One encoder layer: a forward RNN, or a forward and a backward RNN of half the width each (Bahdanau et al. 2015).

    In both directions padding is read after all tokens, so that it does not influence the states at tokens.
    """

    def __init__(self, config: RecurrentSeq2SeqConfig, d_in: int) -> None:
        """Initialize the forward RNN and, if the configuration is bidirectional, the backward RNN."""
        super().__init__()
        width = config.d_model // config.n_directions
        self.forward_rnn = RecurrentLayer(config.cell, d_in, width)
        self.backward_rnn = RecurrentLayer(config.cell, d_in, width) if config.bidirectional else None

    def forward(
        self, x: Float[Tensor, "batch source d_in"], reversal: Int[Tensor, "batch source"]
    ) -> Float[Tensor, "batch source d_model"]:
        """Return the state at each token, both directions concatenated; ``reversal`` is the result of ``reversal_indices``."""
        y = self.forward_rnn(x)[0]
        if self.backward_rnn is None:
            return y
        index = reversal[..., None]
        return torch.cat([y, self.backward_rnn(x.take_along_dim(index, 1))[0].take_along_dim(index, 1)], -1)

    def final_states(
        self, y: Float[Tensor, "batch source d_model"], reversal: Int[Tensor, "batch source"]
    ) -> Float[Tensor, "batch d_model"]:
        """Return the final states, concatenated: of the forward RNN at the last token, of the backward RNN at the first token."""
        width, last = self.forward_rnn.rnn.hidden_size, y.take_along_dim(reversal[:, :1, None], 1)[:, 0]
        return torch.cat([last[:, :width], y[:, 0, width:]], -1)


class RecurrentEncoder(nn.Module):
    """A stack of encoder layers with dropout between them."""

    def __init__(self, config: RecurrentSeq2SeqConfig) -> None:
        super().__init__()
        self.layers = cast(
            Sequence[RecurrentEncoderLayer], nn.ModuleList(RecurrentEncoderLayer(config, d_in) for d_in in config.encoder_inputs)
        )
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "batch source d_embedding"], segments: Int[Tensor, "batch source"], ctx: LayerContext = LayerContext()
    ) -> tuple[Float[Tensor, "batch source d_model"], list[Float[Tensor, "batch d_model"]]]:
        """Encode one source per row; return the states of the last layer, and the final state of each layer.

        Args:
            x: embedded tokens.
            segments: 1 at tokens, 0 at padding.
            ctx: context with the observer.
        """
        reversal, final_states = reversal_indices(segments), []
        for i, layer in enumerate(self.layers):
            x = layer(self.dropout(x) if i else x, reversal)
            x = observe(ctx, self, f"layers.{i}.h", x)
            final_states.append(layer.final_states(x, reversal))
        return x, final_states


class RecurrentStack(nn.Module):
    """A stack of unidirectional recurrent layers with dropout between them (Zaremba et al. 2014, section 3.1).

    Attributes:
        supports_packing: whether a row may hold several sequences; if False, every row is processed as one sequence, without a check.
    """

    supports_packing = True

    def __init__(self, cell: CellConfig, inputs: Sequence[int], d_model: int, dropout: float) -> None:
        """Initialize one layer per input width in ``inputs``."""
        super().__init__()
        self.layers = cast(Sequence[RecurrentLayer], nn.ModuleList(RecurrentLayer(cell, d_in, d_model) for d_in in inputs))
        self.dropout = Dropout(dropout)

    def forward_from(
        self, x: Float[Tensor, "rows length d_in"], states: Sequence[State | None], ctx: LayerContext = LayerContext()
    ) -> tuple[Float[Tensor, "rows length d_model"], tuple[State, ...]]:
        """Run whole sequences from given states; return h of the last layer at each time step, and the final state of each layer."""
        after = []
        for i, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            x, end = layer(self.dropout(x) if i else x, state)
            x = observe(ctx, self, f"layers.{i}.h", x)
            after.append(end)
        return x, tuple(after)

    def forward_packed(
        self, x: Float[Tensor, "batch length d_in"], segments: Int[Tensor, "batch length"], ctx: LayerContext = LayerContext()
    ) -> Float[Tensor, "batch length d_model"]:
        """Run each sequence of packed rows from a zero state; return h of the last layer at each token, 0 at padding."""
        buckets = bucket_by_length(segments) if self.supports_packing else None
        for i, layer in enumerate(self.layers):
            x = self.dropout(x) if i else x
            x = layer(x)[0] if buckets is None else layer.forward_packed(x, buckets)
            x = observe(ctx, self, f"layers.{i}.h", x)
        return x

    def step(self, x: Float[Tensor, "rows d_in"], states: Sequence[State], ctx: LayerContext = LayerContext()) -> tuple[State, ...]:
        """Run one time step; return the new state of each layer."""
        after = []
        for i, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            h, *c = layer.step(self.dropout(x) if i else x, state)
            x = h[:, None]
            x = observe(ctx, self, f"layers.{i}.h", x)
            x = x[:, 0]
            after.append((x, *c))
        return tuple(after)
