"""Attribute the time of training steps to their parts and to the components of the model, from the events of PyTorch's profiler.

Ranges are entered around methods of a step and around modules from outside, and removed afterwards. Operations of the backward pass have no
range of their own: autograd gives each node the sequence number of the operation that made it, whose range is known. Each moment counts
once, since only the time that an event spends outside the events within it is added up.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isfunction
from typing import Any, NamedTuple

from torch import nn
from torch.profiler import record_function

from transom.layers import attention
from transom.layers.approximations.approximation import Approximation
from transom.layers.attention import Attention
from transom.layers.block import Block
from transom.layers.embedding import Embedding
from transom.layers.mixture_of_depths import DepthRouter
from transom.layers.norm import Norm
from transom.layers.position_encoding import PositionEncoding
from transom.layers.recurrent.recurrent_layers import RecurrentEncoder, RecurrentStack
from transom.layers.stack import Stack
from transom.layers.vision.conv_stem import ConvStem
from transom.layers.vision.patch_embedding import PatchEmbedding
from transom.training.train_step import TrainStep

FORWARD, BACKWARD, CLIPPING, OPTIMIZER = "forward", "backward", "gradient norm and clipping", "optimizer"
PARTS = {"_forward": FORWARD, "_backward": BACKWARD, "_reduce_and_clip_gradients": CLIPPING, "_update": OPTIMIZER}
"""Parts of a step by the method of ``TrainStep`` that computes them."""

EMBEDDING, PROJECTIONS, ATTENTION, FEED_FORWARD = "embedding", "attention projections", "attention", "feed-forward"
NORMS, OUTPUT, RECURRENT, CONVOLUTIONS = "norms and residuals", "output projection and loss", "recurrent layers", "convolutions"
OTHER, COMPILED = "masks and positions", "compiled passes"
COMPONENTS = (COMPILED, EMBEDDING, PROJECTIONS, ATTENTION, FEED_FORWARD, NORMS, RECURRENT, CONVOLUTIONS, OTHER, OUTPUT)
"""Components in the order in which they are printed. Compiled passes are one, because a graph has no modules."""

STEP = "step"
_PREFIX = "transom: "
"""Beginning of the names of ranges, in a trace too."""

_COMPONENT = "component "
_NODE = "autograd::engine::evaluate_function: "
"""Beginning of the names of the events in which autograd computes one node."""

KINDS: tuple[tuple[tuple[type[nn.Module], ...], str], ...] = (
    ((Embedding, PatchEmbedding), EMBEDDING),
    ((ConvStem,), CONVOLUTIONS),
    ((Attention, Approximation), ATTENTION),
    ((RecurrentEncoder, RecurrentStack), RECURRENT),
    ((Norm, Block, Stack, DepthRouter), NORMS),
    ((PositionEncoding,), OTHER),
)
"""Component of each class of modules; the first class that fits counts. ``Block.ff`` is the feed-forward network, whatever its class."""


def component_of(module: nn.Module, name: str, outer: str | None) -> str | None:
    """Return the component that a module begins, within the component ``outer``; None if it begins none."""
    if outer == NORMS and name == "ff":
        return FEED_FORWARD
    if outer == ATTENTION and isinstance(module, nn.Linear):
        return None if name in ("q", "k", "v") else PROJECTIONS  # hooks would separate what ``attention.project`` computes together
    found = next((component for kinds, component in KINDS if isinstance(module, kinds)), None)
    if found is None and outer is None and name and not any(isinstance(each, kinds) for each in module.modules() for kinds, _ in KINDS):
        return OUTPUT  # what a model has outside its stacks, such as a pooler
    return None if found == outer else found


def list_components(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """List the modules around which the range of a component begins; those within it belong to it, but for attention and blocks."""
    found = list[tuple[nn.Module, str]]()

    def visit(module: nn.Module, name: str, outer: str | None) -> None:
        component = component_of(module, name, outer)
        if component is not None:
            found.append((module, component))
        if component in (None, NORMS, ATTENTION):
            for child_name, child in module.named_children():
                visit(child, child_name, component or outer)

    visit(model, "", None)
    return found


@contextmanager
def step_ranges(train_step: TrainStep) -> Iterator[None]:
    """Enter ranges around the parts of a step and the components of its model within the block."""
    compiled = isfunction(vars(train_step.model).get("logit_factors"))  # a method, where compilation was given up
    components = [] if compiled else list_components(train_step.model)
    handles = [handle for module, component in components for handle in _watch(module, component)]
    methods: list[tuple[Any, str, str]] = [(train_step, method, part) for method, part in PARTS.items()]
    recurrent = any(isinstance(module, RecurrentStack) for module in train_step.model.modules())  # some layers have no forward hooks
    if not compiled:  # a graph is compiled for the function that it found
        methods.append((attention, "project", _COMPONENT + PROJECTIONS))
    methods.append((train_step.model, "logit_factors", _COMPONENT + (COMPILED if compiled else RECURRENT if recurrent else OTHER)))
    before = [(vars(owner), method, vars(owner).get(method)) for owner, method, _ in methods]
    for owner, method, name in methods:
        vars(owner)[method] = _within(getattr(owner, method), name)
    try:
        yield
    finally:
        for attributes, method, own in before:
            if own is None:
                del attributes[method]
            else:  # compiled passes
                attributes[method] = own
        for handle in handles:
            handle.remove()


@contextmanager
def named_range(name: str) -> Iterator[None]:
    """Name the operations of the block in a profile."""
    with record_function(_PREFIX + name):
        yield


def _within(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with record_function(_PREFIX + name):
            return function(*args, **kwargs)

    return call


def _watch(module: nn.Module, component: str) -> list[Any]:
    """Enter a range before each forward pass of a module, and leave it afterwards, also if the pass fails."""
    entered = list[record_function]()

    def enter(*_: Any) -> None:
        entered.append(record_function(_PREFIX + _COMPONENT + component))
        entered[-1].__enter__()

    def leave(*_: Any) -> None:
        if entered:
            entered.pop().__exit__(None, None, None)

    return [module.register_forward_pre_hook(enter, prepend=True), module.register_forward_hook(leave, always_call=True)]


class Operator(NamedTuple):
    """An operator of PyTorch.

    Attributes:
        name: its name, such as aten::addmm.
        seconds: time in it, without that of the operators that it calls.
        calls: number of calls.
    """

    name: str
    seconds: float
    calls: int


class StepTimes(NamedTuple):
    """Times of some steps in seconds.

    Attributes:
        parts: by part; the range of the step itself, which no part has, under ``STEP``.
        forward: forward pass, by component.
        backward: backward pass, by component.
        operators: by operator.
        calls: calls of each operator.
    """

    parts: Counter[str]
    forward: Counter[str]
    backward: Counter[str]
    operators: Counter[str]
    calls: Counter[str]

    @classmethod
    def empty(cls) -> "StepTimes":
        """Return no times."""
        return cls(*(Counter() for _ in cls._fields))

    def top_operators(self, n: int) -> list[Operator]:
        """Return the operators with the most time."""
        return [Operator(name, seconds, self.calls[name]) for name, seconds in self.operators.most_common(n)]


def add_times(times: StepTimes, events: Sequence[Any], on_gpu: bool = False) -> None:
    """Add the times of the events of a profile.

    Args:
        times: the sums, which are changed.
        events: events of ``torch.profiler.profile.events()``.
        on_gpu: add the times of the kernels that operations start, instead of those of the operations.
    """
    places = _Places(events)
    for event in events:
        if event.device_type.name != "CPU":
            continue
        part = places.part(event)
        if part is None:
            continue
        seconds = (event.self_device_time_total if on_gpu else event.self_cpu_time_total) * 1e-6
        times.parts[part] += seconds
        if part in (FORWARD, BACKWARD):
            (times.forward if part == FORWARD else times.backward)[places.component(event)] += seconds
        if event.name.startswith("aten::"):
            times.operators[event.name] += seconds
            times.calls[event.name] += 1


class _Places:
    """Part and component of each event of a profile."""

    def __init__(self, events: Sequence[Any]) -> None:
        self._parts, self._components = dict[int, str | None](), dict[int, str | None]()
        self._made = dict[int, str]()
        ordered = sorted((event for event in events if event.device_type.name == "CPU"), key=_start)
        for event in ordered:
            if event.sequence_nr >= 0 and not event.name.startswith(_PREFIX) and self.part(event) == FORWARD:
                self._made[event.sequence_nr] = self.component(event)  # of several with this number, the last one has made the node
        self._nodes, latest = dict[int, str](), OUTPUT
        for event in ordered:
            if event.name.startswith(_NODE):
                latest = self._made.get(event.sequence_nr, latest)  # gradients are accumulated after the node that computes them
                self._nodes[event.id] = latest

    def part(self, event: Any) -> str | None:
        """Return the part of a step to which an event belongs; ``STEP`` for what no part has, None outside of steps."""
        if event.id not in self._parts:
            name = event.name.removeprefix(_PREFIX) if event.name.startswith(_PREFIX) else ""
            if name in PARTS.values() or name == STEP:
                found: str | None = name
            elif event.cpu_parent is not None:
                found = self.part(event.cpu_parent)
            else:
                found = BACKWARD if event.name.startswith(_NODE) else None  # of a GPU, in a thread of its own
            self._parts[event.id] = found
        return self._parts[event.id]

    def component(self, event: Any) -> str:
        """Return the component of an event of the forward or the backward pass."""
        return self._own(event) or OUTPUT

    def _own(self, event: Any) -> str | None:
        if event.id not in self._components:
            name = event.name
            if name.startswith(_PREFIX + _COMPONENT):
                found: str | None = name.removeprefix(_PREFIX + _COMPONENT)
            elif name.startswith(_NODE):
                found = self._nodes[event.id]
            else:
                found = None if event.cpu_parent is None else self._own(event.cpu_parent)
            self._components[event.id] = found
        return self._components[event.id]


def _start(event: Any) -> float:
    return float(event.time_range.start)
