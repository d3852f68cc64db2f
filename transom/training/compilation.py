"""Decide whether ``torch.compile`` pays for a run, and compile the training passes of its model."""

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.parallel import ParallelConfig
from transom.config.training import TrainingConfig
from transom.data.batch import Batch
from transom.errors import ConfigError
from transom.layers.dropout import row_keys, rows_keyed_by
from transom.models.base import Network

MIN_SECONDS = 600.0
"""Forecast duration from which a run is compiled on a GPU: compilation takes about a minute and saves 7% to 25% (benchmarks/README.md)."""

EAGER_UTILIZATION = 0.25
"""Fraction of a GPU's measured peak rate that eager training reaches, about (benchmarks/README.md), for the forecast."""


def choose_compilation(
    model: ModelConfig, training: TrainingConfig, layout: ParallelConfig, device: torch.device, forecast: Callable[[], float]
) -> bool:
    """Return whether to compile the training passes: as ``training.compile`` says, or for "auto" whether it pays.

    Args:
        model: the recipe's model.
        training: the recipe's training settings.
        layout: the layout of the run.
        device: the device of this process.
        forecast: returns the seconds that the run will take without compilation.

    Raises:
        ConfigError: compilation is requested, and this run or this machine cannot compile.
    """
    problem = _problem(model, training, layout, device)
    if training.compile == "on" and problem is not None:
        raise ConfigError(f"training.compile = 'on': {problem}, or set training.compile to 'off'")
    if training.compile != "auto":
        return training.compile == "on"
    one_gpu = device.type == "cuda" and layout.n_processes == 1
    return problem is None and one_gpu and forecast() > MIN_SECONDS


def _problem(model: ModelConfig, training: TrainingConfig, layout: ParallelConfig, device: torch.device) -> str | None:
    """Return why the training passes cannot be compiled, and what to change; None if they can."""
    if not isinstance(model, TransformerConfig):
        return f"expected a Transformer, found a model of kind {model.kind}"
    if layout.n_processes != layout.data:
        return "expected processes that hold the whole model; set only parallel.data"
    if training.recompute:
        return "expected training.activation_checkpointing = 'none', found 'blocks'; change one of them"
    if device.type == "cuda":
        return None if find_spec("triton") is not None else "expected Triton for this GPU, found none; install it"
    found = shutil.which(os.environ.get("CXX", "").strip() or "c++") or shutil.which("g++") or shutil.which("clang++")
    return None if found else "expected a C++ compiler, found none; install g++ or clang++"


def compile_training_passes(model: Network, **options: Any) -> None:
    """Let the forward and backward passes of a model's training steps be compiled, in place; passes with an observer are not.

    The keys of dropout masks change with each step. They are therefore an input of the compiled graph: as a context variable, which a graph
    cannot read, they would divide it at each dropout. PyTorch caches what it compiles, so that a resumed run compiles faster.

    Args:
        model: the model, in the layout of the run.
        options: options of ``torch.compile``.
    """
    eager = model.logit_factors

    def keyed(batch: Batch, keys: Int[Tensor, "rows"] | None) -> Any:
        with rows_keyed_by(keys):
            return eager(batch, None)

    compiled: Callable[..., Any] = torch.compile(keyed, **options)

    def logit_factors(batch: Batch, observer: Any = None) -> Any:
        if observer is not None or not (model.training and torch.is_grad_enabled()):
            return eager(batch, observer)
        return compiled(batch, row_keys())

    model.logit_factors = logit_factors  # type: ignore[method-assign]
