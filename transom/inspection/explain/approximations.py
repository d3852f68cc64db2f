"""The steps of approximations of attention for one query: linear attention, Performer, Linformer and Nystromformer."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transom.inspection.activations import attention_context
from transom.inspection.explain.builder import Builder, number, numbers, weighted_sum
from transom.inspection.explain.expressions import Expression, Number, Power, Sum, dot, exact, exp, sqrt
from transom.inspection.explain.feed_forward import relu
from transom.inspection.explain.softmax import SoftmaxLabels, softmax_steps
from transom.inspection.messages.tables import message
from transom.layers.approximations.approximation import Approximation, dense_mask
from transom.layers.approximations.linear_attention import MAX_EXPONENT, FeatureMapAttention, LinearAttention, Performer
from transom.layers.approximations.linformer import Linformer
from transom.layers.approximations.nystrom import Nystrom, pseudo_inverse
from transom.layers.attention import attention_scores, attention_weights

MAX_ROWS = 16
"""Projected rows or landmarks whose scores are worked out; of more, those with the largest weights."""


class QueryInputs(NamedTuple):
    """Inputs of an approximation, for one query of one head, in float32 or wider.

    Attributes:
        q: the query.
        queries: all queries of its sequence.
        k: the keys that it sees.
        v: their values.
        i: position of the query in its text.
        keys: position of each visible key in its text.
        names: symbol of each visible key.
        shown: indices, among the visible keys, of those that are worked out.
        example: index, among the visible keys, of the one whose features are worked out.
        weights: implied weight of each visible key, as the model's own reference computes it.
        z: output of the head.
    """

    q: Tensor
    queries: Tensor
    k: Tensor
    v: Tensor
    i: int
    keys: list[int]
    names: list[str]
    shown: list[int]
    example: int
    weights: Tensor
    z: Tensor


def visible_keys(b: Builder, path: str, query: int) -> list[int]:
    """Return the indices of the keys that a query of an approximate attention layer sees."""
    q, k = b.a[f"{path}.q"], b.a[f"{path}.k"]
    seen = dense_mask(q, k, attention_context(b.a, path))[0]
    return [int(j) for j in seen[query].nonzero()[:, 0]]


def queries_of_sequence(b: Builder, path: str, query: int) -> list[int]:
    """Return the indices of the queries that see the same keys as a query."""
    q, k = b.a[f"{path}.q"], b.a[f"{path}.k"]
    seen = dense_mask(q, k, attention_context(b.a, path))[0]
    return [int(j) for j in (seen == seen[query]).all(-1).nonzero()[:, 0]]


def approximation_steps(b: Builder, module: Approximation, x: QueryInputs) -> dict[int, Number]:
    """Add the steps of an approximation; return the weights of the visible keys that are worked out."""
    if isinstance(module, LinearAttention):
        return _linear_steps(b, module, x)
    if isinstance(module, Linformer):
        return _linformer_steps(b, module, x)
    if isinstance(module, Nystrom):
        return _nystrom_steps(b, module, x)
    b.note(message("explain.approximation.plugin", name=type(module).__name__))
    b.values(f"A_{x.i}", message("explain.approximation.plugin_weights"), x.weights, x.names)
    return {}


def carried(expression: Expression) -> Number:
    """Return the value of an expression that is not printed, with its error."""
    return Number(expression.value(), expression.error())


def _linear_steps(b: Builder, module: LinearAttention, x: QueryInputs) -> dict[int, Number]:
    """Add features, the sums over the keys, the normalizer, the output of the head, and the weights that these imply."""
    b.note(message("explain.approximation.linear"))
    d, value = b.at(module.features), b.at(x.v.shape[1])
    q = _features(b, module, f"q_{x.i}", x.q, d, True)
    k = _features(b, module, f"k_{x.keys[x.example]}", x.k[x.example], d, False)
    rows = [k if j == x.example else _feature_numbers(module, x.k[j], False) for j in range(len(x.k))]
    order = [*x.shown, *(j for j in range(len(x.k)) if j not in x.shown)]
    v = numbers(x.v[:, value])
    formula = message("explain.approximation.sums", keys=str(len(x.k)))
    sums = [weighted_sum([rows[j][f] for j in order], [v[j] for j in order]) for f in range(module.features)]
    totals = [Sum([rows[j][f] for j in order]) for f in range(module.features)]
    shown = b.calculate(f"S[{d}, {value}]", formula, sums[d])
    total = b.calculate(f"s[{d}]", message("explain.approximation.normalizer"), totals[d])
    top = dot(q, [shown if f == d else carried(each) for f, each in enumerate(sums)])
    bottom = dot(q, [total if f == d else carried(each) for f, each in enumerate(totals)])
    numerator = b.calculate(f"(phi(q) S)[{value}]", message("explain.approximation.numerator"), top)
    denominator = b.calculate("phi(q) . s", message("explain.approximation.denominator"), bottom)
    if not denominator.number:
        b.note(message("explain.approximation.zero"))
        return {}
    b.calculate(f"z_{x.i}[{value}]", message("explain.approximation.quotient"), numerator / denominator, x.z[value])
    b.note(message("explain.approximation.same"))
    formula = message("explain.approximation.dot")
    products = {j: b.calculate(f"phi(q_{x.i}) . phi(k_{x.keys[j]})", formula, dot(q, rows[j])) for j in x.shown}
    formula = message("explain.approximation.weights")
    return {
        j: b.calculate(f"A_{x.i},{x.keys[j]} ({x.names[j]})", formula, each / denominator, x.weights[j]) for j, each in products.items()
    }


def _features(b: Builder, module: LinearAttention, name: str, x: Tensor, d: int, is_query: bool) -> list[Number]:
    """Add the steps of one feature of a query or key; return all features."""
    compute = module.query_features if is_query else module.key_features
    features, expected = _feature_numbers(module, x, is_query), compute(x[None, None, None])[0, 0, 0]
    label = f"phi({name})[{d}]"
    if isinstance(module, Performer):
        features[d] = _performer_steps(b, module, name, x, d, is_query, expected[d])
    else:
        assert isinstance(module, FeatureMapAttention)
        formula, write = message(f"explain.approximation.features.{module.feature_map}"), FEATURE_MAPS[module.feature_map]
        phi = [write(each) for each in numbers(x)]
        largest = max((each.value() for each in phi), default=0.0)
        if not is_query or not largest:
            features[d] = b.calculate(label, formula, phi[d], expected[d])
        else:
            before = b.calculate(message("explain.labels.before", label=label), formula, phi[d])
            top = max(range(len(phi)), key=lambda f: phi[f].value())
            b.note(message("explain.approximation.largest"))
            features[d] = b.calculate(label, "phi / max phi", before / (before if top == d else carried(phi[top])), expected[d])
    b.values(f"phi({name})", message("explain.approximation.vector"), expected)
    return features


def _feature_numbers(module: LinearAttention, x: Tensor, is_query: bool) -> list[Number]:
    """Return all features of a query or key with their errors."""
    if isinstance(module, Performer):
        logs = [carried(_log_feature(_scaled(x), w, carried(_half_norm(_scaled(x))))) for w in module.w]
        largest = max(logs, key=lambda each: each.number)
        return [carried(exp(each - largest)) if is_query else carried(exp(_clamped(each))) for each in logs]
    assert isinstance(module, FeatureMapAttention)
    phi = [carried(FEATURE_MAPS[module.feature_map](each)) for each in numbers(x)]
    largest = max(phi, key=lambda each: each.number)
    return [carried(each / largest) for each in phi] if is_query and largest.number else phi


def _elu_plus_one(x: Expression) -> Expression:
    """Write x + 1 from 0 on, and e^x below, where the exponent is at least -60."""
    if x.value() >= 0:
        return x + exact(1)
    return exp(x if x.value() >= -MAX_EXPONENT else exact(-MAX_EXPONENT))


FEATURE_MAPS: dict[str, Callable[[Expression], Expression]] = {"relu": relu, "elu": _elu_plus_one}
"""The function that writes out each feature map."""


def _scaled(x: Tensor) -> list[Number]:
    """Return x / d_k^(1/4), as the Performer's features read it."""
    root = sqrt(sqrt(exact(len(x))))
    return [carried(each / root) for each in numbers(x)]


