"""The steps from the last residual stream to logits and probabilities, for each family of models."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transom.inspection.activations import Activations, stack_output
from transom.inspection.explain.builder import Builder, number, numbers
from transom.inspection.explain.convolution import stem_steps
from transom.inspection.explain.expressions import Expression, Maximum, Power, Sum, dot, exact, sigmoid, sqrt, tanh
from transom.inspection.explain.feed_forward import activation_of, gelu
from transom.inspection.explain.norm import norm_steps
from transom.inspection.explain.softmax import SoftmaxLabels, softmax_steps
from transom.inspection.messages.tables import message
from transom.layers.output_projection import OutputProjection
from transom.layers.stack import Stack
from transom.models.encoder import MaskedEncoderTransformer, TextClassifierTransformer, TextEmbedderTransformer
from transom.models.vision import ConvolutionalNetwork, VisionTransformer


class Candidates(NamedTuple):
    """Choice of symbols or classes.

    Attributes:
        top: number of those with the largest logits.
        candidate: index of one that joins them; None for none.
    """

    top: int
    candidate: int | None = None

    def of(self, logits: Tensor) -> list[int]:
        """Return their indices, the largest logits first."""
        best: list[int] = logits.topk(min(self.top, len(logits))).indices.tolist()
        return best if self.candidate is None or self.candidate in best else [*best, self.candidate]


def output_sections(
    b: Builder, stack: str, query: int, candidates: Candidates, temperatures: Sequence[float], symbol: Callable[[int], str]
) -> None:
    """Add final norm, head, logits of the best candidates, and their probabilities.

    Args:
        b: the hand calculation.
        stack: path of the last stack; "stem" for a convolutional network.
        query: position whose logits are worked out; without effect where a text or image has one vector of logits.
        candidates: candidates that are worked out.
        temperatures: divisors of the logits.
        symbol: name of a candidate by its index.
    """
    a = b.a
    pooled = _pooled_steps(b, stack, query)
    hidden, logits = a["last_hidden"][0], a["logits"][0]
    if not pooled:
        hidden, logits = hidden[query], logits[query]
    best = candidates.of(logits)
    names = {c: symbol(c) for c in best}
    b.section(message("explain.output.logits"))
    b.values("h", message("explain.output.hidden"), hidden)
    if isinstance(a.model, TextEmbedderTransformer):
        _similarities(b, hidden, logits, best)
    else:
        n = min(candidates.top, len(logits))
        key = "explain.output.some_chosen" if len(best) > n else "explain.output.some"
        b.note(message(key, number=len(logits), largest=str(n)))
        for c in best:
            _logit_steps(b, names[c], hidden, c, logits[c])
        if any(isinstance(each, nn.Embedding) and each.weight is a.model.unembedding.weight for each in a.model.modules()):
            b.note(message("explain.output.tied"))
    b.values("z", message("explain.output.logits"), logits)
    for temperature in temperatures if len(logits) > 1 else ():  # a text that is compared with itself alone has one logit
        _probability_steps(b, logits, best, names, temperature)


def _logit_steps(b: Builder, name: str, hidden: Tensor, c: int, logit: Tensor) -> None:
    """Add the logit of one candidate: the output projection, then its scale and soft-cap if the model has them."""
    layer = b.a.model.unembedding
    scale, cap = (layer.scale, layer.softcap) if isinstance(layer, OutputProjection) else (1.0, None)
    if scale == 1.0 and cap is None:
        b.linear(f"z({name})", "z = h W_U", layer, hidden, c, logit)
        return
    z = b.linear(f"h W_U({name})", "h W_U", layer, hidden, c, None)
    if scale != 1.0:
        z = b.calculate(f"s h W_U({name})", "s h W_U", exact(scale) * z, logit if cap is None else None)
    if cap is not None:
        b.calculate(f"z({name})", "z = c tanh(s h W_U / c)", exact(cap) * tanh(z / exact(cap)), logit)


def _pooled_steps(b: Builder, stack: str, query: int) -> bool:
    """Add the steps between the last block and the last hidden state; return whether a text or image has one vector of logits."""
    a, model = b.a, b.a.model
    if isinstance(model, ConvolutionalNetwork):
        _convolutional_steps(b, model)
        return True
    pooled = isinstance(model, TextClassifierTransformer | TextEmbedderTransformer | VisionTransformer)
    module = a.module(stack)
    cls = pooled and getattr(model.config, "pooling", "") == "cls"
    position = 0 if cls else query
    if isinstance(module, Stack) and module.norm is not None:
        b.section(message("explain.output.norm", token=str(position)))
        norm_steps(b, f"{stack}.norm", (0, position), f"h_{position}")
    if pooled:
        _pool(b, stack, cls)
    if isinstance(model, TextClassifierTransformer) and model.pooler is not None:
        _pooler_steps(b, model.pooler, model.config.pooler_activation)
    if isinstance(model, TextEmbedderTransformer):
        _unit_vector(b)
    if isinstance(model, MaskedEncoderTransformer):
        _transform_steps(b, model, query)
    return pooled


def _pool(b: Builder, stack: str, cls: bool) -> None:
    """Add the pooling of the tokens' vectors: the first token's, or the mean."""
    a = b.a
    states, pooled = stack_output(a, stack)[0], a["pooled"][0]
    b.section(message("explain.output.pooling"))
    if cls:
        b.note(message("explain.output.first"))
    else:
        mask = getattr(a.batch, "source", None)
        rows = states if mask is None else states[mask.segments[0] > 0]
        d = b.at(len(pooled))
        mean = Sum(numbers(rows[:, d])) / exact(len(rows))
        b.calculate(f"pooled[{d}]", message("explain.output.mean_tokens"), mean, b.unedited("pooled")[0, d])
    b.after_edits(f"pooled[{b.at(len(pooled))}]", "pooled", (0, b.at(len(pooled))))
    b.values("pooled", message("explain.output.pooled"), pooled)


POOLED: dict[str, tuple[str, Callable[[Expression], Expression]]] = {
    "tanh": ("h = tanh(pre)", tanh),
    "relu": ("h = max(0, pre)", lambda x: Maximum((exact(0), x))),
    "gelu": ("h = GELU: 0.5 pre (1 + erf(pre / sqrt(2)))", gelu),
}
"""Equation of each activation of a pooler, and the function that writes it out."""


def _pooler_steps(b: Builder, pooler: nn.Linear, activation: str) -> None:
    """Add one element of f(pooled W + b), f the activation of the pooler."""
    pooled, out = b.a["pooled"][0], b.a["last_hidden"][0]
    d = b.at(len(out))
    x = b.linear(f"pre[{d}]", "pooled W", pooler, pooled, d, None)
    formula, write = POOLED[activation]
    b.calculate(f"h[{d}]", formula, write(x), out[d])


def _unit_vector(b: Builder) -> None:
    """Add the length of the pooled vector, and one element of the unit vector."""
    pooled, out = b.a["pooled"][0], b.a["last_hidden"][0]
    d = b.at(len(out))
    length = b.calculate(message("explain.labels.length"), "sqrt(sum_i x_i^2)", sqrt(Sum([Power(x, 2) for x in numbers(pooled)])))
    b.calculate(f"h[{d}]", message("explain.output.unit"), number(pooled[d]) / length, out[d])


def _similarities(b: Builder, hidden: Tensor, logits: Tensor, best: Sequence[int]) -> None:
    """Add the cosine similarity of the text with the texts of the other side, divided by the temperature of training."""
    a = b.a
    assert isinstance(a.model, TextEmbedderTransformer)
    vectors, t = a.model.vectors(a.batch.target), exact(a.model.config.temperature)
    b.note(message("explain.output.cosine"))
    for c in best:
        b.values(f"v_{c}", message("explain.output.unit_of", text=str(c)), vectors[c])
        b.calculate(f"z_{c}", "z = u . v / t", dot(numbers(hidden), numbers(vectors[c])) / t, logits[c])


def _transform_steps(b: Builder, model: MaskedEncoderTransformer, query: int) -> None:
    """Add BERT's transform before the output projection: norm of f(h W + b), f GELU by default."""
    states = stack_output(b.a, "encoder")[0, query]
    d = b.at(len(states))
    b.section(message("explain.output.transform", token=str(query)))
    b.values(f"h_{query}", message("explain.output.encoder"), states)
    pre = b.linear(f"pre_{query}[{d}]", "h W", model.transform, states, d, None)
    formula, write = activation_of(model.activation)
    b.calculate(f"t_{query}[{d}]", formula, write(pre), b.unedited("transform_norm.x")[0, query, d])
    norm_steps(b, "transform_norm", (0, query), f"h'_{query}")


