"""The training step that all peers share: loss, backward pass, gradient clipping and fused Adam."""

import shutil
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.shapes import LEARNING_RATE, TRAINING
from transom.config.training import AdamConfig


def build_training_steps(model: nn.Module, logits: Callable[[], Tensor], labels: Tensor, compiled: bool) -> dict[str, Callable[[], float]]:
    """Return a model's training step per mode: float32, bfloat16 by autocast and compiled. A step returns the mean label-smoothed loss.

    Args:
        model: the model to train; all modes share its parameters.
        logits: computes the batch's logits, (pairs, target, vocab).
        labels: target tokens, (pairs, target).
        compiled: add a bfloat16 mode with ``torch.compile``, if there is a C++ compiler.
    """
    adam = TRAINING.optimizer
    assert isinstance(adam, AdamConfig)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, (adam.beta1, adam.beta2), adam.eps, fused=True)

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
