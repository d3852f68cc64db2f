"""What a peer's training step has in common: loss, pass back, clipping and fused Adam, in float32, bfloat16 and compiled."""

import shutil
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.shapes import LEARNING_RATE, TRAINING
from transom.config.training import AdamConfig


def build_training_steps(model: nn.Module, logits: Callable[[], Tensor], labels: Tensor, compiled: bool) -> dict[str, Callable[[], float]]:
    """Give a model's training step in every mode; each returns the mean smoothed loss.

    Args:
        model: whose parameters are trained; all modes share them.
        logits: of the batch, (pairs, target, vocab).
        labels: the tokens to predict, (pairs, target).
        compiled: also compile loss and model together, where there is a compiler.
    """
    component = TRAINING.optimizer
    assert isinstance(component, AdamConfig)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, (component.beta1, component.beta2), component.eps, fused=True)

    def loss() -> Tensor:
        return F.cross_entropy(logits().flatten(0, 1), labels.flatten(), label_smoothing=TRAINING.label_smoothing)

    def step(loss: Callable[[], Tensor], dtype: torch.dtype) -> Callable[[], float]:
        def one_step() -> float:
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                value = loss()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), TRAINING.max_grad_norm or float("inf"))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return value.item()

        return one_step

    modes = {"fp32": step(loss, torch.float32), "bf16": step(loss, torch.bfloat16)}
    if compiled and (shutil.which("g++") or shutil.which("c++")):
        modes["bf16 compiled"] = step(torch.compile(loss), torch.bfloat16)
    return modes
