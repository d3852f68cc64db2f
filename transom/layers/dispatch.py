"""The dispatch table: selects the kernel that computes an operation. It is the only module that loads ``kernels/``.

An operation is a function in plain PyTorch, the reference. ``kernels/`` registers faster implementations, each for some arguments. The
reference runs where none applies or ``kernels/`` is absent.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from threading import Lock
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from torch import Tensor
from torch.nn import Parameter

P = ParamSpec("P")
R = TypeVar("R")

PLAIN_TYPES = frozenset((Tensor, Parameter))
"""Tensor types that kernels support; any other type, such as a sharded tensor, uses the reference."""


class Kernel(NamedTuple):
    """A fast implementation of an operation.

    Attributes:
        operation: name of the operation.
        path: name of the implementation.
        when: supported shapes, dtypes and devices, in words.
        condition: returns whether it supports the operation's arguments.
        implementation: function of the same arguments with the same result.
        error: largest relative error |ours - exact| / |exact| of results and gradients, measured in float32, or in bfloat16 for
            kernels that support it alone; exact is the reference in float64.
        reason: the advantage of the kernel, and its differences from the reference, if any.
        missing: returns what this machine lacks for the kernel, in words; None if nothing.
    """

    operation: str
    path: str
    when: str
    condition: Callable[..., bool]
    implementation: Callable[..., Any]
    error: float
    reason: str
    missing: Callable[[], str | None] = lambda: None


def always(*_: object) -> bool:
    """Return True: the condition of a kernel without restrictions."""
    return True


def on_cpu(x: Tensor, *_: object) -> bool:
    """Return whether the first argument is on a CPU."""
    return x.device.type == "cpu"


REFERENCES: dict[str, Callable[..., Any]] = {}
"""Reference function per operation, registered when its module is imported."""

KERNEL_TABLE: defaultdict[str, list[Kernel]] = defaultdict(list)
"""Kernels per operation, in the order in which they are tried. Read it through ``kernels_of``, which fills it."""

_lock = Lock()
_registered = list[bool]()


def _find_transforms() -> Callable[[], bool]:
    """Return PyTorch's private test for an active function transform; without it, a custom autograd function raises under a transform."""
    return getattr(import_module("torch._C"), "_are_functorch_transforms_active", lambda: False)


_transforms_active = _find_transforms()


def _register_kernels() -> bool:
    """Register the kernels of ``kernels/``, if it exists, once per process."""
    if not _registered:
        kernels: list[Kernel] = import_module("transom.kernels.kernel_registry").selected_kernels() if find_spec("transom.kernels") else []
        with _lock:
            if not _registered:
                for kernel in kernels:
                    KERNEL_TABLE[kernel.operation].append(kernel)
                _registered.append(True)
    return True


vars(_register_kernels)["_dynamo_marked_constant"] = True  # torch.compiler.assume_constant_result does the same after a second of imports


def operation(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate the reference of an operation: a call runs the first kernel whose condition holds, else the reference."""

    def decorate(reference: Callable[P, R]) -> Callable[P, R]:
        REFERENCES[name], parameters = reference, signature(reference)

        @wraps(reference)
        def call(*args: Any, **named: Any) -> Any:
            if named:  # kernels take positional arguments
                bound = parameters.bind(*args, **named)
                bound.apply_defaults()
                args = bound.args
            _register_kernels()
            if (kernels := KERNEL_TABLE[name]) and _all_plain(args):
                for kernel in kernels:
                    if kernel.condition(*args):
                        return kernel.implementation(*args)
            return cast(Any, reference)(*args)

        return cast(Callable[P, R], call)

    return decorate


def _all_plain(args: tuple[Any, ...]) -> bool:
    """Return whether all tensors among the arguments, tuples included, are of ``PLAIN_TYPES`` and no function transform is active."""
    for x in args:
        if isinstance(x, tuple):
            for y in x:
                if isinstance(y, Tensor) and type(y) not in PLAIN_TYPES:
                    return False
        elif isinstance(x, Tensor) and type(x) not in PLAIN_TYPES:
            return False
    return not _transforms_active()


def selected_path(name: str, *args: Any) -> str:
    """Return the name of the implementation that a call with these arguments would run; ``reference`` if no kernel applies."""
    _register_kernels()
    paths = (kernel.path for kernel in KERNEL_TABLE[name] if _all_plain(args) and kernel.condition(*args))
    return next(paths, "reference")


def kernels_of(name: str) -> list[Kernel]:
    """Return the kernels of an operation, in the order in which they are tried."""
    _register_kernels()
    return KERNEL_TABLE[name]
