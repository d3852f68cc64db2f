"""Quantities of recurrent layers that follow from their inputs and states: gates, cell states, and the output vectors of decoders."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transom.inspection.activations import Activations, sequences_of, stack_input
from transom.layers.recurrent.recurrent_decoder import AdditiveDecoder, InputFeedingDecoder, LuongDecoder, PlainDecoder
from transom.layers.recurrent.recurrent_layers import RecurrentLayer, reversal_indices
from transom.models.base import LanguageModel


class UnrolledLayer(NamedTuple):
    """A recurrent layer over whole sequences, in the order in which it reads them.

    Attributes:
        x: inputs x_t.
        before: states h_{t-1}.
        initial_c: initial state c_0 of an LSTM.
        starts: True at the first token of each sequence.
        order: indices that restore the order of the text, if the layer reads it backwards; else None.
    """

    x: Tensor
    before: Tensor
    initial_c: Tensor
    starts: Tensor
    order: Tensor | None


def unroll(a: Activations, path: str) -> UnrolledLayer:
    """Collect inputs and previous states of the recurrent layer at ``path``."""
    stack, _, rest = path.partition(".layers.")
    number, _, direction = rest.partition(".")
    layer, module, segments = int(number), a.module(path), sequences_of(a, stack).segments
    x = a[f"{stack}.layers.{layer - 1}.h"] if layer else first_input(a, stack)
    h, order = a[f"{stack}.layers.{layer}.h"], None
    if direction:
        width = module.rnn.hidden_size
        h = h[..., :width] if direction == "forward_rnn" else h[..., width:]
        if direction == "backward_rnn":
            order = reversal_indices(segments)[..., None]
            x, h = x.take_along_dim(order, 1), h.take_along_dim(order, 1)
    state = decoder_state(a, layer) if isinstance(a.module(stack), PlainDecoder) else module.zero_state(x)
    # Only a language model restarts at each sequence of a row; the others run through padding on the left.
    starts = (segments != F.pad(segments, (1, 0))[:, :-1]) & (segments > 0) & isinstance(a.model, LanguageModel)
    starts[:, 0] = True
    before = torch.where(starts[..., None], state[0][:, None].to(h), F.pad(h, (0, 0, 1, 0))[:, :-1])
    return UnrolledLayer(x, before, state[-1].to(h), starts, order)


def decoder_state(a: Activations, layer: int) -> tuple[Tensor, ...]:
    """Return the initial state of a decoder layer, which is computed from the encoder's final states."""
    reversal = reversal_indices(a.batch.source.segments)
    encoder = a.module("encoder")
    final_states = [each.final_states(a[f"encoder.layers.{i}.h"], reversal) for i, each in enumerate(encoder.layers)]
    state: tuple[Tensor, ...] = a.module("decoder").initial_state(final_states).layers[layer]
    return state


def first_input(a: Activations, stack: str) -> Tensor:
    """Return the inputs of the first layer: embeddings, in attention decoders with the context or the previous attentional vector."""
    y, module = stack_input(a, stack), a.module(stack)
    if isinstance(module, AdditiveDecoder):
        return torch.cat([y, a[f"{stack}.cross.z"][:, 0].to(y)], -1)
    if isinstance(module, InputFeedingDecoder):
        return torch.cat([y, F.pad(a[f"{stack}.attentional"], (0, 0, 1, 0))[:, :-1].to(y)], -1)
    return y


def attentional(a: Activations, path: str) -> Tensor | None:
    """Compute Luong's attentional vectors tanh(W_c [c_t; h_t]); None for other decoders."""
    module = a.module(path)
    if not isinstance(module, LuongDecoder):
        return None
    h = a[f"{path}.layers.{len(module.layers) - 1}.h"]
    c = a[f"{path}.cross.z"][:, 0]
    return torch.tanh(module.output_proj(torch.cat([c, h.to(c)], -1)))


