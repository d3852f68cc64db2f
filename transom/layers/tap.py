"""Taps: the named sites at which the real, fast model can be read and edited.

A site is one line, ``x = tap(taps, "resid_mid", x)``. With ``taps`` None the line does nothing, and a traced graph shows
no sign of it. A site's address is the path of its module and its name: ``encoder.blocks.3.attn.q``.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Taps(Protocol):
    """What observes a forward pass: it is shown every tensor at every site and returns the one to go on with."""

    def visit(self, address: str, x: Tensor) -> Tensor:
        """Take note of ``x`` at ``address``; return it, or what replaces it."""
        ...


class Scope(NamedTuple):
    """Taps as seen from one module: the observer and the module's address."""

    taps: Taps
    path: str = ""


def scope(taps: Scope | None, name: str) -> Scope | None:
    """Step into the sub-module ``name``."""
    return None if taps is None else Scope(taps.taps, f"{taps.path}{name}.")


def tap(taps: Scope | None, name: str, x: Tensor) -> Tensor:
    """Show ``x`` at site ``name`` of the module whose scope ``taps`` is; return it, or its edit."""
    return x if taps is None else taps.taps.visit(taps.path + name, x)


class Kept:
    """Taps that keep what passes at some addresses, each time that it does, and show everything to others.

    Attributes:
        at: by address, its tensors in the order of the passes.
    """

    def __init__(self, addresses: Iterable[str] = (), others: Taps | None = None) -> None:
        """Begin with nothing at ``addresses``."""
        self.at: dict[str, list[Tensor]] = {address: [] for address in addresses}
        self._others = others

    def visit(self, address: str, x: Tensor) -> Tensor:
        """Keep what the others make of ``x``."""
        if self._others is not None:
            x = self._others.visit(address, x)
        if address in self.at:
            self.at[address].append(x)
        return x


class _Unrolled:
    """Taps in a loop over places: the i-th visit of an address is its place i; what is shown is the whole, as far as it is known."""

    def __init__(self, taps: Taps, n: int) -> None:
        self.taps, self.n = taps, n
        self.shown: dict[str, tuple[int, Tensor]] = {}

    def visit(self, address: str, x: Tensor) -> Tensor:
        """Show ``x`` among the other places, which are the last axis but one; return its own, as it is or as its edit."""
        place, whole = self.shown.get(address) or (0, x.new_zeros(*x.shape[:-2], self.n, x.shape[-1]))
        before, _, behind = whole.split([place, 1, self.n - place - 1], -2)
        whole = self.taps.visit(address, torch.cat([before, x, behind], -2))
        self.shown[address] = place + 1, whole
        return whole.narrow(-2, place, 1)


def unrolled(taps: Scope | None, n: int) -> Scope | None:
    """Enter a loop over ``n`` places, so that a site in it has one tensor for all of them, whose places to come are 0 till then."""
    return None if taps is None else Scope(_Unrolled(taps.taps, n), taps.path)