def _half_norm(x: Sequence[Expression]) -> Expression:
    """Write |x|^2 / 2."""
    return Sum([Power(each, 2) for each in x]) / exact(2)


def _log_feature(x: Sequence[Expression], w: Tensor, half_norm: Expression) -> Expression:
    """Write w . x - |x|^2 / 2."""
    return dot(numbers(w), x) - half_norm


def _clamped(x: Number) -> Number:
    """Limit an exponent of the features of a key."""
    return x if abs(x.number) <= MAX_EXPONENT else exact(math.copysign(MAX_EXPONENT, x.number))


def _performer_steps(b: Builder, module: Performer, name: str, x: Tensor, d: int, is_query: bool, expected: Tensor) -> Number:
    """Add the steps of one random feature of the Performer."""
    scaled, e = _scaled(x), b.at(len(x))
    scaled[e] = b.calculate(f"{name}'[{e}]", "x' = x / d_k^(1/4)", number(x[e]) / sqrt(sqrt(exact(len(x)))))
    half = b.calculate(f"|{name}'|^2 / 2", "sum_e x'_e^2 / 2", _half_norm(scaled))
    log = b.calculate(f"log phi({name})[{d}]", message("explain.approximation.projection"), _log_feature(scaled, module.w[d], half))
    label = f"phi({name})[{d}]"
    if not is_query:
        if abs(log.number) > MAX_EXPONENT:
            b.note(message("explain.approximation.limited", most=f"{MAX_EXPONENT:g}"))
        return b.calculate(label, message("explain.approximation.performer"), exp(_clamped(log)), expected)
    logs = [carried(_log_feature(scaled, w, half)) for w in module.w]
    largest = max(logs, key=lambda each: each.number)
    b.note(message("explain.approximation.largest_exponent", exponent=f"{largest.number:.6g}"))
    formula = message("explain.approximation.performer_query")
    return b.calculate(label, formula, exp(log - (log if largest is logs[d] else largest)), expected)


