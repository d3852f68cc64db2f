"""Steps of a calculation: a function of earlier values, each of which may be taken as computed or as printed."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from transom.lab.examples import Example

Value = Float[Tensor, "..."]


class Step(NamedTuple):
    """A function of the values of other examples; without inputs, a value that transom computes from the article's description.

    Attributes:
        inputs: ids of the examples that the function reads.
        compute: the function; arguments and result have the shapes that the article prints.
    """

    inputs: tuple[str, ...]
    compute: Callable[..., Value]


class Calculation:
    """The steps of all articles, evaluated from computed or from printed values.

    Attributes:
        examples: all examples by id.
        steps: step of each computed example by id. Given and cited examples have none.
    """

    def __init__(self, examples: Mapping[str, Example], steps: Mapping[str, Step]) -> None:
        self.examples, self.steps = examples, steps
        self._values: dict[tuple[str, int | None], Value] = {}

    def exact(self, name: str) -> Value:
        """Return the right value: computed through all steps, from given numbers only. A cited fact is as published."""
        return self.from_printed(name, None)

    def from_printed(self, name: str, depth: int | None) -> Value:
        """Compute a value from the printed values of ``depth`` steps before, which 0 returns as printed; None computes all steps."""
        if (name, depth) not in self._values:
            self._values[name, depth] = self._compute(name, depth)
        return self._values[name, depth]

    def _compute(self, name: str, depth: int | None) -> Value:
        example = self.examples[name]
        if depth == 0 or example.kind == "given":
            return example.value
        if example.kind == "cited":
            return published_value(example) if depth is None else example.value
        inputs, compute = self.steps[name]
        before = None if depth is None else depth - 1
        return compute(*(self.from_printed(each, before) for each in inputs))

    def inputs(self, name: str) -> tuple[str, ...]:
        """Return the ids of the examples that a step reads; none for a given or cited example."""
        return self.steps[name].inputs if name in self.steps else ()

    def depth(self, name: str) -> int:
        """Return the number of steps from the given numbers to an example."""
        return 1 + max(map(self.depth, self.inputs(name)), default=-1)

    def reach(self, name: str) -> Value:
        """Return how far a value moves at most, to first order, if each rounded number that its step reads is off by half a unit.

        Given numbers are exact, and so are printed results that are equal to the right ones.
        """
        inputs, compute = self.steps[name]
        values = [self.examples[each].value for each in inputs]
        at = compute(*values)
        moved = torch.zeros_like(at)
        for i, each in enumerate(inputs):
            for shifted in self._shifted(each):
                moved += (compute(*values[:i], shifted, *values[i + 1 :]) - at).abs()
        return moved

    def _shifted(self, name: str) -> Iterator[Value]:
        """Yield the printed value with one of its rounded numbers moved by half a unit of its last place, for each such number."""
        example = self.examples[name]
        value, unit = example.value, example.half_unit
        rounded = (value - self.exact(name)).abs() > 1e-6 * unit
        for i in rounded.flatten().nonzero().flatten().tolist():
            shifted = value.flatten().clone()
            shifted[i] += unit.flatten()[i]
            yield shifted.reshape(value.shape)


def published_value(example: Example) -> Value:
    """Return the published value of a cited fact."""
    assert example.published is not None, f"{example.id}: a cited fact has a published value"
    return example.model_copy(update={"printed": example.published}).value
