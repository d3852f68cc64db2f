"""The average of a run's weights: a moving one, or the mean of the last checkpoints. It never holds the initial weights."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from transom.config.schema import ComponentConfig
from transom.config.training import CheckpointAverageConfig, EmaConfig
from transom.training.train_state import trainable_tensors

WeightsName = Literal["raw", "averaged"]
RAW: WeightsName = "raw"
AVERAGED: WeightsName = "averaged"
"""Names of the weights that a validation compares: as the optimizer left them, and their average."""


class WeightAverager:
    """Follows a model through training and gives the weights to validate.

    Attributes:
        n_averaged: optimizer steps whose weights were taken in, or could have been; 0 means that there is no average yet.
        ema: the moving average of the weights after each of these steps, in their own type; empty before the first one.
        snapshots: weights at the last checkpoints, by step; empty unless the component asks for them.
    """

    def __init__(self, config: ComponentConfig, model: nn.Module) -> None:
        """Begin with no average: the initial weights are no part of it."""
        self._config = config
        self._model = model
        self.n_averaged = 0
        self.ema: dict[str, Tensor] = {}
        self.snapshots: dict[int, dict[str, Tensor]] = {}

    def after_step(self) -> None:
        """Take in the weights after an optimizer step.

        With decay d, the average of the weights w_1 ... w_t after t steps is (1 - d) sum_i d^(t - i) w_i / (1 - d^t): Adam's correction of
        the bias (Kingma & Ba 2015, section 3), so the coefficients sum to 1 at every t. As a recursion, which is what is computed:
        average += (1 - d) / (1 - d^t) (w_t - average).
        """
        self.n_averaged += 1
        if not isinstance(self._config, EmaConfig):
            return
        if not self.ema:
            self.ema = self._clone_weights()
            return
        decay, current = self._config.decay, self._current_weights()
        weight = (1 - decay) / -math.expm1(self.n_averaged * math.log(decay))
        with torch.no_grad():
            foreach_lerp_(list(self.ema.values()), [current[name] for name in self.ema], weight)

    def after_checkpoint(self, step: int) -> None:
        """Take in the weights of the checkpoint at ``step``, unless no optimizer step has changed them yet."""
        if isinstance(self._config, CheckpointAverageConfig) and (self.n_averaged or self.snapshots):
            last = sorted({*self.snapshots, step})[-self._config.n_checkpoints :]
            every = {**self.snapshots, step: self._clone_weights()}
            self.snapshots = {kept: every[kept] for kept in last}

    def restore(self, n_averaged: int, ema: Mapping[str, Tensor], snapshots: Mapping[int, Mapping[str, Tensor]]) -> list[str]:
        """Continue from a checkpoint's moving average and from the weights of the last checkpoints, on the model's device.

        A moving average without a count is of a version that began it at the initial weights. They cannot be taken out of it, so it is
        dropped and the average begins anew.

        Returns:
            A sentence that says so, where that is the case.
        """
        device = next(self._model.parameters()).device
        self.n_averaged = n_averaged
        self.ema = {name: x.to(device) for name, x in ema.items()} if n_averaged else {}
        self.snapshots = {step: {name: x.to(device) for name, x in weights.items()} for step, weights in snapshots.items()}
        if not ema or n_averaged:
            return []
        return ["the checkpoint's average of weights began at the initial ones, as earlier versions did; it begins anew from here"]

    def candidates(self, step: int) -> dict[WeightsName, dict[str, Tensor]]:
        """Return the weights to validate after ``step``, by name, the average first; it is left out where it equals the raw weights.

        Between two checkpoints the present weights take the next one's place in the mean of the last ones.
        """
        raw = self._current_weights()
        if isinstance(self._config, EmaConfig) and self.n_averaged > 1:
            return {AVERAGED: self.ema, RAW: raw}
        if isinstance(self._config, CheckpointAverageConfig):
            snapshots = self.snapshots if step in self.snapshots else {**self.snapshots, step: raw}
            chosen = list(snapshots.values())[-self._config.n_checkpoints :]
            if len(chosen) > 1:
                return {AVERAGED: {name: torch.stack([s[name] for s in chosen]).mean(0) for name in raw}, RAW: raw}
        return {RAW: raw}

    def _current_weights(self) -> dict[str, Tensor]:
        return {name: x.detach() for name, x in trainable_tensors(self._model).items()}

    def _clone_weights(self) -> dict[str, Tensor]:
        return {name: x.clone() for name, x in self._current_weights().items()}


def foreach_lerp_(averages: list[Tensor], weights: list[Tensor], weight: float) -> None:
    """Move each average towards its weights by a fraction ``weight`` of the distance, on a GPU in one kernel where PyTorch has it."""
    kernel = getattr(torch, "_foreach_lerp_", None)  # private
    if kernel is not None:
        kernel(averages, weights, weight)
        return
    for average, present in zip(averages, weights, strict=True):
        average.lerp_(present, weight)
