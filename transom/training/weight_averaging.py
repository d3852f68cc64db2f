"""Weight averaging: an exponential moving average, or the mean of the last checkpoints, both without the initial weights."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from transom.config.schema import ComponentConfig
from transom.config.training import CheckpointAverageConfig, EmaConfig
from transom.parallel.axes.sharding import from_local, local
from transom.training.train_state import trainable_tensors

WeightsName = Literal["raw", "averaged"]
RAW: WeightsName = "raw"
AVERAGED: WeightsName = "averaged"
"""Names of the weights that a validation compares: the weights that the optimizer updates, and their average."""


class WeightAverager:
    """Averages the weights of a model during training.

    Attributes:
        n_averaged: number of optimizer steps since averaging began; 0 if there is no average yet.
        ema: moving average of the weights, in the dtype of the weights; empty before the first step, or if checkpoints are averaged.
        snapshots: weights of the last checkpoints, by step; empty unless checkpoints are averaged.
    """

    def __init__(self, config: ComponentConfig, model: nn.Module) -> None:
        """Start without an average: the initial weights are not included."""
        self._config = config
        self._model = model
        self.n_averaged = 0
        self.ema: dict[str, Tensor] = {}
        self.snapshots: dict[int, dict[str, Tensor]] = {}

    def after_step(self) -> None:
        """Update the average after an optimizer step.

        With decay d, the moving average of the weights w_1 ... w_t after t steps is (1 - d) sum_i d^(t - i) w_i / (1 - d^t). The divisor
        is Adam's bias correction (Kingma & Ba 2015, section 3), so the coefficients sum to 1 at every t. Each step computes the recursion
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
            foreach_lerp_([local(x) for x in self.ema.values()], [local(current[name]) for name in self.ema], weight)

    def after_checkpoint(self, step: int) -> None:
        """Add the weights of the checkpoint at ``step``, unless no optimizer step has changed them yet."""
        if isinstance(self._config, CheckpointAverageConfig) and (self.n_averaged or self.snapshots):
            last = sorted({*self.snapshots, step})[-self._config.n_checkpoints :]
            every = {**self.snapshots, step: self._clone_weights()}
            self.snapshots = {kept: every[kept] for kept in last}

    def restore(self, n_averaged: int, ema: Mapping[str, Tensor], snapshots: Mapping[int, Mapping[str, Tensor]]) -> list[str]:
        """Continue from a checkpoint's moving average and from the weights of the last checkpoints, on the model's device.

        If ``ema`` is not empty although ``n_averaged`` is 0, an earlier version wrote the moving average, which includes the initial
        weights. Such an average is discarded, and averaging starts again.

        Returns:
            One note if a moving average was discarded, otherwise an empty list.
        """
        device = next(self._model.parameters()).device
        self.n_averaged = n_averaged
        self.ema = {name: x.to(device) for name, x in ema.items()} if n_averaged else {}
        self.snapshots = {step: {name: x.to(device) for name, x in weights.items()} for step, weights in snapshots.items()}
        if not ema or n_averaged:
            return []
        return ["the checkpoint's weight average includes the initial weights, as in earlier versions; averaging starts again from here"]

    def candidates(self, step: int) -> dict[WeightsName, dict[str, Tensor]]:
        """Return the weights to validate after ``step``: the averaged weights (unless equal to the raw weights), then the raw weights.

        Between two checkpoints, the mean of the last checkpoints includes the current weights in place of the next checkpoint.
        """
        raw = self._current_weights()
        if isinstance(self._config, EmaConfig) and self.n_averaged > 1:
            return {AVERAGED: self.ema, RAW: raw}
        if isinstance(self._config, CheckpointAverageConfig):
            snapshots = self.snapshots if step in self.snapshots else {**self.snapshots, step: raw}
            chosen = list(snapshots.values())[-self._config.n_checkpoints :]
            if len(chosen) > 1:
                means = {name: torch.stack([local(each[name]) for each in chosen]).mean(0) for name in raw}
                return {AVERAGED: {name: from_local(x, raw[name]) for name, x in means.items()}, RAW: raw}
        return {RAW: raw}

    def _current_weights(self) -> dict[str, Tensor]:
        return {name: x.detach() for name, x in trainable_tensors(self._model).items()}

    def _clone_weights(self) -> dict[str, Tensor]:
        return {name: x.clone() for name, x in self._current_weights().items()}


def foreach_lerp_(averages: list[Tensor], weights: list[Tensor], weight: float) -> None:
    """Move each average, in place, towards the tensor of ``weights`` at the same index, by ``weight`` times their difference."""
    kernel = getattr(torch, "_foreach_lerp_", None)  # private
    if kernel is not None:
        kernel(averages, weights, weight)
        return
    for average, present in zip(averages, weights, strict=True):
        average.lerp_(present, weight)
