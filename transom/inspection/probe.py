"""Trace a probe batch during training, every N steps."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from transom.errors import ConfigError
from transom.inspection.trace import Trace, trace
from transom.models.base import Network
from transom.training.events import Event, StepFinished, TrainingStarted


class TraceProbe:
    """A training callback that traces a batch after every ``every`` steps: ``transom.train(recipe, out, callbacks=[TraceProbe(...)])``.

    The pass has the precision of the run, such as bf16 under autocast. It runs without dropout and draws no random numbers, so that the
    run's weights are those of a run without the callback.

    Attributes:
        steps: steps that were traced.
    """

    def __init__(
        self, names: Sequence[str], use: Callable[[int, Trace], None], every: int = 100, batch: Any = None, **options: Any
    ) -> None:
        """Store what to trace.

        Args:
            names: names of quantities.
            use: called with the number of the step and the trace, whose quantities must be read in the call.
            every: number of steps between traces; the first step is traced too.
            batch: the batch, or a tensor of token ids or pixels; None for the first batch of the training data.
            **options: further arguments of ``trace``.
        """
        self._names, self._use, self._every, self._batch, self._options = list(names), use, every, batch, options
        self._model: Network | None = None
        self._autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.steps = list[int]()

    def __call__(self, event: Event) -> None:
        """Trace after the steps that are due."""
        match event:
            case TrainingStarted(model=None):
                raise ConfigError("Probe: expected a model that one process holds whole, found one that [parallel] splits; leave it out")
            case TrainingStarted():
                self._model, self._autocast = event.model, event.autocast
                if self._batch is None and event.first_batch is not None:
                    self._batch = event.first_batch()
            case StepFinished() if self._model is not None and (event.step == 1 or event.step % self._every == 0):
                batch = self._batch.to(self._model.device)
                self.steps.append(event.step)
                with self._autocast():
                    _, traced = trace(self._model, batch, self._names, **self._options)
                self._use(event.step, traced)
            case _:
                pass
