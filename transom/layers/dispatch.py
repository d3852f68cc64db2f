"""Dispatch table: selects the implementation that computes an operation. Only this module loads ``kernels/``.

An operation is defined by its reference, a function in plain PyTorch. ``kernels/`` registers faster implementations, called kernels, each
for certain shapes, dtypes or devices. The reference runs if no kernel supports the arguments, or if ``kernels/`` is absent.
"""

from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from threading import Lock
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import Parameter

P = ParamSpec("P")
R = TypeVar("R")

PLAIN_TYPES = frozenset((Tensor, Parameter))
"""Tensor types that kernels support. With a tensor of any other type, such as a sharded tensor, the reference runs."""

SHAPE_TYPES: ContextVar[tuple[type, ...]] = ContextVar("SHAPE_TYPES", default=())
"""Further tensor types that kernels support in a context: those of tensors without values, on which planning runs a training step."""


class Kernel(NamedTuple):
    """A fast implementation of an operation.

    Attributes:
        operation: name of the operation.
        path: name of this implementation.
        when: supported shapes, dtypes and devices, in words.
        condition: function of the operation's arguments that returns whether the kernel supports them.
        implementation: function of the same arguments with the same result.
        error: largest relative error |kernel - exact| / |exact| of results and gradients, where exact is the reference in float64;
            measured in float32, or in bfloat16 for kernels whose own dtype it is; these are more exact in float32.
        reason: the advantage of the kernel, and the differences of its results from the reference, if any.
        missing: function that describes what this machine lacks to run the kernel; it returns None if nothing is missing.
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
"""Maps the name of an operation to its reference; filled when the module that defines the reference is imported."""

KERNEL_TABLE: defaultdict[str, list[Kernel]] = defaultdict(list)
"""Maps the name of an operation to its kernels, in the order in which they are tried. Call ``kernels_of``, which fills the table first."""

_lock = Lock()
_registered = list[bool]()


def _find_transforms() -> Callable[[], bool]:
    """Return PyTorch's private function that reports whether a function transform of ``torch.func`` is active.

    Under a transform the reference must run, since the custom autograd functions of kernels would raise. If this PyTorch lacks the private
    function, the result always reports False.
    """
    return getattr(import_module("torch._C"), "_are_functorch_transforms_active", lambda: False)


_transforms_active = _find_transforms()


def _register_kernels() -> bool:
    """Fill ``KERNEL_TABLE`` from ``kernels/``, if that package exists, on the first call in a process."""
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
    """Decorate the reference of operation ``name``; a call then runs the first kernel whose condition holds, else the reference."""

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
    """Return whether no function transform is active and all tensors among the arguments, also in tuples, are of ``PLAIN_TYPES``."""
    for x in args:
        if isinstance(x, tuple):
            for y in x:
                if isinstance(y, Tensor) and type(y) not in PLAIN_TYPES and type(y) not in SHAPE_TYPES.get():
                    return False
        elif isinstance(x, Tensor) and type(x) not in PLAIN_TYPES and type(x) not in SHAPE_TYPES.get():
            return False
    return not _transforms_active()


def selected_path(name: str, *args: Any) -> str:
    """Return the path of the kernel that operation ``name`` would run with these arguments; ``reference`` if no kernel applies."""
    _register_kernels()
    paths = (kernel.path for kernel in KERNEL_TABLE[name] if _all_plain(args) and kernel.condition(*args))
    return next(paths, "reference")


def kernels_of(name: str) -> list[Kernel]:
    """Return the kernels of an operation, in the order in which they are tried."""
    _register_kernels()
    return KERNEL_TABLE[name]


def needs_double_backward() -> bool:
    """Return whether the running backward pass must be differentiable itself (``create_graph=True``), as those of kernels are not."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()
