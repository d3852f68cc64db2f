"""The steps of feed-forward networks: plain, gated, and mixtures of experts."""

import math
from collections.abc import Callable

from torch import Tensor, nn

from transom.files.message import joined
from transom.inspection.activations import feed_forward_input
from transom.inspection.explain.builder import Builder, number, weighted_sum
from transom.inspection.explain.expressions import Call, Expression, Maximum, Number, Power, Sum, exact, exp, sigmoid, sqrt, tanh
from transom.inspection.messages.tables import message
from transom.layers.activation import ACTIVATIONS, GATES
from transom.layers.feed_forward import FeedForward, GatedFeedForward
from transom.layers.mixture_of_experts import MixtureOfExperts


def relu(x: Expression) -> Expression:
    """Write max(0, x)."""
    return Maximum((exact(0), x))


def gelu(x: Expression) -> Expression:
    """Write 0.5 x (1 + erf(x / sqrt(2)))."""
    return exact(0.5) * x * (exact(1) + Call("erf", x / sqrt(exact(2))))


def gelu_tanh(x: Expression) -> Expression:
    """Write 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    inner = x + exact(0.044715) * Power(x, 3)
    return exact(0.5) * x * (exact(1) + tanh(Number(math.sqrt(2 / math.pi), 0.0) * inner))


def silu(x: Expression) -> Expression:
    """Write x / (1 + exp(-x))."""
    return x / (exact(1) + exp(exact(0) - x))


WRITTEN: dict[str, tuple[str, Callable[[Expression], Expression]]] = {
    "relu": ("max(0, x)", relu),
    "gelu": ("GELU: 0.5 x (1 + erf(x / sqrt(2)))", gelu),
    "gelu-tanh": ("GELU: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))", gelu_tanh),
    "silu": ("SiLU: x / (1 + e^(-x))", silu),
    "squared-relu": ("max(0, x)^2", lambda x: Power(relu(x), 2)),
    "glu": ("sigmoid: 1 / (1 + e^(-x))", sigmoid),
}
"""Equation of each activation function, and the function that writes it out, by the ``kind`` of a configuration."""


def activation_of(function: Callable[[Tensor], Tensor]) -> tuple[str, Callable[[Expression], Expression]]:
    """Return equation and written form of an activation function of the layers."""
    kinds = [kind for kind, each in (*ACTIVATIONS.items(), *GATES.items()) if each is function]
    return WRITTEN[next(kind for kind in kinds if kind in WRITTEN)]


def feed_forward_steps(b: Builder, path: str, index: tuple[int, ...], position: int) -> Number | None:
    """Add the steps of a feed-forward network for one token.

    Args:
        b: the hand calculation.
        path: path of the network.
        index: index of the token in the input of the network.
        position: position of the token in its text.

    Returns:
        The element of the output that is worked out; None for a plugin's network, whose equation is unknown.
    """
    module = b.a.module(path)
    if isinstance(module, MixtureOfExperts):
        return _mixture_steps(b, path, index, position)
    if isinstance(module, FeedForward):
        return _plain_steps(b, path, index, position)
    if isinstance(module, GatedFeedForward):
        return _gated_steps(b, path, index, position)
    b.note(message("explain.feed_forward.unknown", name=type(module).__name__))
    return None


def _plain_steps(b: Builder, path: str, index: tuple[int, ...], position: int) -> Number:
    """Add pre-activation, activation and output of a network with two layers."""
    a, module, i = b.a, b.a.module(path), position
    x, pre, hidden, out = (each[index] for each in (feed_forward_input(a, path), a[f"{path}.pre"], a[f"{path}.hidden"], a[f"{path}.out"]))
    u, d = b.at(len(hidden)), b.at(len(out))
    text, write = activation_of(module.activation)
    b.values(f"x_{i}", message("explain.feed_forward.input"), x)
    z = b.linear(f"pre_{i}[{u}]", message("explain.feed_forward.pre"), module.up, x, u, pre[u])
    b.site(f"hidden_{i}[{u}]", message("explain.feed_forward.activation", formula=text), write(z), f"{path}.hidden", (*index, u))
    return _down(b, module, hidden, out, d, i)


def _gated_steps(b: Builder, path: str, index: tuple[int, ...], position: int) -> Number:
    """Add gate, up-projection, their product and the output of a gated network."""
    a, module, i = b.a, b.a.module(path), position
    pre, gate, up, hidden, out = (a[f"{path}.{name}"][index] for name in ("pre", "gate", "up", "hidden", "out"))
    x, u, d = feed_forward_input(a, path)[index], b.at(len(hidden)), b.at(len(out))
    text, write = activation_of(module.activation)
    b.values(f"x_{i}", message("explain.feed_forward.input"), x)
    z = b.linear(f"pre_{i}[{u}]", message("explain.feed_forward.gate_pre"), module.gate, x, u, pre[u])
    g = b.calculate(f"gate_{i}[{u}]", message("explain.feed_forward.gate", formula=text), write(z), gate[u])
    y = b.linear(f"up_{i}[{u}]", "x W_1", module.up, x, u, up[u])
    b.site(f"hidden_{i}[{u}]", "hidden = gate * up", g * y, f"{path}.hidden", (*index, u))
    return _down(b, module, hidden, out, d, i)


def _down(b: Builder, module: nn.Module, hidden: Tensor, out: Tensor, d: int, position: int) -> Number:
    """Add the second layer."""
    b.values(f"hidden_{position}", message("explain.feed_forward.hidden"), hidden)
    assert isinstance(module, FeedForward | GatedFeedForward)
    result = b.linear(f"y_{position}[{d}]", message("explain.feed_forward.down"), module.down, hidden, d, out[d])
    b.values(f"y_{position}", message("explain.feed_forward.output"), out)
    return result


def _mixture_steps(b: Builder, path: str, index: tuple[int, ...], position: int) -> Number:
    """Add router, gates, the network of the best expert, and the gated sum."""
    a, i = b.a, position
    module: MixtureOfExperts = a.module(path)
    chosen, gates = [int(expert) for expert in a[f"{path}.chosen"][index]], a[f"{path}.gates"][index]
    x = feed_forward_input(a, path)[index]
    b.values(f"x_{i}", message("explain.experts.input"), x)
    scores = _router_scores(b, path, x, index, i)
    if module.bias is not None:
        b.values(message("explain.labels.balancing"), message("explain.experts.bias"), module.bias)
    b.note(message("explain.experts.chosen", experts=", ".join(map(str, chosen))))
    weights = [scores[expert] for expert in chosen]
    if module.config.norm_topk_prob:
        total = b.calculate(message("explain.labels.sum"), message("explain.experts.sum"), Sum(weights))
        for rank, expert in enumerate(chosen):
            weights[rank] = b.calculate(f"g_{expert}", message("explain.experts.gate"), weights[rank] / total, gates[rank])
    outputs, d = [], b.at(len(x))
    for rank, expert in enumerate(chosen):
        at = f"{path}.experts.{expert}"
        place = _row_of(a[f"{path}.chosen"], expert, index)
        if rank == 0 or b.edits.at(f"{at}.hidden"):
            b.note(message("explain.experts.one", expert=str(expert)))
            feed_forward_steps(b, at, (place,), i)
        else:
            b.values(f"E_{expert}", message("explain.experts.output_of", expert=str(expert)), a[f"{at}.out"][place])
        outputs.append(number(a[f"{at}.out"][place][d]))
    expression: Expression = weighted_sum(weights, outputs)
    formula = message("explain.experts.output")
    if module.shared is not None:
        b.note(message("explain.experts.shared"))
        shared = feed_forward_steps(b, f"{path}.shared", (_flat(a[f"{path}.chosen"], index),), i)
        assert shared is not None
        expression, formula = expression + shared, joined("", [formula, " + E_shared(x)"])
    edited = any(address.startswith(f"{path}.") for address in b.edits.watched)  # a derived output would be that of the unedited layer
    return b.calculate(f"y_{i}[{d}]", formula, expression, None if edited else a[f"{path}.out"][index][d])


def _router_scores(b: Builder, path: str, x: Tensor, index: tuple[int, ...], position: int) -> list[Number]:
    """Add the router's logits and the score of each expert; return the scores."""
    module: MixtureOfExperts = b.a.module(path)
    site = f"{path}.router"
    s, before = module.router_scores(b.a[site][index]), b.unedited(site)[index]
    steps = [b.linear(f"r_{position},{e}", message("explain.experts.router"), module.router, x, e, before[e]) for e in range(len(before))]
    steps = [b.after_edits(f"r_{position},{e}", site, (*index, e), step) for e, step in enumerate(steps)]
    if module.config.scoring_func == "sigmoid":
        return [b.calculate(f"s_{e}", message("explain.experts.sigmoid"), sigmoid(step), s[e]) for e, step in enumerate(steps)]
    powers = [b.calculate(f"exp(r_{position},{e})", message("explain.experts.exponentials"), exp(step)) for e, step in enumerate(steps)]
    total = b.calculate(message("explain.labels.sum"), message("explain.softmax.sum"), Sum(powers))
    return [b.calculate(f"p_{e}", message("explain.experts.probability"), power / total, s[e]) for e, power in enumerate(powers)]


def _flat(chosen: Tensor, index: tuple[int, ...]) -> int:
    """Return the index of a token among all tokens of the batch."""
    row, position = index
    return row * chosen.shape[1] + position


def _row_of(chosen: Tensor, expert: int, index: tuple[int, ...]) -> int:
    """Return the row of a token in the batch of an expert, which holds the tokens that are sent to it, in order."""
    sent = (chosen.flatten(0, -2) == expert).any(-1)
    return int(sent[: _flat(chosen, index)].sum())
