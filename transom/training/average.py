"""Which weights are validated and kept: the raw ones, a moving average, or the mean of the last checkpoints."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from transom.config.training import CheckpointAverage, Ema, NoAverage
from transom.training.state import learned_tensors


class Averager:
    """Follows a model through training and gives the weights to validate.

    Attributes:
        ema: the moving average, in float32 at least; empty unless the brick asks for it.
        snapshots: weights at the last checkpoints, by step; empty unless the brick asks for them.
    """

    def __init__(self, brick: NoAverage | Ema | CheckpointAverage, model: nn.Module) -> None:
        """Begin with the model's present weights."""
        self._brick = brick
        self._model = model
        self.ema: dict[str, Tensor] = {}
        self.snapshots: dict[int, dict[str, Tensor]] = {}
        if isinstance(brick, Ema):
            self.ema = self._copy()

    def stepped(self) -> None:
        """Take in the weights after an optimizer step: average = decay * average + (1 - decay) * weights."""
        if isinstance(self._brick, Ema):
            live = learned_tensors(self._model)
            with torch.no_grad():
                lerp_all_(list(self.ema.values()), [live[name] for name in self.ema], 1 - self._brick.decay)

    def checkpointed(self, step: int) -> None:
        """Take in the weights of the checkpoint at ``step``."""
        if isinstance(self._brick, CheckpointAverage):
            last = sorted({*self.snapshots, step})[-self._brick.last :]
            every = {**self.snapshots, step: self._copy()}
            self.snapshots = {kept: every[kept] for kept in last}

    def restore(self, ema: Mapping[str, Tensor], snapshots: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Go on from a checkpoint's moving average and from the weights of the last ones, on the model's device."""
        device = next(self._model.parameters()).device
        self.ema = {name: x.to(device) for name, x in ema.items()}
        self.snapshots = {step: {name: x.to(device) for name, x in weights.items()} for step, weights in snapshots.items()}

    def weights(self, step: int) -> dict[str, Tensor]:
        """Return the weights to validate after ``step``: between two checkpoints the present ones take the next one's place."""
        if self.ema:
            return self.ema
        if not isinstance(self._brick, CheckpointAverage):
            return self._copy()
        snapshots = self.snapshots if step in self.snapshots else {**self.snapshots, step: self._copy()}
        chosen = list(snapshots.values())[-self._brick.last :]
        return {name: torch.stack([s[name] for s in chosen]).mean(0) for name in chosen[0]}

    def _copy(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in learned_tensors(self._model).items()}


def lerp_all_(averages: list[Tensor], weights: list[Tensor], weight: float) -> None:
    """Move each average towards its weights by a fraction ``weight`` of the distance, on a GPU in one kernel where PyTorch has it."""
    kernel = getattr(torch, "_foreach_lerp_", None)  # private
    if kernel is not None:
        kernel(averages, weights, weight)
        return
    for average, present in zip(averages, weights, strict=True):
        average.lerp_(present, weight)