def _shown_rows(p: Tensor) -> list[int]:
    """Return the indices of the projected rows or landmarks that are worked out."""
    return list(range(len(p))) if len(p) <= MAX_ROWS else sorted(p.topk(MAX_ROWS).indices.tolist())


def _row_weights(b: Builder, x: QueryInputs, projected: Sequence[Sequence[Number]], p: Tensor, kind: str) -> list[Number]:
    """Add the scores of the query with projected keys (linformer) or landmarks (nystrom), and their softmax; return all weights."""
    shown = _shown_rows(p)
    if len(shown) < len(p):
        b.note(message(f"explain.approximation.rows.{kind}.some", number=str(len(p)), largest=str(len(shown))))
    q, root = numbers(x.q), sqrt(exact(len(x.q)))
    scores = {r: carried(carried(dot(q, projected[r])) / root) for r in range(len(p))}
    formula = message(f"explain.approximation.rows.{kind}.dot")
    products = {r: b.calculate(f"q_{x.i} . k'_{r}", formula, dot(q, projected[r])) for r in shown}
    for r, product in products.items():
        scores[r] = b.calculate(f"S_{x.i},{r}", "S = q . k' / sqrt(d_k)", product / root)
    total, result = message("explain.softmax.sum"), message(f"explain.approximation.rows.{kind}.weights")
    labels = SoftmaxLabels(lambda r: f"exp(S_{x.i},{r})", lambda r: f"p_{r}", "S", total, result)
    return list(softmax_steps(b, scores, shown, labels, p).values())


