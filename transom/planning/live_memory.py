"""Follow the memory of tensors through PyTorch operations, on real tensors or on tensors that have shapes and no values."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from torch import Tensor

from transom.layers.dispatch import SHAPE_TYPES


class LiveBytes:
    """Bytes of the tensors that operations allocate in a ``follow_memory`` block; views share the memory of their tensor.

    Memory that an operation uses and returns within one call, such as oneDNN's scratchpad, is not seen.

    Attributes:
        current: bytes that are alive.
        peak: largest number of bytes that were alive at once.
        largest: bytes of the largest single tensor.
    """

    def __init__(self) -> None:
        """Start with no bytes."""
        self.current = self.peak = self.largest = 0
        self._seen = dict[int, weakref.ref[Any]]()

    def take_peak(self) -> int:
        """Return the largest number of bytes that were alive at once so far, and look for the next one from now on."""
        peak, self.peak = self.peak, self.current
        return peak

    def add(self, x: object) -> None:
        """Count a tensor's memory until it is freed; a tensor whose memory is counted already adds nothing."""
        if not isinstance(x, Tensor):
            return
        storage = x.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._seen:
            return

        def free(_: object) -> None:
            del self._seen[key]
            self.current -= size

        self._seen[key] = weakref.ref(storage, free)
        self.current += size
        self.peak, self.largest = max(self.peak, self.current), max(self.largest, size)


class SavedBytes:
    """Bytes of the distinct tensors that operations save for the backward pass.

    Attributes:
        total: bytes so far, without tensors given to ``ignore``.
    """

    def __init__(self) -> None:
        """Start with no bytes."""
        self.total = 0
        self._seen = dict[int, weakref.ref[Any]]()

    def ignore(self, x: Tensor) -> None:
        """Never count the memory of this tensor, such as a weight."""
        storage = x.untyped_storage()
        self._seen[id(storage)] = weakref.ref(storage)

    def pack(self, x: Tensor) -> Tensor:
        """Count a saved tensor, as the first hook of ``torch.autograd.graph.saved_tensors_hooks``."""
        storage = x.untyped_storage()
        known = self._seen.get(id(storage))
        if known is None or known() is None:  # a freed tensor's number may serve another one
            self._seen[id(storage)] = weakref.ref(storage)
            self.total += storage.nbytes()
        return x


def can_follow() -> bool:
    """Return whether this PyTorch has the classes that ``follow_memory`` and ``without_values`` need."""
    return _dispatch_mode() is not None and _fake_tensors() is not None


@contextmanager
def follow_memory() -> Iterator[LiveBytes]:
    """Count the memory of all tensors that operations return in the block; requires ``can_follow``."""
    live, base = LiveBytes(), _dispatch_mode()

    class Mode(base):  # type: ignore[misc,valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else (out,):
                live.add(x)
            return out

    with Mode():
        yield live


@contextmanager
def without_values() -> Iterator[None]:
    """Let all new tensors of the block have a shape, a dtype and a device but no memory; kernels run as for real tensors.

    Requires ``can_follow``. A value that decides a shape or a branch cannot be read in the block.
    """
    found = _fake_tensors()
    assert found is not None
    mode, kind = found
    token = SHAPE_TYPES.set((kind,))
    try:
        with mode():
            yield
    finally:
        SHAPE_TYPES.reset(token)


def _fake_tensors() -> tuple[Any, Any] | None:
    """Return PyTorch's mode and type of tensors without values, which are not documented; None if this version lacks them."""
    try:
        private = import_module("torch._subclasses.fake_tensor")
    except ImportError:
        return None
    mode, kind = getattr(private, "FakeTensorMode", None), getattr(private, "FakeTensor", None)
    return None if mode is None or kind is None else (mode, kind)


def _dispatch_mode() -> Any:
    """Return the base class of contexts that see every operation, which is not documented; None if this PyTorch lacks it."""
    try:
        private = import_module("torch.utils._python_dispatch")
    except ImportError:
        return None
    return getattr(private, "TorchDispatchMode", None)
