"""Sites: named points of the forward pass at which activations are recorded or edited, like forward hooks on intermediate tensors.

A site is one line, ``q = observe(ctx, self, "q", q)``. Without an observer it returns ``q`` and leaves no trace in the compiled graph. The
address of a site is the path of its module and its name: ``encoder.blocks.3.attn.q``. A module stores its path within its block only, and
the block's observer stores the rest, so that all blocks of a stack share one compiled graph, observed or not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transom.errors import ConfigError


class Edit(NamedTuple):
    """A replacement of a site's tensor.

    Attributes:
        value: new values, broadcastable to the site's shape.
        where: True where they replace the old values; None for everywhere.
    """

    value: Float[Tensor, "..."]
    where: Bool[Tensor, "..."] | None = None

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of ``value`` and ``where``; each must broadcast to the site's shape."""
        return [tuple(part.shape) for part in self if part is not None]

    def apply(self, x: Tensor) -> Tensor:
        value = self.value.to(x).expand_as(x)
        return value if self.where is None else torch.where(self.where.to(x.device), value, x)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    sizes = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, patterns) for size, patterns in sizes)


class ActivationObserver:
    """View of a recorder from one block, or from the modules around the blocks of a stack.

    A block that is recomputed in the backward pass (activation checkpointing) applies its edits again and records nothing new.

    Attributes:
        prefix: prefix of the addresses in this view, such as ``encoder.blocks.3.``; no layer reads it.
        patterns: patterns of the addresses to record, without the prefix.
        edits: edits by address, without the prefix.
        activations: recorded tensors by address, without the prefix.
    """

    def __init__(self, recorder: "ActivationRecorder", number: int, stack: str, block: int | None = None) -> None:
        """Create a view of ``recorder`` for pass ``number`` from a block of a stack, or from around its blocks if ``block`` is None."""
        self.prefix = "" if block is None else f"{stack}.blocks.{block}."
        self.patterns = _relative_patterns(recorder.patterns, self.prefix)
        self.edits = {at.removeprefix(self.prefix): edit for at, edit in recorder.edits.items() if at.startswith(self.prefix)}
        self.activations: dict[str, Tensor] = {}
        self._recorder, self._number, self._stack = recorder, number, stack
        recorder.views.append((number, self))

    def for_block(self, index: int) -> "ActivationObserver":
        """Return the view from block ``index`` of the same stack and pass."""
        return ActivationObserver(self._recorder, self._number, self._stack, index)

    def visit(self, address: str, x: Tensor) -> Tensor:
        """Apply the edit at ``address``, if any; record the result on the first visit, if its address matches a pattern."""
        x = self.edit(address, x)
        if address not in self.activations:
            self.record(address, x)
        return x

    def edit(self, address: str, x: Tensor) -> Tensor:
        """Apply the edit at ``address``, if any.

        Raises:
            ConfigError: the edit does not broadcast to the shape of ``x``.
        """
        if address not in self.edits:
            return x
        shapes = self.edits[address].shapes
        if not all(_broadcasts(shape, x.shape) for shape in shapes):
            by_pass = " where ".join(map(str, shapes))
            raise ConfigError(f"an edit at {self.prefix}{address} must broadcast to its shape {tuple(x.shape)}, found {by_pass}")
        return self.edits[address].apply(x)

    def record(self, address: str, x: Tensor) -> None:
        """Record ``x`` if the address matches a pattern, replacing an earlier record."""
        if _matches(self.patterns, address):
            if not torch.compiler.is_compiling():
                self._recorder.order.setdefault(self.prefix + address, len(self._recorder.order))
            self.activations[address] = x


def _matches(patterns: tuple[str, ...], address: str) -> bool:
    """Return whether any pattern matches the address."""
    return any(fnmatchcase(address, pattern) for pattern in patterns)


