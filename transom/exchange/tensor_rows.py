"""Rows of a family's table of tensors: names on both sides, and a transform that is read in both directions.

Names are patterns. ``{i}`` and ``{e}`` stand for a number, the same on both sides. ``{a,b}`` stands for alternatives, the n-th of the one
side with the n-th of the other. ``[a,b]`` lists tensors that a transform reads or writes together.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

_ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_JOINED = re.compile(r"\[([^\[\]]*)\]")
_NUMBER = re.compile(r"\\\{([a-z])\\\}")


class Configs(NamedTuple):
    """Configuration of a model on both sides."""

    ours: Any
    foreign: Mapping[str, Any]


@runtime_checkable
class Transform(Protocol):
    """A conversion between tensors of both sides. It also works on meta tensors, from which expected shapes are derived."""

    def read(self, foreign: Sequence[Tensor], like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        """Return our tensors; ``like`` has their shapes."""

    def write(self, ours: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        """Return the foreign tensors."""


class OneForeign(ABC):
    """Base of the transforms with one foreign tensor."""

    @abstractmethod
    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        """Return our tensors; ``like`` has their shapes."""

    @abstractmethod
    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        """Return the foreign tensor."""

    def read(self, foreign: Sequence[Tensor], like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        """Return our tensors; ``like`` has their shapes."""
        return self.split(foreign[0], like, configs)

    def write(self, ours: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        """Return the foreign tensor, alone in a list."""
        return [self.join(ours, configs)]


class Equal(OneForeign):
    """The same tensor; of several names of ours, each gets a copy."""

    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        return [foreign] * len(like)

    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        return ours[0]


class Transposed(OneForeign):
    """Our weights (out, in), one above the other, stored as (in, out), as GPT-2 does; biases one after another."""

    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        return [part.t() for part in foreign.split([len(each) for each in like], -1)]

    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        return torch.cat([each.t() for each in ours], -1)


class WithAxes(OneForeign):
    """The same values, with axes of size 1 before ours on the foreign side."""

    def __init__(self, n: int) -> None:
        """Store the number of these axes."""
        self.axes = (1,) * n

    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        return [foreign.reshape(like[0].shape)]

    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        return ours[0].reshape(*self.axes, *ours[0].shape)


class PatchKernels(OneForeign):
    """The projection of flattened patches, stored as the kernels of a convolution (d_model, channels, patch_size, patch_size)."""

    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        return [foreign.flatten(1)]

    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        size = configs.ours.patch_size
        return ours[0].unflatten(1, (-1, size, size))


class ByHead(OneForeign):
    """W_Q, W_K and W_V with the rows of each head together: (n_heads, 3, d_head, ...), as GPT-NeoX stores them."""

    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        heads = foreign.unflatten(0, (-1, 3, configs.ours.d_head))
        return [part.flatten(0, 1) for part in heads.unbind(1)]

    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        heads = [each.unflatten(0, (-1, configs.ours.d_head)) for each in ours]
        return torch.stack(heads, 1).flatten(0, 2)


class AfterRows(OneForeign):
    """A table of positions that has unused rows before ours, as BART and RoBERTa do; zeros are written."""

    def __init__(self, n: int) -> None:
        """Store the number of unused rows."""
        self.n = n

    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        return [foreign[self.n :]]

    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        return torch.cat([ours[0].new_zeros(self.n, *ours[0].shape[1:]), ours[0]])


class GainMinusOne(OneForeign):
    """A norm's gain, stored without the 1 that is added to it (Gemma). Computed in float32 or wider."""

    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        return [foreign.to(torch.promote_types(foreign.dtype, torch.float32)) + 1]

    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        return ours[0] - 1


