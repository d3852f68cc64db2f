"""The steps of recurrent layers for one token, and of a recurrent decoder's attention over the source."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transom.inspection.activations import Activations, stack_input
from transom.inspection.certify import certify
from transom.inspection.derive_recurrent import UnrolledLayer, decoder_state, unroll
from transom.inspection.explain.attention import MAX_KEYS, N_LARGEST
from transom.inspection.explain.builder import Builder, number, numbers, weighted_sum
from transom.inspection.explain.expressions import Expression, Maximum, Number, Product, Sum, dot, exact, sigmoid, tanh
from transom.inspection.explain.softmax import SoftmaxLabels, softmax_steps
from transom.inspection.messages.tables import message
from transom.layers.recurrent.recurrent_decoder import (
    AdditiveAttention,
    AdditiveDecoder,
    DotAttention,
    InputFeedingDecoder,
    LuongDecoder,
    PlainDecoder,
    SourceAttention,
)
from transom.layers.recurrent.recurrent_layers import RecurrentEncoder, RecurrentLayer, reversal_indices


class CellSteps:
    """Steps of one time step of a recurrent layer.

    Attributes:
        b: the hand calculation.
        a: quantities of the pass; the states of the layer are those that its recurrence read.
        path: path of the layer.
        t: position of the token in its text.
        at: index of the token in the order in which the layer reads.
        u: index of the unit that is worked out.
        x: input of the step.
        before: state before the step.
    """

    def __init__(self, b: Builder, a: Activations, path: str, t: int) -> None:
        """Collect input, previous state and weights."""
        self.b, self.a, self.path, self.t = b, a, path, t
        self.module: RecurrentLayer = a.module(path)
        self.unrolled: UnrolledLayer = unroll(a, path)
        order = self.unrolled.order
        self.at = t if order is None else int(order[0, t, 0])
        self.x, self.before = self.unrolled.x[0, self.at], self.unrolled.before[0, self.at]
        self.width = self.module.rnn.hidden_size
        self.u = b.at(self.width)
        self.w_ih, self.w_hh, self.b_ih, self.b_hh = self.module.rnn.all_weights[0]

    def quantity(self, name: str) -> Tensor:
        """Return a gate or state of this step."""
        return self.a[f"{self.path}.{name}"][0, self.t, self.u]

    def add(self, h: Tensor) -> None:
        """Add all steps; ``h`` is the state after this step as the kernel computed it."""
        b, t = self.b, self.t
        b.values(f"x_{t}", message("explain.recurrent.input"), self.x)
        b.values("h_before", message("explain.recurrent.state_before"), self.before)
        if isinstance(self.module.rnn, nn.LSTM):
            self._lstm(h[self.u])
        elif isinstance(self.module.rnn, nn.GRU):
            self._gru(h[self.u])
        else:
            pre = self._linear("pre", 0, "x W + h_before U", self.quantity("pre"))
            b.calculate(f"h_{t}[{self.u}]", "h = tanh(pre)", tanh(pre), h[self.u])

    def _linear(self, name: str, gate: int, formula: str, traced: Tensor | None = None) -> Number:
        """Add the sum of both products and both biases of one unit of a gate."""
        row = gate * self.width + self.u
        products = dot(numbers(self.x), numbers(self.w_ih[row])) + dot(numbers(self.before), numbers(self.w_hh[row]))
        expression = products + number(self.b_ih[row]) + number(self.b_hh[row])
        return self.b.calculate(f"{name}_{self.t}[{self.u}]", f"{formula} + b + b'", expression, traced)

    def _lstm(self, h: Tensor) -> None:
        """Add gates, cell state and state of an LSTM."""
        b, t, u = self.b, self.t, self.u
        gates = dict[str, Number]()
        for row, name in enumerate("ifgo"):  # input gate, forget gate, candidate, output gate
            pre = self._linear(f"pre_{name}", row, f"{name}: x W_{name} + h_before U_{name}")
            written: Expression = tanh(pre) if name == "g" else sigmoid(pre)
            formula = message(f"explain.recurrent.gates.{name}")
            gates[name] = b.calculate(f"{name}_{t}[{u}]", formula, written, self.quantity(name))
        c_before = self._c_before()
        b.values(f"c_before[{u}]", message("explain.recurrent.cell_before"), c_before[None])
        cell = gates["f"] * number(c_before) + gates["i"] * gates["g"]
        c = b.calculate(f"c_{t}[{u}]", message("explain.recurrent.cell"), cell, self.quantity("c"))
        b.calculate(f"h_{t}[{u}]", "h = o tanh(c)", gates["o"] * tanh(c), h)

    def _c_before(self) -> Tensor:
        """Return the cell state of the unit before this step."""
        if bool(self.unrolled.starts[0, self.at]):
            return self.unrolled.initial_c[0, self.u]
        order = self.unrolled.order
        previous = self.at - 1 if order is None else int(order[0, self.at - 1, 0])
        return self.a[f"{self.path}.c"][0, previous, self.u]

    def _gru(self, h: Tensor) -> None:
        """Add gates, candidate and state of a GRU."""
        b, t, u = self.b, self.t, self.u
        r, z = (
            b.calculate(
                f"{name}_{t}[{u}]",
                message(f"explain.recurrent.gates.{name}"),
                sigmoid(self._linear(f"pre_{name}", row, f"{name}: x W_{name} + h_before U_{name}")),
                self.quantity(name),
            )
            for row, name in enumerate("rz")  # reset gate, update gate
        )
        row = 2 * self.width + u
        of_input = b.calculate(
            f"x W_n + b [{u}]",
            message("explain.recurrent.candidate_input"),
            dot(numbers(self.x), numbers(self.w_ih[row])) + number(self.b_ih[row]),
        )
        of_state = b.calculate(
            f"h U_n + b' [{u}]",
            message("explain.recurrent.candidate_state"),
            dot(numbers(self.before), numbers(self.w_hh[row])) + number(self.b_hh[row]),
        )
        n = b.calculate(f"n_{t}[{u}]", "n = tanh(x W_n + b + r (h_before U_n + b'))", tanh(of_input + r * of_state), self.quantity("n"))
        state = z * number(self.before[u]) + (exact(1) - z) * n
        b.calculate(f"h_{t}[{u}]", "h = z h_before + (1 - z) n", state, h)


def recurrent_sections(b: Builder, stack: str, layer: int, t: int, names: Sequence[str]) -> None:
    """Add the sections of one layer of a recurrent stack for one token, and of a decoder's attention.

    Args:
        b: the hand calculation.
        stack: "encoder" or "decoder".
        layer: index of the layer.
        t: position of the token.
        names: symbols of the source tokens.
    """
    module = b.a.module(stack)
    if isinstance(module, AdditiveDecoder):
        _attention_sections(b, stack, t, names, "before")
    b.section(message("explain.recurrent.layer", layer=str(layer), token=str(t)))
    path = f"{stack}.layers.{layer}"
    site, loops = f"{path}.h", isinstance(module, AdditiveDecoder | InputFeedingDecoder)
    sites = b.edits.at(site, t if loops else None)
    h = (sites[0].before if sites else b.a[site])[0, t]
    start = 0
    if isinstance(module, RecurrentEncoder):
        half = module.layers[layer].forward_rnn.rnn.hidden_size
        backward = b.at(len(h)) >= half
        both = len(h) > half
        units = {"units": str(half)} | ({"backward": str(len(h) - half)} if both else {})
        b.note(message("explain.recurrent.both" if both else "explain.recurrent.forward", **units))
        start = half if backward else 0
        path, h = f"{path}.{'backward_rnn' if backward else 'forward_rnn'}", h[half:] if backward else h[:half]
    elif loops and layer == 0:
        with_context = isinstance(module, AdditiveDecoder)
        b.note(message("explain.recurrent.with_context" if with_context else "explain.recurrent.with_attentional"))
    if isinstance(module, PlainDecoder) and t == 0:
        _bridge_steps(b, module, layer)
    # An edit inside a loop over time steps changes the next step too; one of a whole layer's states does not.
    a = b.a if loops or not sites else Activations(b.a.model, b.a.batch, {**b.a.recorded, site: sites[0].before})
    steps = CellSteps(b, a, path, t)
    steps.add(h)
    b.after_edits(f"h_{t}[{steps.u}]", site, (0, t, start + steps.u), number(h[steps.u]), sites)
    b.values(f"h_{t}", message("explain.recurrent.state_after"), b.a[site][0, t, start : start + len(h)])
    if isinstance(module, LuongDecoder):
        _attention_sections(b, stack, t, names, "after")
        _attentional_steps(b, stack, module, t)
    if isinstance(module, AdditiveDecoder):
        _maxout_steps(b, stack, module, t)


def _bridge_steps(b: Builder, module: PlainDecoder, layer: int) -> None:
    """Add one element of the initial state of a decoder layer, which is computed from a final state of the encoder."""
    a, encoder = b.a, b.a.module("encoder")
    lower = max(len(encoder.layers) - len(module.layers) + layer, 0)  # the top layers correspond to each other
    states, reversal = a[f"encoder.layers.{lower}.h"], reversal_indices(a.batch.source.segments)
    end, initial = encoder.layers[lower].final_states(states, reversal)[0], decoder_state(a, layer)[0][0]
    d = b.at(len(initial))
    b.values("h_end", message("explain.recurrent.final_state", layer=str(lower)), end)
    pre = b.linear(f"pre[{d}]", "h_end W", module.bridge[layer], end, d, None)
    b.calculate(f"h_before[{d}]", message("explain.recurrent.initial_state"), tanh(pre), initial[d])


def _attention_sections(b: Builder, stack: str, t: int, names: Sequence[str], state: str) -> None:
    """Add scores, weights and context vector of the attention over the source; the query is the ``state`` "before" or "after" a token."""
    a, path = b.a, f"{stack}.cross"
    module: SourceAttention = a.module(path)
    q, k, v, z = a[f"{path}.q"][0, 0, t], a[f"{path}.k"][0, 0], a[f"{path}.v"][0, 0], a[f"{path}.z"][0, 0, t]
    weights = a[f"{path}.weights"][0, 0, t]
    b.section(message("explain.recurrent.attention", token=str(t)))
    loops = isinstance(a.module(stack), AdditiveDecoder | InputFeedingDecoder)
    d = b.at(k.shape[1])
    b.after_edits(f"q[{d}]", f"{path}.q", (0, 0, t, d), None, b.edits.at(f"{path}.q", t if loops else None))
    kind = "query" if isinstance(module.q, nn.Identity) else "projected"
    b.values("q", message(f"explain.recurrent.{kind}.{state}", token=str(t)), q)
    if isinstance(module.k, nn.Linear):
        memory = b.unedited(f"{path}.v")[0, 0, 0]
        b.linear(f"k_0[{d}]", message("explain.recurrent.key"), module.k, memory, d, b.unedited(f"{path}.k")[0, 0, 0, d])
    b.after_edits(f"k_0[{d}]", f"{path}.k", (0, 0, 0, d))
    b.after_edits(f"v_0[{b.at(v.shape[1])}]", f"{path}.v", (0, 0, 0, b.at(v.shape[1])))
    b.values("k_0", message("explain.recurrent.first_key"), k[0])
    visible = (a.batch.source.segments[0] > 0).nonzero()[:, 0].tolist()
    largest = sorted(weights.topk(min(N_LARGEST, len(weights))).indices.tolist())
    shown = [j for j in (visible if len(visible) <= MAX_KEYS else largest) if j in visible]
    scores = _score_steps(b, module, q, k, a[f"{path}.scores"][0, 0, t], t, visible, shown)
    total, result = message("explain.softmax.sum"), message("explain.softmax.weights")
    labels = SoftmaxLabels(lambda j: f"exp(S_{t},{j})", lambda j: f"A_{t},{j} ({names[j]})", "S", total, result)
    final = softmax_steps(b, scores, shown, labels, weights)
    ordered, d = sorted(visible, key=lambda j: j not in shown), b.at(len(z))
    context = weighted_sum([final[j] for j in ordered], [number(v[j, d]) for j in ordered])
    sites = b.edits.at(f"{path}.z", t if loops else None)
    before = (sites[0].before if sites else a[f"{path}.z"])[0, 0, t]
    computed = b.calculate(f"c_{t}[{d}]", message("explain.recurrent.context"), context, before[d])
    kernel = a if not sites else Activations(a.model, a.batch, {**a.recorded, f"{path}.z": sites[0].before})
    certificate = certify(kernel, path, None, [t])
    certificate.check()
    b.check(message("explain.recurrent.checked", ratio=f"{certificate.ratio:.2g}"))
    b.after_edits(f"c_{t}[{d}]", f"{path}.z", (0, 0, t, d), computed, sites)
    b.values(f"c_{t}", message("explain.recurrent.context_vector"), z)


def _score_steps(
    b: Builder, module: SourceAttention, q: Tensor, k: Tensor, scores: Tensor, t: int, visible: Sequence[int], shown: Sequence[int]
) -> dict[int, Number]:
    """Add the score of each key; return the scores of all visible keys."""
    found = {j: number(scores[j]) for j in visible}
    for j in shown:
        if isinstance(module, DotAttention):
            found[j] = b.calculate(f"S_{t},{j}", "S = q . k", dot(numbers(q), numbers(k[j])), scores[j])
        elif isinstance(module, AdditiveAttention):
            hidden: list[Expression] = [tanh(x + y) for x, y in zip(numbers(q), numbers(k[j]), strict=True)]
            terms = [Product((v, unit)) for v, unit in zip(numbers(module.score.weight[0]), hidden, strict=True)]
            found[j] = b.calculate(f"S_{t},{j}", "S = v . tanh(q + k)", Sum(terms), scores[j])
    return found


def _attentional_steps(b: Builder, stack: str, module: LuongDecoder, t: int) -> None:
    """Add one element of Luong's attentional vector."""
    a = b.a
    h, c = a[f"{stack}.layers.{len(module.layers) - 1}.h"][0, t], a[f"{stack}.cross.z"][0, 0, t]
    out = a[f"{stack}.attentional"][0, t]
    d = b.at(len(out))
    b.section(message("explain.recurrent.attentional_title", token=str(t)))
    pre = b.linear(f"pre_{t}[{d}]", "[c; h] W_c", module.output_proj, torch.cat([c, h.to(c)]), d, None)
    b.calculate(f"h~_{t}[{d}]", message("explain.recurrent.attentional"), tanh(pre), out[d])
    b.values(f"h~_{t}", message("explain.recurrent.attentional_vector"), out)


def _maxout_steps(b: Builder, stack: str, module: AdditiveDecoder, t: int) -> None:
    """Add one element of the maxout layer."""
    a = b.a
    y = stack_input(a, stack)[0, t]
    h, c = a[f"{stack}.layers.{len(module.layers) - 1}.h"][0, t], a[f"{stack}.cross.z"][0, 0, t]
    out, x = a[f"{stack}.maxout"][0, t], torch.cat([h.to(y), y, c.to(y)])
    d = b.at(len(out))
    b.section(message("explain.recurrent.maxout_title", token=str(t)))
    b.values("x", message("explain.recurrent.maxout_input"), x)
    pair = [b.linear(f"pre_{t}[{row}]", "x W", module.maxout, x, row, None) for row in (2 * d, 2 * d + 1)]
    b.calculate(f"t_{t}[{d}]", message("explain.recurrent.maxout"), Maximum(pair), out[d])
    b.values(f"t_{t}", message("explain.recurrent.maxout_output"), out)