def _convolutional_steps(b: Builder, model: ConvolutionalNetwork) -> None:
    """Add one value of each stage, pooling and hidden layer of a convolutional network."""
    a = b.a
    maps, pooled, out = a[f"stem.stages.{len(model.stem.stages) - 1}"][0], a["pooled"][0], a["last_hidden"][0]
    c, d = b.at(len(pooled)), b.at(len(out))
    stem_steps(b, "stem", model.pixels, (c, maps.shape[1] // 2, maps.shape[2] // 2))
    b.section(message("explain.output.pooling"))
    b.note(message("explain.output.maps"))
    values = numbers(maps[c].flatten())
    b.values(message("explain.labels.map_row", channel=str(c)), message("explain.output.map"), maps[c].flatten())
    b.site(f"pooled[{c}]", message("explain.output.mean_places"), Sum(values) / exact(len(values)), "pooled", (0, c))
    b.values("pooled", message("explain.output.pooled"), pooled)
    x = b.linear(f"pre[{d}]", "pooled W", model.pooler, pooled, d, None)
    b.calculate(f"h[{d}]", "h = max(0, pre)", Maximum((exact(0), x)), out[d])


def _probability_steps(b: Builder, logits: Tensor, best: Sequence[int], names: Mapping[int, str], temperature: float) -> None:
    """Add exponentials, sum and probabilities of the best candidates at one temperature; the sigmoid for several labels."""
    a, tau = b.a, exact(temperature)
    b.section(message("explain.output.temperature", temperature=f"{temperature:g}"))
    scaled = Activations(a.model, a.batch, {"logits": logits[None]}, temperature)["probs"][0]
    z = numbers(logits)
    if getattr(a.model.config, "multi_label", False):
        for c in best:
            b.calculate(f"p({names[c]})", "1 / (1 + e^(-z / tau))", sigmoid(z[c] / tau), scaled[c])
        return
    labels = SoftmaxLabels(
        lambda c: f"exp(z({names[c]}))",
        lambda c: f"p({names[c]})",
        "z",
        message("explain.softmax.all_candidates", number=len(z)),
        message("explain.softmax.probability"),
    )
    lse = (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).logsumexp(-1) if b.every else None
    softmax_steps(b, dict(enumerate(z)), best, labels, scaled, temperature, logsumexp=lse)
    if lse is not None:
        expected = Activations(a.model, a.batch, {"logits": logits[None]}, temperature)["log_probs"][0]
        for c in best:
            b.calculate(f"ln p({names[c]})", "ln p = z / tau - ln sum e^(z / tau)", z[c] / tau - number(lse), expected[c])