def _linformer_steps(b: Builder, module: Linformer, x: QueryInputs) -> dict[int, Number]:
    """Add a projected key and value, the softmax over the projected keys, and the weights that these imply."""
    columns = torch.arange(len(x.k))
    e, f = (layer.weight[:, columns].to(x.k) for layer in (module.e, module.f))
    p = attention_weights(attention_scores(x.q[None, None, None], (e @ x.k)[None, None]))[0, 0, 0]
    r, d, value = int(p.argmax()), b.at(x.k.shape[1]), b.at(x.v.shape[1])
    b.note(message("explain.approximation.linformer", tokens=str(len(x.k)), rows=str(len(e))))
    order = [*x.shown, *(j for j in range(len(x.k)) if j not in x.shown)]

    def row(weights: Tensor, of: Tensor) -> Expression:
        return weighted_sum([number(weights[j]) for j in order], [number(of[j]) for j in order])

    keys = [[carried(row(e[at], x.k[:, c])) for c in range(x.k.shape[1])] for at in range(len(e))]
    values = [carried(row(f[at], x.v[:, value])) for at in range(len(f))]
    keys[r][d] = b.calculate(f"k'_{r}[{d}]", message("explain.approximation.projected_keys"), row(e[r], x.k[:, d]))
    weights = _row_weights(b, x, keys, p, "linformer")
    values[r] = b.calculate(f"v'_{r}[{value}]", message("explain.approximation.projected_values"), row(f[r], x.v[:, value]))
    total = weighted_sum(weights, values)
    b.calculate(f"z_{x.i}[{value}]", message("explain.approximation.linformer_output"), total, x.z[value])
    b.note(message("explain.approximation.linformer_same"))
    formula = message("explain.approximation.linformer_weights")
    return {j: _implied(b, x, j, weights, numbers(f[:, j]), formula) for j in x.shown}


def _implied(b: Builder, x: QueryInputs, j: int, left: Sequence[Expression], right: Sequence[Expression], formula: str) -> Number:
    """Add the implied weight of one key."""
    return b.calculate(f"A_{x.i},{x.keys[j]} ({x.names[j]})", formula, dot(left, right), x.weights[j])


def _nystrom_steps(b: Builder, module: Nystrom, x: QueryInputs) -> dict[int, Number]:
    """Add a landmark, the softmax over the landmarks, the row that the pseudo-inverse gives, and the implied weights."""
    length = len(x.k)
    n = min(module.n_landmarks, length)
    runs = [[token for token in range(length) if token * n // length == landmark] for landmark in range(n)]
    landmark_keys, landmark_queries = (torch.stack([of[run].mean(0) for run in runs])[None, None] for of in (x.k, x.queries))
    p = attention_weights(attention_scores(x.q[None, None, None], landmark_keys))[0, 0, 0]
    inverse = pseudo_inverse(attention_weights(attention_scores(landmark_queries, landmark_keys)), module.n_iterations)[0, 0]
    to_keys = attention_weights(attention_scores(landmark_queries, x.k[None, None]))[0, 0]
    r, d = int(p.argmax()), b.at(x.k.shape[1])
    b.note(message("explain.approximation.nystrom", landmarks=str(n)))
    means = [[carried(Sum(numbers(x.k[run, c])) / exact(len(run))) for c in range(x.k.shape[1])] for run in runs]
    mean = Sum(numbers(x.k[runs[r], d])) / exact(len(runs[r]))
    tokens = ", ".join(str(x.keys[token]) for token in runs[r])
    means[r][d] = b.calculate(f"k'_{r}[{d}]", message("explain.approximation.landmark", landmark=str(r), keys=tokens), mean)
    weights = _row_weights(b, x, means, p, "nystrom")
    b.note(message("explain.approximation.inverse", iterations=str(module.n_iterations)))
    b.values(f"P[:, {r}]", message("explain.approximation.inverse_column"), inverse[:, r])
    rows = [carried(dot(weights, numbers(inverse[:, at]))) for at in range(n)]
    rows[r] = b.calculate(f"g_{r}", "g = p P", dot(weights, numbers(inverse[:, r])))
    b.values(f"H[:, {x.keys[x.example]}]", message("explain.approximation.to_key", j=str(x.keys[x.example])), to_keys[:, x.example])
    formula = message("explain.approximation.nystrom_weights")
    return {j: _implied(b, x, j, rows, numbers(to_keys[:, j]), formula) for j in x.shown}
