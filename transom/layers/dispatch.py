"""The dispatch table: which path computes an operation, and the only door to ``kernels/``.

An operation is a function in plain PyTorch, its reference. ``kernels/`` adds rows to the table: faster paths, each for some arguments.
Where no row applies, or ``kernels/`` is absent, the reference computes.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from torch import Tensor
from torch.nn import Parameter

P = ParamSpec("P")
R = TypeVar("R")

PLAIN_TYPES = frozenset((Tensor, Parameter))
"""The types of tensors that rows serve; any other, such as a sharded tensor, takes the reference."""


class Row(NamedTuple):
    """A fast path of an operation.

    Attributes:
        operation: the operation's name.
        path: the path's name.
        when: shapes, types and devices for which it serves, in words.
        condition: the same as a function of the operation's arguments.
        implementation: a function of the same arguments with the same result.
        error: largest relative error |ours - exact| / |exact| of results and gradients, measured in float32, or in bfloat16 for paths that
            serve it alone; exact is the reference in float64.
        why: the reason for the path, and how it differs from the reference where it does.
        missing: returns what this machine lacks for the path, in words; None where it lacks nothing.
    """

    operation: str
    path: str
    when: str
    condition: Callable[..., bool]
    implementation: Callable[..., Any]
    error: float
    why: str
    missing: Callable[[], str | None] = lambda: None


def always(*_: object) -> bool:
    """Return True: the condition of a path that serves everywhere."""
    return True


def on_cpu(x: Tensor, *_: object) -> bool:
    """Return whether the first argument is on a CPU."""
    return x.device.type == "cpu"


REFERENCES: dict[str, Callable[..., Any]] = {}
"""The operations' references by name, each registered when its module is imported."""

ROWS: defaultdict[str, list[Row]] = defaultdict(list)
"""Rows by operation, in the order in which they are tried. Read it through ``rows_of``, which fills it."""

_lock = Lock()
_filled = list[bool]()


def _find_transforms() -> Callable[[], bool]:
    """Return the test for an active function transform; without it a hand-written function refuses a transform in words."""
    return getattr(import_module("torch._C"), "_are_functorch_transforms_active", lambda: False)


_transforms_active = _find_transforms()


def _fill() -> bool:
    """Add the rows of ``kernels/``, where it exists, once per process."""
    if not _filled:
        rows: list[Row] = import_module("transom.kernels.rows").selected_rows() if find_spec("transom.kernels") else []
        with _lock:
            if not _filled:
                for row in rows:
                    ROWS[row.operation].append(row)
                _filled.append(True)
    return True


vars(_fill)["_dynamo_marked_constant"] = True  # torch.compiler.assume_constant_result does the same after a second of imports


def operation(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function the reference of an operation: a call takes the first row that applies, else the function itself.

    Arguments are passed by position.
    """

    def decorate(reference: Callable[P, R]) -> Callable[P, R]:
        REFERENCES[name] = reference

        @wraps(reference)
        def call(*args: Any) -> Any:
            _fill()
            if (rows := ROWS[name]) and _is_plain(args):
                for row in rows:
                    if row.condition(*args):
                        return row.implementation(*args)
            return cast(Any, reference)(*args)

        return cast(Callable[P, R], call)

    return decorate


def _is_plain(args: tuple[Any, ...]) -> bool:
    """Return whether all tensors among the arguments, or in tuples of them, are plain ones and no function transform is active."""
    for x in args:
        if isinstance(x, tuple):
            for y in x:
                if isinstance(y, Tensor) and type(y) not in PLAIN_TYPES:
                    return False
        elif isinstance(x, Tensor) and type(x) not in PLAIN_TYPES:
            return False
    return not _transforms_active()


def path_of(name: str, *args: Any) -> str:
    """Return the name of the path that a call of an operation with these arguments would take."""
    _fill()
    taken = (row.path for row in ROWS[name] if _is_plain(args) and row.condition(*args))
    return next(taken, "reference")


def rows_of(name: str) -> list[Row]:
    """Return the rows of an operation, in the order in which they are tried."""
    _fill()
    return ROWS[name]
