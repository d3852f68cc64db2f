"""Decide whether a run is compiled by ``torch.compile``, and compile the training passes of its model."""

import logging
import math
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.parallel import ParallelConfig
from transom.config.training import TrainingConfig
from transom.data.batch import Batch
from transom.errors import ConfigError
from transom.layers.dropout import row_keys, rows_keyed_by
from transom.layers.norm import BatchNorm
from transom.models.base import Network

_log = logging.getLogger(__name__)

MIN_SECONDS = 600.0
"""Forecast duration from which a run is compiled on a GPU: compilation takes about a minute and saves 7% to 25% (benchmarks/README.md)."""

REQUESTS = {"on": {}, "cuda-graphs": {"mode": "reduce-overhead"}}
"""Values of ``training.compile`` that request compilation, and their options of ``torch.compile``."""

N_CHECKED_SHAPES = 3
"""Number of shapes for which a compiled pass is compared with the eager one: the first graph, that of any shape, and one reuse of it."""

MIN_CAPABILITY = (7, 0)
"""Minimum compute capability of GPUs for which Triton compiles."""

EAGER_UTILIZATION = 0.25
"""Fraction of a GPU's measured peak rate that eager training reaches, about (benchmarks/README.md), for the forecast."""


def choose_compilation(
    model: ModelConfig, training: TrainingConfig, layout: ParallelConfig, device: torch.device, forecast: Callable[[], float]
) -> bool:
    """Return whether to compile the training passes: as ``training.compile`` says, or for "auto" whether the run is long enough.

    Args:
        model: the recipe's model.
        training: the recipe's training settings.
        layout: the layout of the run.
        device: the device of this process.
        forecast: returns the seconds that the run will take without compilation.

    Raises:
        ConfigError: compilation is requested, and this run or this machine cannot compile.
    """
    problem = compilation_problem(model, training, layout, device)
    if training.compile in REQUESTS and problem is not None:
        raise ConfigError(f"training.compile = {training.compile!r}: {problem}, or set training.compile to 'off'")
    if training.compile != "auto":
        return training.compile in REQUESTS
    one_gpu = device.type == "cuda" and layout.n_processes == 1
    return problem is None and one_gpu and forecast() > MIN_SECONDS


def describe_choice(compiled: bool, forecast: float | None = None) -> list[str]:
    """Return a note about the choice, with the forecast in seconds if it was made; none where nothing was asked for or could be chosen."""
    minutes = "" if forecast is None else f"the run is forecast to take {forecast / 60:,.0f} minutes without it"
    if compiled:
        reason = minutes or "training.compile asks for it"
        return [f"torch.compile compiles the passes, which takes about a minute: {reason}; training.compile = 'off' turns it off"]
    least = f"{MIN_SECONDS / 60:g} minutes"
    return [f"torch.compile is not used: {minutes}, and it pays from {least} on; training.compile = 'on' turns it on"] if minutes else []


def compilation_problem(model: ModelConfig, training: TrainingConfig, layout: ParallelConfig, device: torch.device) -> str | None:
    """Return why the training passes cannot be compiled, and what to change; None if they can."""
    if not isinstance(model, TransformerConfig):
        return f"expected a Transformer, found a model of kind {model.kind}"
    if layout.n_processes != layout.data:
        return "expected processes that hold the whole model; set only parallel.data"
    if training.recompute:
        return "expected training.activation_checkpointing = 'none', found 'blocks'; change one of them"
    if training.compile == "cuda-graphs" and device.type != "cuda":
        return f"expected a GPU for CUDA graphs, found {device.type}; set training.compile to 'on'"
    if device.type == "cuda" and find_spec("triton") is None:
        return "expected Triton for this GPU, found none; install it"
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < MIN_CAPABILITY:
        return f"expected a GPU of compute capability {MIN_CAPABILITY}, for which Triton compiles, found {found}"
    variable, programs = ("CC", ("cc", "gcc", "clang")) if device.type == "cuda" else ("CXX", ("c++", "g++", "clang++"))
    if any(shutil.which(program) for program in (os.environ.get(variable, ""), *programs) if program):
        return None
    return f"expected a compiler, found none of {', '.join(programs)}; install one"


def compile_training_passes(model: Network, **options: Any) -> None:
    """Let the forward and backward passes of a model's training steps be compiled, in place; passes with an observer are not.

    The keys of dropout masks change with each step. They are therefore an input of the compiled graph: as a context variable, which a graph
    cannot read, they would be a graph break at each dropout. PyTorch caches the kernels that it compiles for the next process.

    The first passes, of ``N_CHECKED_SHAPES`` shapes, are repeated without compilation. If one has other hidden states, a warning is logged,
    and all passes from that one on are not compiled.

    Args:
        model: the model, in the layout of the run.
        options: options of ``torch.compile``.
    """
    eager = model.logit_factors

    def keyed(batch: Batch, keys: Int[Tensor, "rows"] | None) -> Any:
        with rows_keyed_by(keys):
            return eager(batch, None)

    compiled: Callable[..., Any] = torch.compile(keyed, **options)
    repeatable = not any(isinstance(module, BatchNorm) for module in model.modules())  # a pass changes the statistics of batch norm
    checked = set[torch.Size]()

    def logit_factors(batch: Batch, observer: Any = None) -> Any:
        nonlocal compiled
        if observer is not None or not (model.training and torch.is_grad_enabled()):
            return eager(batch, observer)
        keys = row_keys()
        factors = compiled(batch, keys)
        shape = factors[0].shape
        if keys is None or not repeatable or shape in checked or len(checked) == N_CHECKED_SHAPES:
            return factors
        checked.add(shape)
        with torch.no_grad():
            difference = relative_difference(factors[0], keyed(batch, keys)[0])
        if difference <= torch.finfo(factors[0].dtype).eps ** 0.5:
            return factors
        _log.warning(
            "torch.compile: expected the hidden states of the eager pass, found a relative difference of %.2g for hidden states of shape"
            " %s; training continues without torch.compile",
            *(difference, tuple(shape)),
        )
        compiled = keyed  # for callers that hold this function
        model.logit_factors = eager  # type: ignore[method-assign]
        return keyed(batch, keys)

    model.logit_factors = logit_factors  # type: ignore[method-assign]


def relative_difference(x: Float[Tensor, "*axes"], expected: Float[Tensor, "*axes"]) -> float:
    """Return |x - expected| / |expected|; infinite if only one of them has numbers that are not finite."""
    if not bool(expected.isfinite().all()):
        return math.inf if bool(x.isfinite().all()) else 0.0
    return ((x - expected).float().norm() / expected.float().norm().clamp(min=1e-30)).nan_to_num(math.inf).item()
