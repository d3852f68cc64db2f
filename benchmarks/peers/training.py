"""The training step that all peers share: loss, backward pass, gradient clipping and fused Adam."""

import shutil
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.shapes import LEARNING_RATE, TRAINING
from transom.config.training import AdamConfig, TrainingConfig
from transom.planning.precision import choose_precision


def list_modes(compiled: bool) -> dict[str, torch.dtype]:
    """Return the dtype of each mode of a peer: float32, and bfloat16 on a CPU with bfloat16 instructions; others only emulate it.

    With ``compiled`` there is also a mode with ``torch.compile`` per dtype, if there is a C++ compiler.
    """
    has_bfloat16 = choose_precision("auto", torch.device("cpu")).name == "bf16"
    modes = {"fp32": torch.float32} | ({"bf16": torch.bfloat16} if has_bfloat16 else {})
    if compiled and (shutil.which("g++") or shutil.which("c++")):
        modes |= {f"{name} compiled": dtype for name, dtype in modes.items()}
    return modes


def build_training_steps(
    model: nn.Module, logits: Callable[[], Tensor], labels: Tensor, compiled: bool, training: TrainingConfig = TRAINING
) -> dict[str, Callable[[], float]]:
    """Return a model's training step per mode (``list_modes``). A step returns the mean label-smoothed loss.

    Args:
        model: the model to train; all modes share its parameters.
        logits: computes the batch's logits, (pairs, target, vocab).
        labels: target tokens, (pairs, target).
        compiled: add the modes with ``torch.compile``.
        training: optimizer and loss settings.
    """
    adam = training.optimizer
    assert isinstance(adam, AdamConfig)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, (adam.beta1, adam.beta2), adam.eps, fused=True)

    def loss() -> Tensor:
        return F.cross_entropy(logits().flatten(0, 1), labels.flatten(), label_smoothing=training.label_smoothing)

    def step(loss: Callable[[], Tensor], dtype: torch.dtype) -> Callable[[], float]:
        def one_step() -> float:
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                value = loss()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm or float("inf"))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return value.item()

        return one_step

    return {mode: step(torch.compile(loss) if mode.endswith("compiled") else loss, dtype) for mode, dtype in list_modes(compiled).items()}
