"""The steps of one head of an attention layer for one query."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transom.config.components import RotaryConfig
from transom.inspection.activations import attention_context, parent, sublayer_input
from transom.inspection.certify import certify
from transom.inspection.derive_attention import AttentionInputs, attention_memory, is_exact
from transom.inspection.explain.builder import Builder, number, numbers, weighted_sum
from transom.inspection.explain.expressions import Call, Expression, Number, dot, exact, sqrt, tanh
from transom.inspection.explain.norm import norm_steps
from transom.inspection.explain.softmax import SoftmaxLabels, softmax_steps
from transom.layers.approximations.approximate_attention import ApproximateAttention
from transom.layers.attention import Attention
from transom.layers.context import Part
from transom.layers.position_encoding import Rotary

MAX_KEYS = 16
"""Scores of at most this number of keys are worked out; of more keys, those with the largest weights."""

N_LARGEST = 12
"""Keys that are worked out where there are more than ``MAX_KEYS``."""

NEGATIVE_INFINITY = Number(-math.inf)


class AttentionSteps:
    """Steps of one head and query.

    Attributes:
        b: the hand calculation.
        path: path of the attention layer.
        query: index of the query in the tensors of the layer; in a routed block, among the selected tokens.
        i: position of the query in its text.
        keys: position of each key in its text.
        shown: indices of the keys whose scores are worked out.
    """

    def __init__(self, b: Builder, path: str, query: int, positions: Sequence[int], keys: Sequence[int], names: Sequence[str]) -> None:
        """Collect the tensors of the layer.

        Args:
            b: the hand calculation.
            path: path of the attention layer.
            query: index of the query.
            positions: positions of the queries in their text.
            keys: positions of the keys in their text.
            names: symbols of the keys.
        """
        a = b.a
        self.b, self.path, self.query, self.i, self.keys, self.names = b, path, query, positions[query], list(keys), list(names)
        self.module: Attention = a.module(path)
        self.q, self.k, self.v, self.z = (a[f"{path}.{name}"][0] for name in "qkvz")
        self.group = b.head * self.k.shape[0] // self.q.shape[0]
        self.inputs = AttentionInputs.of(a, path, [b.head], Part(queries=[query])) if is_exact(self.module) else None
        weights = a[f"{path}.weights"] if self.inputs is None else self.inputs.weights()
        self.weights = weights[0, b.head if self.inputs is None else 0, query if self.inputs is None else 0]
        largest = self.weights.topk(min(N_LARGEST, len(self.weights))).indices.tolist()
        self.shown = list(range(len(self.keys))) if len(self.keys) <= MAX_KEYS else sorted(largest)
        self.best = int(self.weights.argmax())

    def label(self, symbol: str, key: int) -> str:
        """Return the label of a score of a key."""
        return f"{symbol}_{self.i},{self.keys[key]}"

    def projections(self) -> None:
        """Add the steps of one element of the query, and of key and value of the key with the largest weight."""
        b, a, module = self.b, self.b.a, self.module
        if self.q.shape[0] != self.k.shape[0]:
            heads = [head for head in range(self.q.shape[0]) if head * self.k.shape[0] // self.q.shape[0] == self.group]
            b.note(f"query heads {', '.join(map(str, heads))} share key and value head {self.group}")
        x, memory = sublayer_input(a, self.path)[0], attention_memory(a, self.path)[0]
        j, cross = self.keys[self.best], self.path.endswith(".cross")
        b.values(f"x_{self.i}", "input of W_Q" + ("" if cross else ", W_K and W_V") + ": the query's token", x[self.query])
        self._project("q", module.q, x[self.query], b.head, self.query)
        b.note(f"key {j} ({self.names[self.best]}) has the largest weight; its key and value:")
        b.values(f"x_{j}", "output of the encoder" if cross else "input of W_K and W_V", memory[self.best])
        self._project("k", module.k, memory[self.best], self.group, self.best)
        self._value(memory[self.best])

    def _project(self, symbol: str, layer: nn.Module, x: Tensor, head: int, index: int) -> None:
        """Add the steps of one element of a query or key: projection, QK norm, rotation."""
        a, path, module, width = self.b.a, self.path, self.module, self.module.d_head
        position = self.i if symbol == "q" else self.keys[index]
        norm, d, b = getattr(module, f"{symbol}_norm"), self.b.at(width), self.b
        rotary, final = attention_context(a, path).rotary, a[f"{path}.{symbol}"][0, head, index]
        projected, name = a[f"{path}.{symbol}_proj"][0, head, index], f"{symbol}_{position}"
        b.linear(f"{name}[{d}]", f"{symbol} = x W_{symbol.upper()}", layer, x, head * width + d, projected[d])
        before = projected
        if norm is not None:
            norm_steps(b, f"{path}.{symbol}_norm", (0, head, index), f"{name} (normed)")
            before = a[f"{path}.{symbol}_norm.out"][0, head, index]
        if rotary is not None:
            row = 0 if rotary.cos.shape[2] == 1 else index
            self._rotate(name, position, before, final, rotary.cos[0, 0, row], rotary.sin[0, 0, row])
        b.values(name, "query of this head" if symbol == "q" else "key of this head", final)

    def _rotate(self, name: str, position: int, before: Tensor, after: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Add the rotation of one element of a query or key (RoPE), with its angle."""
        b, n, d = self.b, len(cos), self.b.at(len(before))
        b.values(f"{name} (before)", "before the rotation", before)
        if d >= 2 * n:
            b.note(f"elements from {2 * n} on are not rotated")
            return
        pair, encoding = d % n, _rotary_of(b, self.path)
        if encoding is not None and (options := encoding.config.position) and isinstance(options, RotaryConfig):
            angle = exact(position) * Number(options.rope_theta ** (-pair / n), 0.0) if pair else exact(position)
            text = f"{position} * {options.rope_theta:g}^(-{2 * pair}/{2 * n})"
            b.calculate(f"cos theta_{pair}", f"theta = {text}", Call("cos", angle), cos[pair])
            b.calculate(f"sin theta_{pair}", f"theta = {text}", Call("sin", angle), sin[pair])
        x, y, c, s = (number(each) for each in (before[pair], before[pair + n], cos[pair], sin[pair]))
        rotated: Expression
        if d < n:
            formula, rotated = f"x[{d}] cos - x[{d + n}] sin", x * c - y * s
        else:
            formula, rotated = f"x[{d}] cos + x[{pair}] sin", y * c + x * s
        b.calculate(f"{name}[{d}] (rotated)", formula, rotated, after[d])

    def _value(self, x: Tensor) -> None:
        """Add the steps of one element of a value."""
        a, b, path, width, j = self.b.a, self.b, self.path, self.module.d_value, self.keys[self.best]
        d, own, mixed = b.at(width), a[f"{path}.v_proj"][0, self.group, self.best], self.v[self.group, self.best]
        b.linear(f"v_{j}[{d}]", "v = x W_V", self.module.v, x, self.group * width + d, own[d])
        stack, _, rest = path.partition(".blocks.")
        block = int(rest.partition(".")[0])
        residuals = getattr(a.module(stack), "value_residuals", ())
        if block and len(residuals) and not path.endswith(".cross"):
            first, (lambda_1, lambda_2) = a[f"{stack}.blocks.0.attn.v_proj"][0, self.group, j, d], residuals[block - 1].weight
            mix = Number(float(lambda_1)) * number(first) + Number(float(lambda_2)) * number(own[d])
            b.calculate(f"v_{j}[{d}] (mixed)", "v' = lambda_1 v of block 0 + lambda_2 v", mix, mixed[d])
        b.values(f"v_{j}", "value of this head", mixed)

    def scores(self) -> list[Number] | None:
        """Add the score of each key; return all scores, minus infinity where masked; None if the layer has no scores."""
        if self.inputs is None:
            return None
        inputs, b, n = self.inputs, self.b, len(self.keys)
        scores, masked = inputs.scores()[0, 0, 0], inputs.masked_scores()[0, 0, 0]
        if len(self.shown) < n:
            b.note(f"of {n:,} keys the {len(self.shown)} with the largest weights are worked out; sums hold all keys")
        q, k, products = numbers(inputs.q[0, 0, 0]), inputs.k[0, 0], inputs.dot_products()[0, 0, 0]
        steps = {j: number(products[j]) for j in self.shown}
        for j in self.shown:
            formula = "dot product of query and key: q . k"
            steps[j] = b.calculate(f"q_{self.i} . k_{self.keys[j]}", formula, dot(q, numbers(k[j])), products[j])
        bias = None if inputs.args.bias is None else inputs.args.bias[0, 0, 0].expand(n)
        softcap = inputs.args.softcap
        for j in self.shown:
            last = softcap is None and bias is None
            formula = "S = q . k / sqrt(d_k)"
            steps[j] = b.calculate(self.label("S", j), formula, steps[j] / sqrt(exact(len(q))), scores[j] if last else None)
        if softcap is not None:
            cap = exact(softcap)
            for j in self.shown:
                capped = cap * tanh(steps[j] / cap)
                steps[j] = b.calculate(self.label("S", j), "softcap: c tanh(S / c)", capped, scores[j] if bias is None else None)
        if bias is not None:
            for j in self.shown:
                steps[j] = b.calculate(self.label("S", j), "position bias: S + bias", steps[j] + number(bias[j]), scores[j])
        return self._mask(steps, masked)

    def _mask(self, steps: dict[int, Number], masked: Tensor) -> list[Number]:
        """Add the mask; return the masked scores of all keys."""
        hidden = [j for j in self.shown if torch.isinf(masked[j])]
        for j in hidden:
            self.b.calculate(self.label("S", j), "mask: minus infinity hides a key", steps[j] + NEGATIVE_INFINITY, masked[j])
        if self.inputs is not None and self.inputs.args.mask is not None and not hidden:
            self.b.note("the mask hides none of these keys from this query")
        every = numbers(masked)
        for j, step in steps.items():
            every[j] = Number(every[j].number, None if j in hidden else step.bound)
        return every

    def softmax(self, scores: list[Number] | None) -> list[Number]:
        """Add exponentials, their sum and the weights; return the weights of all keys."""
        b = self.b
        if scores is None:
            if isinstance(self.module, ApproximateAttention):
                b.note(f"{type(self.module.approximation).__name__} computes no scores; the weights that it implies:")
            else:
                b.note("the scores of a plugin are not written out; the weights:")
            b.values(f"A_{self.i}", "attention weights", self.weights, self.names)
            return numbers(self.weights)
        if all(math.isinf(score.number) for score in scores):
            b.note("the query sees no key: all weights are 0")
            return numbers(self.weights)
        labels = SoftmaxLabels(
            lambda j: f"exp({self.label('S', j)})",
            lambda j: f"{self.label('A', j)} ({self.names[j]})",
            "S",
            "sum of the exponentials",
            "weights: A = e^S / sum",
        )
        sinks = None if self.inputs is None else self.inputs.args.sinks
        sink = None if sinks is None else number(sinks[0])
        return list(softmax_steps(b, dict(enumerate(scores)), self.shown, labels, self.weights, sink=sink).values())

    def output(self, weights: list[Number]) -> Number:
        """Add weighted values, the certificate, the concatenation of the heads and W_O; return one element of the layer's output."""
        b, a, path, head = self.b, self.b.a, self.path, self.b.head
        z = self.z[head, self.query]
        d, dim = b.at(len(z)), b.at(a[f"{path}.out"].shape[-1])
        magnitude = 0.0 if self.inputs is None else float(self.inputs.score_magnitude()[0])
        # The kernel computed the scores anew: their rounding errors are relative errors of its weights.
        kernel = [Number(each.number, each.error() + abs(each.number) * (8.0 + 4.0 * magnitude)) for each in weights]
        values = numbers(self.v[self.group, :, d])
        used = [j for j, weight in enumerate(kernel) if weight.number] or self.shown  # a hidden key has the weight 0
        ordered = sorted(used, key=lambda j: j not in self.shown)
        expression = weighted_sum([kernel[j] for j in ordered], [values[j] for j in ordered])
        b.calculate(f"z_{self.i}[{d}]", "weighted values: z = sum_j A_j v_j", expression, z[d])
        b.values(f"z_{self.i}", f"output of head {head}", z)
        certificate = certify(a, path, [head], [self.query])
        certificate.check()
        b.check(
            f"checked: weights x V equals the kernel's head output; the largest difference is {certificate.ratio:.2g} of the bound of"
            " rounding"
        )
        concat, out = a[f"{path}.concat"][0, self.query], a[f"{path}.out"][0, self.query]
        b.values("concat", f"outputs of the {self.z.shape[0]} heads, one after another", concat)
        result = number(out[dim])
        if isinstance(self.module.o, nn.Linear):
            result = b.linear(f"o_{self.i}[{dim}]", "o = concat W_O", self.module.o, concat, dim, out[dim])
        b.values(f"o_{self.i}", "output of the layer", out)
        return result


def attention_sections(b: Builder, path: str, query: int, positions: Sequence[int], keys: Sequence[int], names: Sequence[str]) -> Number:
    """Add the sections of one attention layer; return one element of its output. The arguments are those of ``AttentionSteps``."""
    kind = "cross-attention" if path.endswith(".cross") else "self-attention"
    where = f"{kind}, head {b.head}"
    b.section(f"{where}: queries, keys and values")
    steps = AttentionSteps(b, path, query, positions, keys, names)
    steps.projections()
    b.section(f"{where}: scores of query {positions[query]}")
    scores = steps.scores()
    weights = steps.softmax(scores)
    b.section(f"{where}: output")
    return steps.output(weights)


def _rotary_of(b: Builder, path: str) -> Rotary | None:
    """Return the rotary encoding of the stack of an attention layer, if its frequencies are not scaled."""
    stack = parent(path).partition(".")[0]
    own = {"encoder": "source_embedding", "decoder": "target_embedding"}[stack]
    encoding = b.a.module(own if hasattr(b.a.model, own) else "embedding").position
    if isinstance(encoding, Rotary) and isinstance(encoding.config.position, RotaryConfig):
        return encoding if encoding.config.position.rope_scaling == "none" else None
    return None
