"""The steps of one head of an attention layer for one query."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from transom.files.message import joined
from transom.inspection.activations import Activations, attention_context, parent, sublayer_input
from transom.inspection.certify import certify
from transom.inspection.derive_attention import AttentionInputs, attention_memory, is_exact, output_weights
from transom.inspection.edits.changes import AttentionChange, AttentionEdit
from transom.inspection.explain.approximations import QueryInputs, approximation_steps, queries_of_sequence, visible_keys
from transom.inspection.explain.builder import Builder, number, numbers, weighted_sum
from transom.inspection.explain.edited import configs_of, edited_text
from transom.inspection.explain.expressions import Call, Expression, Number, dot, exact, sqrt, tanh
from transom.inspection.explain.norm import norm_steps
from transom.inspection.explain.softmax import SoftmaxLabels, softmax_steps
from transom.inspection.messages.tables import message
from transom.layers.approximations.approximate_attention import ApproximateAttention
from transom.layers.attention import Attention, attention_weights
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
        example: index of the key whose projections are worked out: the chosen one, or the one with the largest weight.
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
        self.q, self.z = (a[f"{path}.{name}"][0] for name in "qz")
        self.k, self.v = (a[f"{path}.{name}"][0, :, : len(keys)] for name in "kv")  # without the padding of a shorter text
        self.group = b.head * self.k.shape[0] // self.q.shape[0]
        self.inputs = AttentionInputs.of(a, path, [b.head], Part([query], slice(len(keys)))) if is_exact(self.module) else None
        self.edits = b.edits.at(f"{path}.z")
        self.changes = self._changes()
        if self.changes:
            self.weights = self._edited_weights()[0][0, 0, query, : len(keys)]
        elif self.inputs is None:
            self.weights = a[f"{path}.weights"][0, b.head, query, : len(keys)]
        else:
            self.weights = self.inputs.weights()[0, 0, 0]
        largest = self.weights.topk(min(N_LARGEST, len(self.weights))).indices.tolist()
        self.chosen = self.keys.index(b.key) if b.key in self.keys else None
        largest = sorted({*largest, *(() if self.chosen is None else (self.chosen,))})
        self.shown = list(range(len(self.keys))) if len(self.keys) <= MAX_KEYS else largest
        self.example = int(self.weights.argmax()) if self.chosen is None else self.chosen

    def _changes(self) -> list[AttentionChange]:
        """Return the edits of the weights of this head that change those of the query."""
        if self.inputs is None or not self.edits or not isinstance(edit := self.edits[0].edit, AttentionEdit):
            return []
        changes = [each for each in edit.changes if each.heads is None or self.b.head in each.heads]
        return changes if changes and bool(self._edited_weights(changes)[1].expand(1, 1, self.q.shape[1], 1)[0, 0, self.query]) else []

    def _edited_weights(self, changes: Sequence[AttentionChange] | None = None) -> tuple[Tensor, Tensor]:
        """Return the changed weights of the head, and True at the queries that a change concerns."""
        chosen = tuple(self.changes if changes is None else changes)
        edit = AttentionEdit(self.path.rpartition(".")[2], chosen)
        return edit.weights(AttentionInputs.of(self.b.a, self.path, [self.b.head]), chosen, [self.b.head])

    def label(self, symbol: str, key: int) -> str:
        """Return the label of a score of a key."""
        return f"{symbol}_{self.i},{self.keys[key]}"

    def projections(self) -> None:
        """Add the steps of one element of the query, and of key and value of the key with the largest weight."""
        b, a, module = self.b, self.b.a, self.module
        if self.q.shape[0] != self.k.shape[0]:
            heads = [head for head in range(self.q.shape[0]) if head * self.k.shape[0] // self.q.shape[0] == self.group]
            b.note(message("explain.attention.shared", heads=", ".join(map(str, heads)), shared=str(self.group)))
        x, memory = sublayer_input(a, self.path)[0], attention_memory(a, self.path)[0]
        j, cross = self.keys[self.example], self.path.endswith(".cross")
        b.values(f"x_{self.i}", message("explain.attention.input_cross" if cross else "explain.attention.input_self"), x[self.query])
        self._project("q", module.q, x[self.query], b.head, self.query)
        why = "explain.attention.key_largest" if self.chosen is None else "explain.attention.key_chosen"
        b.note(message(why, j=str(j), token=self.names[self.example]))
        b.values(f"x_{j}", message("explain.attention.memory" if cross else "explain.attention.input_kv"), memory[self.example])
        self._project("k", module.k, memory[self.example], self.group, self.example)
        self._value(memory[self.example])
        for name in "kv":
            self._note_other_keys(name)

    def _note_other_keys(self, name: str) -> None:
        """Note the other keys whose key or value vectors were edited."""
        for site in self.b.edits.at(f"{self.path}.{name}"):
            changed = (site.before != site.after)[0, self.group].any(-1).nonzero()[:, 0].tolist()
            others = ", ".join(str(self.keys[j]) for j in changed if j != self.example)
            if others:
                self.b.note(message(f"explain.edits.others.{name}", edited=edited_text(site.configs), keys=others))

    def _project(self, symbol: str, layer: nn.Module, x: Tensor, head: int, index: int) -> None:
        """Add the steps of one element of a query or key: projection, QK norm, rotation."""
        a, path, module, width = self.b.a, self.path, self.module, self.module.d_head
        position = self.i if symbol == "q" else self.keys[index]
        norm, d, b = getattr(module, f"{symbol}_norm"), self.b.at(width), self.b
        rotary, site = attention_context(a, path).rotary, f"{path}.{symbol}"
        projected, name = a[f"{path}.{symbol}_proj"][0, head, index], f"{symbol}_{position}"
        b.linear(f"{name}[{d}]", f"{symbol} = x W_{symbol.upper()}", layer, x, head * width + d, projected[d])
        before = projected
        if norm is not None:
            norm_steps(b, f"{path}.{symbol}_norm", (0, head, index), message("explain.labels.normed", label=name))
            before = a[f"{path}.{symbol}_norm.out"][0, head, index]
        if rotary is not None:
            row = 0 if rotary.cos.shape[2] == 1 else index
            self._rotate(name, position, before, b.unedited(site)[0, head, index], rotary.cos[0, 0, row], rotary.sin[0, 0, row])
        b.after_edits(f"{name}[{d}]", site, (0, head, index, d))
        b.values(name, message("explain.attention.query" if symbol == "q" else "explain.attention.key"), a[site][0, head, index])

    def _rotate(self, name: str, position: int, before: Tensor, after: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Add the rotation of one element of a query or key (RoPE), with its angle."""
        b, n, d = self.b, len(cos), self.b.at(len(before))
        b.values(message("explain.labels.before", label=name), message("explain.attention.rotation"), before)
        if d >= 2 * n:
            b.note(message("explain.attention.not_rotated", start=str(2 * n)))
            return
        pair, base = d % n, _unscaled_base(b, self.path)
        if base is not None:
            angle = exact(position) * Number(base ** (-pair / n), 0.0) if pair else exact(position)
            text = f"{position} * {base:g}^(-{2 * pair}/{2 * n})"
            b.calculate(f"cos theta_{pair}", f"theta = {text}", Call("cos", angle), cos[pair])
            b.calculate(f"sin theta_{pair}", f"theta = {text}", Call("sin", angle), sin[pair])
        else:
            b.note(message("explain.attention.scaled_frequencies", pair=str(pair)))
        x, y, c, s = (number(each) for each in (before[pair], before[pair + n], cos[pair], sin[pair]))
        rotated: Expression
        if d < n:
            formula, rotated = f"x[{d}] cos - x[{d + n}] sin", x * c - y * s
        else:
            formula, rotated = f"x[{d}] cos + x[{pair}] sin", y * c + x * s
        b.calculate(message("explain.labels.rotated", label=f"{name}[{d}]"), formula, rotated, after[d])

    def _value(self, x: Tensor) -> None:
        """Add the steps of one element of a value."""
        a, b, path, width, j = self.b.a, self.b, self.path, self.module.d_value, self.keys[self.example]
        d, own, site = b.at(width), a[f"{path}.v_proj"][0, self.group, self.example], (0, self.group, self.example)
        b.linear(f"v_{j}[{d}]", "v = x W_V", self.module.v, x, self.group * width + d, own[d])
        stack, _, rest = path.partition(".blocks.")
        block = int(rest.partition(".")[0])
        residuals = getattr(a.module(stack), "value_residuals", ())
        if block and len(residuals) and not path.endswith(".cross"):
            first, (lambda_1, lambda_2) = a[f"{stack}.blocks.0.attn.v_proj"][0, self.group, j, d], residuals[block - 1].weight
            mix = Number(float(lambda_1)) * number(first) + Number(float(lambda_2)) * number(own[d])
            label = message("explain.labels.mixed", label=f"v_{j}[{d}]")
            b.calculate(label, message("explain.attention.mixed"), mix, b.unedited(f"{path}.v")[site][d])
        b.after_edits(f"v_{j}[{d}]", f"{path}.v", (*site, d))
        b.values(f"v_{j}", message("explain.attention.value"), self.v[self.group, self.example])

    def scores(self) -> list[Number] | None:
        """Add the score of each key; return all scores, minus infinity where masked; None if the layer has no scores."""
        if self.inputs is None:
            return self._plugin_scores()
        b, n, inputs = self.b, len(self.keys), self.inputs
        unscaled = any(each.unscaled for each in self.changes)
        if unscaled:
            inputs = inputs._replace(q=inputs.q * inputs.q.shape[-1] ** 0.5)
        scores, dots = inputs.scores()[0, 0, 0], self.inputs.dot_products()[0, 0, 0]
        self._note_shown()
        q, k = numbers(self.inputs.q[0, 0, 0]), self.inputs.k[0, 0]
        formula = message("explain.attention.dot")
        steps = {j: b.calculate(f"q_{self.i} . k_{self.keys[j]}", formula, dot(q, numbers(k[j])), dots[j]) for j in self.shown}
        bias, softcap = None if inputs.args.bias is None else inputs.args.bias[0, 0, 0].expand(n), inputs.args.softcap
        if unscaled:
            b.note(joined("", [self._edited_text(lambda each: each.unscaled), ": S = q . k"]))
        for j in () if unscaled else self.shown:
            last = softcap is None and bias is None
            formula = "S = q . k / sqrt(d_k)"
            steps[j] = b.calculate(self.label("S", j), formula, steps[j] / sqrt(exact(len(q))), scores[j] if last else None)
        if softcap is not None:
            cap = exact(softcap)
            for j in self.shown:
                capped = cap * tanh(steps[j] / cap)
                steps[j] = b.calculate(
                    self.label("S", j), message("explain.attention.softcap"), capped, scores[j] if bias is None else None
                )
        if bias is not None:
            for j in self.shown:
                steps[j] = b.calculate(self.label("S", j), message("explain.attention.bias"), steps[j] + number(bias[j]), scores[j])
        return self._mask(steps, scores, inputs.args.mask)

    def _note_shown(self) -> None:
        """Note how many keys are worked out."""
        if len(self.shown) < (n := len(self.keys)):
            key = "explain.attention.some" if self.chosen is None else "explain.attention.some_chosen"
            self.b.note(message(key, number=n, largest=str(len(self.shown) - (self.chosen is not None))))

    def _edited_text(self, which: Callable[[AttentionChange], bool]) -> str:
        """Return the line that shows some edits of the weights."""
        return edited_text(configs_of([each for each in self.changes if which(each)]))

    def _plugin_scores(self) -> list[Number] | None:
        """Show the scores of a plugin's score function; None for layers without scores."""
        if type(self.module) is not Attention:
            return None
        b, inputs = self.b, AttentionInputs.of(self.b.a, self.path)
        b.note(message("explain.attention.plugin_scores"))
        scores = inputs.scores()[0, b.head, self.query, : len(self.keys)]
        b.values(f"S_{self.i}", message("explain.attention.given_scores"), scores, self.names)
        self._note_shown()
        row = AttentionInputs.of(b.a, self.path, [b.head], Part([self.query], slice(len(self.keys))))
        return self._mask({j: number(scores[j]) for j in self.shown}, scores, row.args.mask)

    def _mask(self, steps: dict[int, Number], scores: Tensor, mask: Tensor | None) -> list[Number]:
        """Add the mask, and keys that an edit hides; return the masked scores of all keys.

        Args:
            steps: scores that are worked out.
            scores: scores of all keys.
            mask: True at visible keys, broadcastable to (1, 1, 1, key); None if every key is visible.
        """
        b, n = self.b, len(self.keys)
        own = torch.zeros(n, dtype=torch.bool) if mask is None else ~mask[0, 0, 0].expand(n).cpu()
        after = any(each.zero_after for each in self.changes)
        hidden = {j: message("explain.attention.mask") for j in range(n) if bool(own[j])}
        text = message("explain.attention.edit_mask", edited=self._edited_text(lambda each: each.keys is not None))
        hidden |= {j: text for j in range(n) if self._knocked_out(j)}
        self.hidden = list(hidden)
        masked = scores if after else scores.masked_fill(torch.tensor([j in hidden for j in range(n)], device=scores.device), -math.inf)
        if after:
            b.note(message("explain.attention.mask_after", edited=self._edited_text(lambda each: each.zero_after)))
        elif not hidden:
            b.note(message("explain.attention.no_mask" if mask is None else "explain.attention.mask_hides_none"))
        elif not any(j in hidden for j in self.shown):
            b.note(message("explain.attention.mask_hides_others"))
        every = numbers(masked)
        for j, step in steps.items():
            every[j] = Number(every[j].number, step.bound)
            if j in hidden and not after:
                b.calculate(self.label("S", j), hidden[j], step + NEGATIVE_INFINITY, masked[j])
                every[j] = NEGATIVE_INFINITY
        return every

    def _knocked_out(self, key: int) -> bool:
        """Return whether an edit hides a key from the query."""
        head = torch.tensor([self.b.head], device=self.q.device)
        found = (each.hides(head, self.q.shape[1], len(self.keys)) for each in self.changes)
        return any(bool(each[0, 0, self.query, key]) for each in found if each is not None)

    def softmax(self, scores: list[Number] | None) -> list[Number]:
        """Add exponentials, their sum and the weights; return the weights of all keys."""
        b = self.b
        if scores is None:
            if isinstance(self.module, ApproximateAttention):
                return self._approximate(self.module)
            b.note(message("explain.attention.plugin", name=type(self.module).__name__))
            b.values(f"A_{self.i}", message("explain.attention.weights"), self.weights, self.names)
            return numbers(self.weights)
        if all(math.isinf(score.number) for score in scores):
            b.note(message("explain.attention.no_key"))
            return numbers(self.weights)
        labels = SoftmaxLabels(
            lambda j: f"exp({self.label('S', j)})",
            lambda j: f"{self.label('A', j)} ({self.names[j]})",
            "S",
            message("explain.softmax.sum"),
            message("explain.softmax.weights"),
        )
        sink = None if self.module.sinks is None else number(self.module.sinks[b.head])
        if not any(each.zero_after for each in self.changes) or not self.hidden:
            lse = self.inputs.logsumexp()[0, 0, 0] if b.every and self.inputs is not None and not self.changes else None
            return list(softmax_steps(b, dict(enumerate(scores)), self.shown, labels, self.weights, sink=sink, logsumexp=lse).values())
        args = AttentionInputs.of(b.a, self.path, [b.head]).args._replace(mask=None)
        before = attention_weights(torch.tensor([[[[score.number for score in scores]]]]), args)[0, 0, 0]
        found = list(softmax_steps(b, dict(enumerate(scores)), self.shown, labels, before, sink=sink).values())
        formula = message("explain.attention.times_zero", edited=self._edited_text(lambda each: each.zero_after))
        for j in self.hidden:
            if j in self.shown:
                b.calculate(message("explain.labels.edited", label=labels.weight(j)), formula, found[j] * exact(0), self.weights[j])
            found[j] = Number(0.0)
        return found

    def _approximate(self, module: ApproximateAttention) -> list[Number]:
        """Add the steps of an approximation of attention; return the weights of all keys."""
        b, path = self.b, self.path
        visible = visible_keys(b, path, self.query)
        if not visible:
            b.note(message("explain.attention.no_key"))
            return numbers(self.weights)
        self._note_shown()
        wide = torch.promote_types(self.q.dtype, torch.float32)
        queries, k = self.q[b.head].to(wide), self.k[self.group][visible].to(wide)
        inputs = QueryInputs(
            queries[self.query],
            queries[queries_of_sequence(b, path, self.query)],
            k,
            self.v[self.group][visible].to(wide),
            self.i,
            [self.keys[j] for j in visible],
            [self.names[j] for j in visible],
            [at for at, j in enumerate(visible) if j in self.shown],
            visible.index(self.example) if self.example in visible else 0,
            self.weights[visible],
            b.unedited(f"{path}.z")[0, b.head, self.query],
        )
        weights = numbers(self.weights)
        for at, weight in approximation_steps(b, module.approximation, inputs).items():
            weights[visible[at]] = weight
        return weights

    def output(self, weights: list[Number]) -> Number:
        """Add weighted values, the certificate, the concatenation of the heads and W_O; return one element of the layer's output."""
        b, a, path, head = self.b, self.b.a, self.path, self.b.head
        index = (0, head, self.query)
        z = (self.edits[0].after if self.changes else b.unedited(f"{path}.z"))[index]
        d, dim = b.at(len(z)), b.at(a[f"{path}.out"].shape[-1])
        magnitude = 0.0 if self.inputs is None else float(self.inputs.score_magnitude()[0]) * max(self._scale(), 1.0)
        # The kernel computed the scores anew: their rounding errors are relative errors of its weights.
        kernel = [Number(each.number, each.error() + abs(each.number) * (8.0 + 4.0 * magnitude)) for each in weights]
        values = numbers(self.v[self.group, :, d])
        used = [j for j, weight in enumerate(kernel) if weight.number] or self.shown  # a hidden key has the weight 0
        ordered = sorted(used, key=lambda j: j not in self.shown)
        expression = weighted_sum([kernel[j] for j in ordered], [values[j] for j in ordered])
        label = f"z_{self.i}[{d}]"
        result = b.calculate(label, message("explain.attention.weighted"), expression, z[d])
        self._certify()
        b.after_edits(label, f"{path}.z", (*index, d), result, self.edits[1:] if self.changes else None)
        b.values(f"z_{self.i}", message("explain.attention.head_output", head=str(head)), self.z[head, self.query])
        concat, out = a[f"{path}.concat"][0, self.query], a[f"{path}.out"][0, self.query]
        if b.every and isinstance(self.module.o, nn.Linear):
            share = output_weights(self.module, a[f"{path}.z"])[head, :, dim]
            terms, formula = (
                dot(numbers(self.z[head, self.query]), numbers(share)),
                message("explain.attention.head_through", head=str(head)),
            )
            b.calculate(f"z_{self.i} W_O[{dim}]", formula, terms, a[f"{path}.head_out"][index][dim])
        b.values("concat", message("explain.attention.concat", heads=str(self.z.shape[0])), concat)
        result = number(out[dim])
        if isinstance(self.module.o, nn.Linear):
            result = b.linear(f"o_{self.i}[{dim}]", "o = concat W_O", self.module.o, concat, dim, out[dim])
        else:
            b.note(message("explain.attention.no_projection"))
        b.values(f"o_{self.i}", message("explain.attention.layer_output"), out)
        return result

    def _scale(self) -> float:
        """Return the factor by which edits multiply the scores."""
        return float(self.module.d_head**0.5) if any(each.unscaled for each in self.changes) else 1.0

    def _certify(self) -> None:
        """Add the comparison of weights times V with the kernel's head output, where no edit has replaced it."""
        b, a, z = self.b, self.b.a, f"{self.path}.z"
        if self.changes:
            b.note(message("explain.attention.replaced"))
            return
        kernel = Activations(a.model, a.batch, {**a.recorded, z: b.unedited(z)})
        certificate = certify(kernel, self.path, [b.head], [self.query])
        certificate.check()
        b.check(message("explain.attention.checked", ratio=f"{certificate.ratio:.2g}"))