class ScaledQuery(OneForeign):
    """W_Q of a model that divides scores by another number than sqrt(d_head); the scale is part of our W_Q.

    It is exact where the scale is a power of two, as in T5, whose heads have the dimensions 16, 64 or 256.
    """

    def __init__(self, factor: Callable[[Configs], float]) -> None:
        """Store the function that returns the factor of W_Q: sqrt(d_head) over the model's own divisor."""
        self.factor = factor

    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        return [_multiplied(foreign, self.factor(configs))]

    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        return _multiplied(ours[0], 1 / self.factor(configs))


def _multiplied(x: Tensor, factor: float) -> Tensor:
    """Return the product, in float32 or wider if the factor is no power of two."""
    exact = math.frexp(factor)[0] == 0.5
    return x * factor if exact else x.to(torch.promote_types(x.dtype, torch.float32)) * factor


EQUAL, TRANSPOSED, PATCH_KERNELS, BY_HEAD, GAIN_MINUS_ONE = Equal(), Transposed(), PatchKernels(), ByHead(), GainMinusOne()


@dataclass(frozen=True)
class TensorRow:
    """A correspondence between tensors of both sides.

    Attributes:
        ours: pattern of our names.
        foreign: pattern of the foreign names.
        how: transform between both.
        when: whether a model with this configuration of ours uses the row.
    """

    ours: str
    foreign: str
    how: Transform = EQUAL
    when: Callable[[Any], bool] = lambda config: True

    @cached_property
    def _patterns(self) -> list[tuple[list[re.Pattern[str]], list[str], list[str]]]:
        """Patterns and templates of our names, and templates of the foreign ones, for each combination of alternatives."""
        found = []
        for ours, foreign in zip(_expand(self.ours), _expand(self.foreign), strict=True):
            names = _listed(ours)
            found.append(([_compile(name) for name in names], names, _listed(foreign)))
        return found

    def match(self, name: str) -> tuple[list[str], list[str]] | None:
        """Return our names and the foreign names of the group of tensors with our ``name``; None if the row does not have it."""
        for patterns, names, foreign in self._patterns:
            for pattern in patterns:
                if found := pattern.fullmatch(name):
                    numbers = found.groupdict()
                    return [_fill(each, numbers) for each in names], [_fill(each, numbers) for each in foreign]
        return None


def _listed(pattern: str) -> list[str]:
    """Return the patterns that a list stands for.

    >>> _listed("attn.[q,k].weight")
    ['attn.q.weight', 'attn.k.weight']
    """
    joined = _JOINED.search(pattern)
    return [pattern] if joined is None else [pattern.replace(joined[0], each) for each in joined[1].split(",")]


def _expand(pattern: str) -> Iterator[str]:
    """Yield the pattern with each combination of its alternatives.

    >>> list(_expand("ff.{up,down}.{weight,bias}"))
    ['ff.up.weight', 'ff.up.bias', 'ff.down.weight', 'ff.down.bias']
    """
    parts = _ALTERNATIVES.split(pattern)
    for chosen in product(*(part.split(",") if n % 2 else [part] for n, part in enumerate(parts))):
        yield "".join(chosen)


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(_NUMBER.sub(r"(?P<\1>[0-9]+)", re.escape(pattern)))


def _fill(template: str, numbers: Mapping[str, str]) -> str:
    for name, number in numbers.items():
        template = template.replace(f"{{{name}}}", number)
    return template


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of both sides that a transform converts together."""

    ours: tuple[str, ...]
    foreign: tuple[str, ...]
    how: Transform


def group_tensors(rows: Sequence[TensorRow], names: Sequence[str], config: Any) -> list[TensorGroup]:
    """Return the groups of a model's tensors, in the order of ``names``; every name must have a row."""
    rows = [row for row in rows if row.when(config)]
    groups: dict[str, TensorGroup] = {}
    for name in names:
        for row in rows:
            if (found := row.match(name)) is not None:
                ours, foreign = found
                groups.setdefault(foreign[0], TensorGroup(tuple(ours), tuple(foreign), row.how))
                break
        else:
            raise KeyError(f"no row for the tensor {name}")
    return list(groups.values())