def _relative_patterns(patterns: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    """Return the patterns relative to ``prefix``; see ``_suffix_patterns``."""
    return tuple(dict.fromkeys(rest for pattern in patterns for rest in _suffix_patterns(pattern, prefix)))


def _suffix_patterns(pattern: str, prefix: str) -> tuple[str, ...]:
    """Return patterns for the rest of a site's name after ``prefix``, so that the whole name matches ``pattern``; ``*`` matches dots too.

    >>> _suffix_patterns("decoder.blocks.*.attn.q", "decoder.blocks.3."), _suffix_patterns("encoder.*", "decoder.blocks.3.")
    (('attn.q', '*.attn.q'), ())
    """
    states = [pattern]
    for character in prefix:
        after = list[str]()
        for state in states:
            while state.startswith("*"):
                after.append(state)
                state = state[1:]
            if state[:1] in ("?", character) and state:
                after.append(state[1:])
        states = list(dict.fromkeys(after))
    return tuple(sorted(states))[::-1] if prefix else (pattern,)


for _constant in (_matches, _relative_patterns):
    vars(_constant)["_dynamo_marked_constant"] = True  # as torch.compiler.assume_constant_result does, after a second of imports


class ActivationRecorder:
    """Records activations at some sites and edits them at others; pass it to a model as ``observer``.

    At an edited site the edited tensor is recorded.

    Attributes:
        patterns: addresses to record, or patterns of them, such as ``decoder.blocks.*.cross.q``; ``*`` matches dots too.
        edits: edits by address.
        views: (number of the pass, observer) of all passes.
        order: addresses, as keys, in the order of the first visit; empty under ``torch.compile``.
    """

    def __init__(self, patterns: Iterable[str] = (), edits: Mapping[str, Edit] | None = None) -> None:
        """Record activations at ``patterns`` and replace those at ``edits``."""
        self.patterns, self.edits = tuple(patterns), dict(edits or {})
        self.views: list[tuple[int, ActivationObserver]] = []
        self.order: dict[str, int] = {}
        self._n_passes = Counter[str]()

    def start_pass(self, stack: str) -> ActivationObserver:
        """Return an observer of a new pass through ``stack`` and the modules around its blocks."""
        self._n_passes[stack] += 1
        return ActivationObserver(self, self._n_passes[stack] - 1, stack)

    @property
    def passes(self) -> list[dict[str, Tensor]]:
        """Recorded tensors by address, one dict per pass: per batch, side of a pair, or decoding step."""
        by_pass = [dict[str, Tensor]() for _ in range(1 + max((number for number, _ in self.views), default=-1))]
        for number, view in self.views:
            by_pass[number] |= {view.prefix + address: x for address, x in view.activations.items()}
        return [dict(sorted(each.items(), key=lambda item: self.order.get(item[0], 0))) for each in by_pass]

    @property
    def activations(self) -> dict[str, Tensor]:
        """The latest recorded tensor per address."""
        return {address: x for each in self.passes for address, x in each.items()}


class UnrolledObserver(ActivationObserver):
    """An observer for a loop over time steps: the i-th visit of an address is step i.

    A site then has one tensor for all steps; later steps are 0 until they are reached.
    """

    def __init__(self, observer: ActivationObserver, n_steps: int) -> None:
        """Wrap ``observer`` for a loop of ``n_steps`` steps."""
        self._observer, self._n_steps = observer, n_steps
        self._recorded: dict[str, tuple[int, Tensor]] = {}

    def visit(self, address: str, x: Tensor) -> Tensor:
        """Insert ``x``, (..., 1, width), at the current step of the site's tensor; return it, or its edit."""
        step, whole = self._recorded.get(address) or (0, x.new_zeros(*x.shape[:-2], self._n_steps, x.shape[-1]))
        before, _, after = whole.split([step, 1, self._n_steps - step - 1], -2)
        whole = self._observer.edit(address, torch.cat([before, x, after], -2))
        self._observer.record(address, whole)
        self._recorded[address] = step + 1, whole
        return whole.narrow(-2, step, 1)


@runtime_checkable
class HasObserver(Protocol):
    """A context object with an observer."""

    @property
    def observer(self) -> ActivationObserver | None:
        """Observer of this pass, or None."""
        ...


def observe(ctx: HasObserver, module: nn.Module, name: str, x: Tensor) -> Tensor:
    """Declare site ``name`` of ``module``: return ``x``, or its replacement by the observer."""
    if ctx.observer is None:
        return x
    path: Any = module.address
    return ctx.observer.visit(f"{path}.{name}" if path else name, x)


def assign_addresses(model: nn.Module) -> None:
    """Store in each module its path; inside a block, the path from the block: ``attn`` for ``encoder.blocks.3.attn``.

    Call it once the model is built, before any module is wrapped.
    """
    for path, module in model.named_modules():
        outside, blocks, inside = path.partition(".blocks.")
        module.address = inside.partition(".")[2] if blocks else outside
