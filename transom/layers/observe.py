"""Sites: named points of the forward pass at which activations are recorded or edited, like forward hooks on intermediate tensors.

A site is one line of a layer, ``q = observe(ctx, self, "q", q)``. Without an observer the line returns ``q`` and adds nothing to a compiled
graph. The address of a site is the path of its module followed by its name: ``encoder.blocks.3.attn.q``. A module stores only its path
within its block, ``attn``, and the observer of the block stores the path of the block. All blocks of a stack can therefore share one
compiled graph, with or without an observer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transom.errors import ConfigError


class Visit(NamedTuple):
    """One visit of a site, as an edit sees it.

    Attributes:
        address: address of the site.
        observer: view of the block or stack, whose ``read`` returns the earlier sites of the same block and pass.
        ctx: context of the layer that declares the site, with its mask and bias.
        module: the layer that declares the site.
    """

    address: str
    observer: "ActivationObserver"
    ctx: Any
    module: nn.Module


@runtime_checkable
class SiteEdit(Protocol):
    """A change of the tensor of a site: an ``Edit`` with given values, or one that computes them from the pass."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Addresses of earlier sites of the same block that ``apply`` reads."""
        ...

    def apply(self, x: Tensor, visit: Visit) -> Tensor:
        """Return the tensor that replaces ``x``."""
        ...


class Edit(NamedTuple):
    """New values for the tensor of a site.

    Attributes:
        value: new values, broadcastable to the site's shape.
        where: True where the new values replace the old ones; None to replace all.
    """

    value: Float[Tensor, "..."]
    where: Bool[Tensor, "..."] | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """No other sites: the values are given."""
        return ()

    def apply(self, x: Tensor, visit: Visit) -> Tensor:
        """Return ``value`` where ``where`` is True, and ``x`` elsewhere.

        Raises:
            ConfigError: ``value`` or ``where`` does not broadcast to the shape of ``x``.
        """
        shapes = [tuple(part.shape) for part in self if part is not None]
        if not all(_broadcasts(shape, x.shape) for shape in shapes):
            found = " and where of shape ".join(map(str, shapes))
            raise ConfigError(
                f"edit at {visit.address}: expected a value that broadcasts to the shape {tuple(x.shape)} of the site, found a value"
                f" of shape {found}; reshape the edit"
            )
        value = self.value.to(x).expand_as(x)
        return value if self.where is None else torch.where(self.where.to(x.device), value, x)


SiteEdits = Mapping[str, Sequence[SiteEdit]]
"""Edits per address, in the order in which they are applied."""


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    sizes = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, patterns) for size, patterns in sizes)


