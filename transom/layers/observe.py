"""Sites: named places in the forward pass at which the real, fast model is read and edited.

A site is one line, ``q = observe(ctx, self, "q", q)``. Without an observer it returns ``q``, and the traced graph has no sign of it. The
address of a site is the path of its module and its name: ``encoder.blocks.3.attn.q``. A module knows its path within its block only, and
the block's observer knows the rest, so that all blocks of a stack share one compiled graph, observed or not.
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
        value: the new values, of the site's shape or one that broadcasts to it.
        where: True where they replace the old ones; None for everywhere.
    """

    value: Float[Tensor, "..."]
    where: Bool[Tensor, "..."] | None = None

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of its tensors, each of which must broadcast to the site's."""
        return [tuple(part.shape) for part in self if part is not None]

    def apply(self, x: Tensor) -> Tensor:
        """Return the edited tensor."""
        value = self.value.to(x).expand_as(x)
        return value if self.where is None else torch.where(self.where.to(x.device), value, x)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    sizes = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in sizes)


class ActivationObserver:
    """A recorder as seen from one block, or from what surrounds the blocks of a stack.

    Within a pass it only selects, collects and edits tensors. A block that is computed again in the backward pass (activation
    checkpointing) edits again and records nothing new.

    Attributes:
        prefix: what precedes the addresses seen here, as ``encoder.blocks.3.``; no layer reads it.
        wanted: patterns of the addresses to record, without the prefix.
        edits: by address, without the prefix.
        activations: what was recorded, by address, without the prefix.
    """

    def __init__(self, recorder: "ActivationRecorder", number: int, stack: str, block: int | None = None) -> None:
        """View ``recorder`` in pass ``number`` from a block of a stack; without a block, from around its blocks."""
        self.prefix = "" if block is None else f"{stack}.blocks.{block}."
        self.wanted = _within(recorder.wanted, self.prefix)
        self.edits = {at.removeprefix(self.prefix): edit for at, edit in recorder.edits.items() if at.startswith(self.prefix)}
        self.activations: dict[str, Tensor] = {}
        self._recorder, self._number, self._stack = recorder, number, stack
        recorder.views.append((number, self))

    def block(self, index: int) -> "ActivationObserver":
        """Return the view from a block of the same stack, in the same pass."""
        return ActivationObserver(self._recorder, self._number, self._stack, index)

    def visit(self, address: str, x: Tensor) -> Tensor:
        """Return ``x`` at ``address``, or its edit; record it on the first visit, if it is wanted."""
        x = self.edit(address, x)
        if address not in self.activations:
            self.record(address, x)
        return x

    def edit(self, address: str, x: Tensor) -> Tensor:
        """Return ``x``, or its edit.

        Raises:
            ConfigError: the edit does not broadcast to the shape of ``x``.
        """
        if address not in self.edits:
            return x
        shapes = self.edits[address].shapes
        if not all(_broadcasts(shape, x.shape) for shape in shapes):
            found = " where ".join(map(str, shapes))
            raise ConfigError(f"an edit at {self.prefix}{address} must broadcast to its shape {tuple(x.shape)}, found {found}")
        return self.edits[address].apply(x)

    def record(self, address: str, x: Tensor) -> None:
        """Record ``x`` if it is wanted, in place of what was recorded before."""
        if _matches(self.wanted, address):
            if not torch.compiler.is_compiling():
                self._recorder.order.setdefault(self.prefix + address, len(self._recorder.order))
            self.activations[address] = x


def _matches(patterns: tuple[str, ...], address: str) -> bool:
    """Return whether any pattern matches the address."""
    return any(fnmatchcase(address, pattern) for pattern in patterns)