def maxout(a: Activations, path: str) -> Tensor | None:
    """Compute the maxout layer over [s_t; y_{t-1}; c_t] (Bahdanau et al. 2015, A.2.2); None for other decoders."""
    module = a.module(path)
    if not isinstance(module, AdditiveDecoder):
        return None
    y = stack_input(a, path)
    parts = [a[f"{path}.layers.{len(module.layers) - 1}.h"].to(y), y, a[f"{path}.cross.z"][:, 0].to(y)]
    return module.maxout(torch.cat(parts, -1)).unflatten(-1, (-1, 2)).amax(-1)


def recurrent_out(a: Activations, path: str) -> Tensor:
    """Return the output vectors of a recurrent stack, which the next part of the model reads."""
    special = attentional(a, path), maxout(a, path)
    return next((x for x in special if x is not None), a[f"{path}.layers.{len(a.module(path).layers) - 1}.h"])


def states(a: Activations, path: str) -> Tensor | None:
    """Return the states of one direction of an encoder layer; None for other layers, whose states are a site."""
    layer, _, direction = path.rpartition(".")
    if direction not in ("forward_rnn", "backward_rnn"):
        return None
    width = a.module(path).rnn.hidden_size
    h = a[f"{layer}.h"]
    return h[..., :width] if direction == "forward_rnn" else h[..., width:]


def gates(a: Activations, path: str) -> dict[str, Tensor]:
    """Compute the gates of every time step by their equations, and for an LSTM the cell state c_t = f c_{t-1} + i g."""
    unrolled = unroll(a, path)
    found = cell_gates(a.module(path), unrolled.x, unrolled.before)
    if "f" in found:
        found["c"] = _cell_states(found, unrolled)
    return found if unrolled.order is None else {name: x.take_along_dim(unrolled.order, 1) for name, x in found.items()}


def cell_gates(module: RecurrentLayer, x: Tensor, before: Tensor) -> dict[str, Tensor]:
    """Compute the gates from inputs x_t and previous states h_{t-1}, of one or all time steps."""
    w_ih, w_hh, b_ih, b_hh = module.rnn.all_weights[0]
    from_input, from_state = F.linear(x, w_ih, b_ih), F.linear(before, w_hh, b_hh)
    if isinstance(module.rnn, nn.LSTM):
        i, f, g, o = (from_input + from_state).chunk(4, -1)
        return {"i": i.sigmoid(), "f": f.sigmoid(), "g": g.tanh(), "o": o.sigmoid()}
    if isinstance(module.rnn, nn.GRU):
        (x_r, x_z, x_n), (h_r, h_z, h_n) = from_input.chunk(3, -1), from_state.chunk(3, -1)
        r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        return {"r": r, "z": z, "n": torch.tanh(x_n + r * h_n)}
    return {"pre": from_input + from_state}


def cell(module: RecurrentLayer, x: Tensor, h: Tensor, c: Tensor) -> dict[str, Tensor]:
    """Compute the gates and the new states of one time step from x_t, h_{t-1} and, for an LSTM, c_{t-1}."""
    found = cell_gates(module, x, h)
    if isinstance(module.rnn, nn.LSTM):
        found["c"] = found["f"] * c + found["i"] * found["g"]
        return found | {"h": found["o"] * found["c"].tanh()}
    if isinstance(module.rnn, nn.GRU):
        return found | {"h": (1 - found["z"]) * found["n"] + found["z"] * h}
    return found | {"h": found["pre"].tanh()}


def _cell_states(found: dict[str, Tensor], unrolled: UnrolledLayer) -> Tensor:
    """Run c_t = f_t c_{t-1} + i_t g_t from the initial state at the first token of each sequence."""
    c, states = unrolled.initial_c, list[Tensor]()
    for t in range(unrolled.x.shape[1]):
        c = torch.where(unrolled.starts[:, t, None], unrolled.initial_c, c)
        c = found["f"][:, t] * c + found["i"][:, t] * found["g"][:, t]
        states.append(c)
    return torch.stack(states, 1)