class ActivationObserver:
    """View of a recorder in one pass, for the sites of one block or those around the blocks of a stack.

    A block that is recomputed in the backward pass (activation checkpointing) applies its edits again and records nothing new.

    Attributes:
        prefix: beginning of all addresses in this view, such as ``encoder.blocks.3.``; empty around the blocks.
        patterns: patterns of the addresses to record; here and below, addresses are without the prefix.
        edits: edits per address, in the order in which they are applied.
        activations: recorded tensor per address.
    """

    def __init__(
        self, recorder: "ActivationRecorder", number: int, stack: str, block: int | None = None, edits: SiteEdits | None = None
    ) -> None:
        """Create a view of ``recorder`` for a pass through ``stack``.

        Args:
            recorder: patterns and edits of the sites.
            number: number of the pass.
            stack: name of the stack.
            block: index of the block; None for what is around the blocks.
            edits: edits that are applied before those of the recorder.
        """
        self.prefix = "" if block is None else f"{stack}.blocks.{block}."
        self.patterns = _relative_patterns(recorder.patterns, self.prefix)
        self.edits = _relative_edits(recorder, edits, self.prefix)
        self.activations: dict[str, Tensor] = {}
        self._recorder, self._number, self._stack, self._all_edits = recorder, number, stack, edits
        self._read: dict[str, Tensor | None] = {at: None for edits_at in self.edits.values() for each in edits_at for at in each.reads}
        recorder.views.append((number, self))

    def for_block(self, index: int) -> "ActivationObserver":
        """Return the view for block ``index`` of the same stack and pass."""
        return ActivationObserver(self._recorder, self._number, self._stack, index, self._all_edits)

    def visit(self, address: str, x: Tensor, ctx: Any, module: nn.Module) -> Tensor:
        """Return ``x`` after the edits at ``address``, if any; record the result if ``address`` matches a pattern and is new."""
        x = self.edit(address, x, ctx, module)
        if address in self._read:
            self._read[address] = x
        if address not in self.activations:
            self.record(address, x)
        return x

    def read(self, address: str) -> Tensor:
        """Return the tensor of an earlier site of this block, after its edits; an edit of the block must list it in ``reads``."""
        x = self._read[address]
        assert x is not None, f"{self.prefix}{address} is visited after the edit that reads it"
        return x

    def edit(self, address: str, x: Tensor, ctx: Any, module: nn.Module) -> Tensor:
        """Return ``x`` after the edits at ``address``, or ``x`` itself if the address has none."""
        for edit in self.edits.get(address, ()):
            x = edit.apply(x, Visit(self.prefix + address, self, ctx, module))
        return x

    def wants(self, address: str) -> bool:
        """Return whether an address matches a pattern."""
        return _matches(self.patterns, address)

    def uses(self, address: str) -> bool:
        """Return whether a visit of the address records, edits or keeps its tensor."""
        return address in self.edits or address in self._read or self.wants(address)

    def record(self, address: str, x: Tensor) -> None:
        """Record ``x`` if the address matches a pattern; replace an earlier record of the address."""
        if self.wants(address):
            if torch.compiler.is_compiling():  # all blocks share a graph, which must not read the prefix
                self.activations[address] = x
            else:
                self._recorder.order.setdefault(self.prefix + address, len(self._recorder.order))
                self.activations[address] = self._recorder.keep(self.prefix + address, x)


def _relative_edits(recorder: "ActivationRecorder", edits: SiteEdits | None, prefix: str) -> dict[str, tuple[SiteEdit, ...]]:
    """Return the edits whose address starts with ``prefix``, by the rest of the address: first ``edits``, then those of the recorder."""
    found = {at.removeprefix(prefix): tuple(each) for at, each in (edits or {}).items() if at.startswith(prefix)}
    for at, edit in recorder.edits.items():
        if at.startswith(prefix):
            rest = at.removeprefix(prefix)
            found[rest] = (*found.get(rest, ()), edit)
    return found


def _matches(patterns: tuple[str, ...], address: str) -> bool:
    """Return whether any pattern matches the address."""
    return any(fnmatchcase(address, pattern) for pattern in patterns)