def _within(patterns: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    """List the patterns of the rest of an address, as ``_remainders`` has them."""
    return tuple(dict.fromkeys(rest for pattern in patterns for rest in _remainders(pattern, prefix)))


def _remainders(pattern: str, prefix: str) -> tuple[str, ...]:
    """List the patterns that must match the rest of an address which begins with ``prefix``; ``*`` stands for anything, dots included.

    >>> _remainders("decoder.blocks.*.attn.q", "decoder.blocks.3."), _remainders("encoder.*", "decoder.blocks.3.")
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


for _constant in (_matches, _within):
    vars(_constant)["_dynamo_marked_constant"] = True  # as torch.compiler.assume_constant_result does, after a second of imports


class ActivationRecorder:
    """Records the tensors at wanted sites and edits those at others: what a model takes as ``observer``.

    What is recorded is what the model goes on with: at an edited site, the edited tensor.

    Attributes:
        wanted: addresses, or patterns of them (``*`` stands for anything, dots included), as ``decoder.blocks.*.cross.q``.
        edits: by address.
        views: the observers of all passes, each with the number of its pass.
        order: addresses, as keys, in the order of the first visit; empty under ``torch.compile``.
    """

    def __init__(self, wanted: Iterable[str] = (), edits: Mapping[str, Edit] | None = None) -> None:
        """Record at ``wanted``, edit at ``edits``."""
        self.wanted, self.edits = tuple(wanted), dict(edits or {})
        self.views: list[tuple[int, ActivationObserver]] = []
        self.order: dict[str, int] = {}
        self._n_passes = Counter[str]()

    def open(self, stack: str) -> ActivationObserver:
        """Begin to observe a pass through a stack, and what precedes and follows its blocks."""
        self._n_passes[stack] += 1
        return ActivationObserver(self, self._n_passes[stack] - 1, stack)

    @property
    def passes(self) -> list[dict[str, Tensor]]:
        """What was recorded, by address, per pass: one for each time that the model read a batch, a side of pairs, or new tokens."""
        found = [dict[str, Tensor]() for _ in range(1 + max((number for number, _ in self.views), default=-1))]
        for number, view in self.views:
            found[number] |= {view.prefix + address: x for address, x in view.activations.items()}
        return [dict(sorted(each.items(), key=lambda item: self.order.get(item[0], 0))) for each in found]

    @property
    def activations(self) -> dict[str, Tensor]:
        """What was recorded last, by address."""
        return {address: x for each in self.passes for address, x in each.items()}


class UnrolledObserver(ActivationObserver):
    """An observer inside a loop over places: the i-th visit of an address is its place i.

    A site then has one tensor for all places; those to come are 0 until they are reached.
    """

    def __init__(self, observer: ActivationObserver, n_places: int) -> None:
        """Show ``observer`` a loop over ``n_places``."""
        self._observer, self._n_places = observer, n_places
        self._shown: dict[str, tuple[int, Tensor]] = {}

    def visit(self, address: str, x: Tensor) -> Tensor:
        """Show ``x`` (..., 1, width) among the other places; return it, or its edit."""
        place, whole = self._shown.get(address) or (0, x.new_zeros(*x.shape[:-2], self._n_places, x.shape[-1]))
        before, _, after = whole.split([place, 1, self._n_places - place - 1], -2)
        whole = self._observer.edit(address, torch.cat([before, x, after], -2))
        self._observer.record(address, whole)
        self._shown[address] = place + 1, whole
        return whole.narrow(-2, place, 1)


@runtime_checkable
class Observed(Protocol):
    """A context in which layers may be observed."""

    @property
    def observer(self) -> ActivationObserver | None:
        """The observer of this pass, if there is one."""
        ...


def observe(ctx: Observed, module: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return ``x``, the tensor at site ``name`` of ``module``, or what the observer replaces it by."""
    if ctx.observer is None:
        return x
    path: Any = module.address
    return ctx.observer.visit(f"{path}.{name}" if path else name, x)


def assign_addresses(model: nn.Module) -> None:
    """Tell each module its path, inside a block the path from there: ``attn`` for ``encoder.blocks.3.attn``.

    Call it once the model is built, before anything wraps its modules.
    """
    for path, module in model.named_modules():
        outside, blocks, inside = path.partition(".blocks.")
        module.address = inside.partition(".")[2] if blocks else outside
