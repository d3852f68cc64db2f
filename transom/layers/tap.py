"""Taps: the named sites at which the real, fast model can be read and edited.

A site is one line, ``x = tap(taps, "resid_mid", x)``. With ``taps`` None the line does nothing, and a traced graph shows
no sign of it. A site's address is the path of its module and its name: ``encoder.blocks.3.attn.q``.
"""

from typing import NamedTuple, Protocol

from torch import Tensor


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