def _relative_patterns(patterns: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    """Return the ``_suffix_patterns`` of all patterns, without duplicates."""
    return tuple(dict.fromkeys(rest for pattern in patterns for rest in _suffix_patterns(pattern, prefix)))


@lru_cache(maxsize=4096)
def _suffix_patterns(pattern: str, prefix: str) -> tuple[str, ...]:
    """Return patterns such that ``prefix + rest`` matches ``pattern`` exactly if ``rest`` matches one of them; ``*`` matches dots too.

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
    """Records the activations of some sites and replaces those of others. Pass the recorder to a model as ``observer``.

    If a site is both recorded and edited, the edited tensor is recorded.

    Attributes:
        patterns: addresses to record, or patterns of them, such as ``decoder.blocks.*.cross.q``; ``*`` matches dots too.
        edits: edit per address.
        views: (number of the pass, observer) of every view of every pass.
        order: number of each recorded address in the order of first visits, from 0; empty under ``torch.compile``.
    """

    def __init__(self, patterns: Iterable[str] = (), edits: Mapping[str, Edit] | None = None) -> None:
        """Record the sites that match ``patterns``, and edit the sites with an address in ``edits``."""
        self.patterns, self.edits = tuple(patterns), dict(edits or {})
        self.views: list[tuple[int, ActivationObserver]] = []
        self.order: dict[str, int] = {}
        self._n_passes = Counter[str]()

    def keep(self, address: str, x: Tensor) -> Tensor:
        """Return what is recorded of ``x``: all of it; a subclass may keep a part. Compiled passes record all."""
        return x

    def start_pass(self, stack: str, edits: SiteEdits | None = None) -> ActivationObserver:
        """Return an observer of a new pass through ``stack`` and the modules around its blocks; ``edits`` precede those of the recorder."""
        self._n_passes[stack] += 1
        return ActivationObserver(self, self._n_passes[stack] - 1, stack, None, edits)

    @property
    def passes(self) -> list[dict[str, Tensor]]:
        """Recorded tensors, one dict by address per forward pass. Every batch, side of a text pair and decoding step is a pass."""
        by_pass = [dict[str, Tensor]() for _ in range(1 + max((number for number, _ in self.views), default=-1))]
        for number, view in self.views:
            by_pass[number] |= {view.prefix + address: x for address, x in view.activations.items()}
        return [dict(sorted(each.items(), key=lambda item: self.order.get(item[0], 0))) for each in by_pass]

    @property
    def activations(self) -> dict[str, Tensor]:
        """Latest recorded tensor per address, over all passes."""
        return {address: x for each in self.passes for address, x in each.items()}


class UnrolledObserver(ActivationObserver):
    """An observer for a loop over time steps: the i-th visit of an address is step i.

    A site then has one tensor for all steps, in which steps that are not reached yet are 0.
    """

    def __init__(self, observer: ActivationObserver, n_steps: int) -> None:
        """Wrap ``observer`` for a loop of ``n_steps`` steps."""
        self._observer, self._n_steps = observer, n_steps
        self._recorded: dict[str, tuple[int, Tensor]] = {}

    def uses(self, address: str) -> bool:
        """Return whether a visit of the address records, edits or keeps its tensor."""
        return self._observer.uses(address)

    def visit(self, address: str, x: Tensor, ctx: Any, module: nn.Module) -> Tensor:
        """Insert ``x``, (..., 1, width), at the current step of the site's tensor; return this step after the site's edits, if any."""
        step, whole = self._recorded.get(address) or (0, x.new_zeros(*x.shape[:-2], self._n_steps, x.shape[-1]))
        before, _, after = whole.split([step, 1, self._n_steps - step - 1], -2)
        if address in self._observer.edits:
            x = self._observer.edit(address, torch.cat([before, x, after], -2), ctx, module).narrow(-2, step, 1)
        whole = torch.cat([before, x, after], -2)
        self._observer.record(address, whole)
        self._recorded[address] = step + 1, whole
        return x


@runtime_checkable
class HasObserver(Protocol):
    """A context object with an observer."""

    @property
    def observer(self) -> ActivationObserver | None:
        """Observer of this pass, or None."""
        ...


def observe(ctx: HasObserver, module: nn.Module, name: str, x: Tensor) -> Tensor:
    """Declare a hook point ``name`` in ``module``: return ``x``, or the tensor with which the observer replaces ``x``."""
    return x if ctx.observer is None else ctx.observer.visit(_site(module, name), x, ctx, module)


def is_observed(ctx: HasObserver, module: nn.Module, name: str) -> bool:
    """Return whether the observer records, edits or keeps the tensor at the hook point ``name`` of ``module``."""
    return ctx.observer is not None and ctx.observer.uses(_site(module, name))


def _site(module: nn.Module, name: str) -> str:
    """Return the address of a hook point within its block or stack."""
    path: Any = module.address
    return f"{path}.{name}" if path else name


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL = [vars(torch.nn.modules.module).get(f"_global{name}", {}) for name in _HOOKS]


def has_hooks(module: nn.Module) -> bool:
    """Return whether a call of ``module`` runs hooks, its own or those of all modules, or a ``forward`` that replaces that of its class."""
    own = vars(module)
    return "forward" in own or any(own.get(name) for name in _HOOKS) or any(_HOOKS_OF_ALL)


def assign_addresses(model: nn.Module) -> None:
    """Store the path of each module in its attribute ``address``; inside a block, only the path within the block, such as ``attn``.

    Call this function after the model is built and before modules are wrapped, which changes their paths.
    """
    for path, module in model.named_modules():
        outside, blocks, inside = path.partition(".blocks.")
        module.address = inside.partition(".")[2] if blocks else outside
