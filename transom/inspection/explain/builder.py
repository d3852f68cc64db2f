"""Collects the steps of a hand calculation, and compares each with the number that the model computed."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from transom.files.message import Message, joined
from transom.inspection.activations import Activations
from transom.inspection.certify import rounding_error
from transom.inspection.edits.changes import ResidualEdit
from transom.inspection.edits.schemas import Scale
from transom.inspection.explain.edited import EditedSite, EditedSites, edited_text
from transom.inspection.explain.expressions import Expression, Number, Product, Sum, dot, exact
from transom.inspection.explain.steps import Calculation, Note, Section, Values
from transom.inspection.messages.tables import message
from transom.layers.lora import LoraLinear

SAFETY = 2.0
"""Factor between the first-order bound of the rounding error and the largest accepted difference."""


class ExplanationError(RuntimeError):
    """A written-out step does not give the number that the model computed: a bug of transom, or of a plugin."""


class Builder:
    """Sections of a hand calculation of the first row of a batch.

    Attributes:
        a: quantities of the pass.
        dim: element of each vector that is worked out; in narrower vectors, ``dim`` modulo their width.
        head: attention head.
        key: position of the key that is worked out beside those with the largest weights; None for none.
        tokens: symbols of the tokens per side, "source" and "target".
        sections: sections so far.
        worst: largest difference between a step and the model's number so far, as a multiple of its bound.
        n_compared: number of steps that were compared.
        prefix: beginning of the headings of further sections, such as ``decoder, ``.
        edits: edits of the pass.
        every: whether quantities that no later step needs are worked out too: logsumexp, the scale of a norm, the output of a head through
            W_O, log-probabilities.
    """

    def __init__(
        self,
        a: Activations,
        dim: int,
        head: int,
        tokens: dict[str, list[str]],
        edits: EditedSites,
        key: int | None = None,
        every: bool = False,
    ) -> None:
        self.a, self.dim, self.head, self.tokens, self.edits, self.key, self.every = a, dim, head, tokens, edits, key, every
        self.sections: list[Section] = []
        self._eps = rounding_error(next(a.model.parameters()).dtype)
        self.worst, self.n_compared, self.prefix = 0.0, 0, ""

    def section(self, title: str) -> None:
        """Begin a section; its heading is the title after the prefix, with a capital first letter."""
        heading = joined("", [self.prefix, title])
        capital = f"{heading[:1].upper()}{heading[1:]}"
        self.sections.append(Section(Message(capital, heading.code) if isinstance(heading, Message) else capital, []))

    def note(self, text: str) -> None:
        """Add a sentence."""
        self.sections[-1].steps.append(Note(text))

    def check(self, text: str) -> None:
        """Add a sentence on a comparison with what the model computed."""
        self.sections[-1].steps.append(Note(text, "check"))

    def values(self, label: str, formula: str, x: Tensor, names: Iterable[str] = ()) -> None:
        """Show a vector."""
        self.sections[-1].steps.append(Values(label, formula, tuple(x.double().tolist()), tuple(names)))

    def calculate(self, label: str, formula: str, expression: Expression, traced: Tensor | None = None) -> Number:
        """Add a step; return its value as an operand of later steps, with the error that it may have.

        Args:
            label: the quantity.
            formula: its equation in symbols.
            expression: operators and operands.
            traced: the value that the model computed, of shape (); None if it is no quantity of the pass.

        Raises:
            ExplanationError: the value is further from the model's than rounding in the model's dtype explains.
        """
        expected = None if traced is None else traced.double().item()
        self.sections[-1].steps.append(step := Calculation(label, formula, expression, expected))
        if traced is None or expected is None:
            return Number(step.value, step.error)
        if step.value != expected:
            eps = max(rounding_error(traced.dtype), self._eps)
            limit = SAFETY * eps * step.error + torch.finfo(torch.float32).tiny
            ratio = abs(step.value - expected) / limit
            if not ratio <= 1.0:
                raise ExplanationError(f"{label}: {step.value!r} by hand, {expected!r} in the model, {ratio:.3g} times the bound")
            self.worst = max(self.worst, ratio)
        self.n_compared += 1
        return Number(expected, step.error)

    def unedited(self, address: str, step: int | None = None) -> Tensor:
        """Return the tensor of a site before its edits; ``step`` is the time step of a loop that visits the site once per step."""
        sites = self.edits.at(address, step)
        return sites[0].before if sites else self.a[address]

    def site(self, label: str, formula: str, expression: Expression, address: str, index: tuple[int, ...]) -> Number:
        """Add a step that gives an element of a site, and a line per edit of the site; return the element after the edits."""
        computed = self.calculate(label, formula, expression, self.unedited(address)[index])
        return self.after_edits(label, address, index, computed)

    def after_edits(
        self, label: str, address: str, index: tuple[int, ...], number: Number | None = None, sites: Sequence[EditedSite] | None = None
    ) -> Number:
        """Add a line per edit that changed the vector of an element of a site; return the element after the edits.

        Args:
            label: the element.
            address: address of the site.
            index: index of the element.
            number: the element before the edits; None to read it.
            sites: what the edits did; None for all edits of the site.
        """
        applied = self.edits.at(address) if sites is None else list(sites)
        first = applied[0].before if applied else self.a[address]
        current = Number(first[index].double().item()) if number is None else number
        for site in applied:
            before, after = (x[index[:-1]] for x in (site.before, site.after))
            if torch.equal(before, after):
                continue
            text, new = edited_text(site.configs), after[index[-1]]
            if torch.equal(before[index[-1]], new):
                self.note(message("explain.edits.kept", edited=text, label=label))
                continue
            expression: Expression = Number(new.double().item())
            if isinstance(site.edit, ResidualEdit):
                expression = current - Number(self.a[f"{_block_of(address)}.{site.edit.input}"][index].double().item())
            elif isinstance(config := site.configs[0], Scale):
                expression = current * exact(config.factor)
            current = self.calculate(message("explain.labels.edited", label=label), text, expression, new)
        return current

    def at(self, width: int) -> int:
        """Return the index of the element that is worked out in vectors of ``width`` elements."""
        return self.dim % width

    def linear(self, label: str, formula: str, layer: nn.Module, x: Tensor, row: int, traced: Tensor | None) -> Number:
        """Add a step for one output of a linear layer: the dot product of ``x`` with a column of W, and the bias if there is one.

        Args:
            label: the quantity.
            formula: its equation without the bias.
            layer: the linear layer; PyTorch stores the columns of W as rows.
            x: input, one vector.
            row: index of the output.
            traced: the value that the model computed.
        """
        weight, bias = linear_weight(layer)
        expression: Expression = dot(numbers(x), numbers(weight[row]))
        if bias is not None:
            expression, formula = expression + number(bias[row]), joined("", [formula, " + b"])
        if isinstance(layer, LoraLinear):
            formula = message("explain.lora", formula=formula, scale=f"{layer.scale:g}")
        return self.calculate(label, formula, expression, traced)


def _block_of(address: str) -> str:
    """Return the path of the block of a site."""
    stack, _, rest = address.partition(".blocks.")
    return f"{stack}.blocks.{rest.partition('.')[0]}"


def linear_weight(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a linear layer, with its low-rank update if it has one."""
    assert isinstance(layer, nn.Linear)
    if isinstance(layer, LoraLinear):
        return layer.merged_weight(layer.weight, layer.lora_a, layer.lora_b), layer.bias
    return layer.weight, layer.bias


def number(x: Tensor) -> Number:
    """Return the value of a tensor of shape ()."""
    return Number(x.double().item())


def numbers(x: Tensor) -> list[Number]:
    """Return the elements of a vector."""
    return [Number(value) for value in x.double().tolist()]


def weighted_sum(weights: Sequence[Expression], values: Sequence[Expression]) -> Sum:
    """Return the sum of values times weights."""
    return Sum([Product((weight, value)) for weight, value in zip(weights, values, strict=True)])