def attention_sections(b: Builder, path: str, query: int, positions: Sequence[int], keys: Sequence[int], names: Sequence[str]) -> Number:
    """Add the sections of one attention layer; return one element of its output. The arguments are those of ``AttentionSteps``."""
    layer = message("explain.attention.cross" if path.endswith(".cross") else "explain.attention.self", head=str(b.head))
    b.section(message("explain.attention.projections", layer=layer))
    steps = AttentionSteps(b, path, query, positions, keys, names)
    steps.projections()
    b.section(message("explain.attention.scores", layer=layer, query=str(positions[query])))
    scores = steps.scores()
    weights = steps.softmax(scores)
    b.section(message("explain.attention.output", layer=layer))
    return steps.output(weights)


def _unscaled_base(b: Builder, path: str) -> float | None:
    """Return the base of the rotary frequencies of an attention layer; None if they are scaled."""
    stack, _, block = parent(path).partition(".blocks.")
    own = {"encoder": "source_embedding", "decoder": "target_embedding"}[stack]
    encoding = b.a.module(own if hasattr(b.a.model, own) else "embedding").position
    if not isinstance(encoding, Rotary):
        return None
    base, scaling = encoding.rotations[encoding.cycle[int(block) % len(encoding.cycle)]]
    return base if scaling.kind == "none" else None
