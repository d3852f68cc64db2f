"""Shows the progress of a training run in one output cell of a notebook, with a progress bar, notes and a table of validations."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from transom.data.reports.baseline import worse_than_baseline
from transom.inspection.pages.notebook import facts, framed, progress_bar, validation_table
from transom.inspection.pages.number_format import format_count, format_duration, format_parameter_count, format_percent
from transom.tasks.progress import ENDED, validation_line
from transom.training.events import (
    Event,
    Forecast,
    MemoryIsShort,
    MicroBatchesHalved,
    StepFinished,
    TrainingFinished,
    TrainingStarted,
    ValidationFinished,
)

SECONDS_BETWEEN_FRAMES = 0.5
"""Minimum time between two redraws of the output cell after optimizer steps, in seconds."""


def in_notebook() -> bool:
    """Return whether this Python process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookProgress(AbstractContextManager["NotebookProgress"]):
    """Training callback that shows the progress of a training run in one output cell of a notebook."""

    def __init__(self) -> None:
        """Initialize without an output cell. The first event or status message creates the cell."""
        self._cell: Any = None
        self._lines = list[str]()
        self._validated = list[ValidationFinished]()
        self._state: dict[str, str] = {}
        self._baseline: Sequence[Mapping[str, Any]] = ()
        self._step, self._max_steps, self._unit, self._drawn = 0, 1, "tokens", 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case TrainingStarted():
                self._start(event)
            case StepFinished():
                self._stepped(event)
            case MicroBatchesHalved() | MemoryIsShort():
                self._lines.append(event.note)
            case Forecast():
                self._lines += event.notes
            case ValidationFinished():
                self._validated.append(event)
                worse = worse_than_baseline({"loss": event.metrics["loss"]}, self._baseline)
                self._lines += [f"step {format_count(event.step)}: {problem}" for problem in worse]
            case TrainingFinished():
                self._state = {
                    "": f"{ENDED[event.reason]} at step {format_count(event.step)} after {format_duration(event.seconds)} of training"
                }
        self._draw(at_once=not isinstance(event, StepFinished))

    def show_status(self, what: str) -> None:
        """Show a description of the current stage of the setup, such as "reading the text"."""
        self._state = {"": f"{what} ..."}
        self._draw(at_once=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Redraw the output cell with the last state of the run."""
        self._draw(at_once=True)

    def _start(self, event: TrainingStarted) -> None:
        known: Mapping[str, Any] = event.facts
        self._baseline = known.get("data", {}).get("baseline", ())
        self._step, self._max_steps, self._unit = event.step, event.max_steps, known["unit"].split()[-1]
        choices = [known[name] for name in ("precision", "threads", "processes") if known[name]]
        self._lines += [*event.notes, "; ".join([format_parameter_count(known["parameters"], known["active_parameters"]), *choices])]
        self._state = {"step": f"{format_count(event.step)} of {format_count(event.max_steps)}"}

    def _stepped(self, event: StepFinished) -> None:
        self._step = event.step
        if event.skipped:
            self._lines.append(f"step {format_count(event.step)}: loss or gradient was not finite, step skipped")
            return
        self._state = {
            "step": f"{format_count(event.step)} of {format_count(self._max_steps)}, epoch {event.epochs:.1f}",
            "loss": f"{event.loss:.3f} nats",
            "speed": f"{format_count(event.target_tokens_per_second)} {self._unit}/s, {format_percent(event.matmul_utilization)} of peak",
            "time left": format_duration(event.seconds_left),
        }

    def _draw(self, at_once: bool) -> None:
        now = time.monotonic()
        if not at_once and now - self._drawn < SECONDS_BETWEEN_FRAMES:
            return
        self._drawn = now
        plain = "\n".join([*(f"{name} {value}".strip() for name, value in self._state.items()), *map(validation_line, self._validated)])
        content = {"text/html": self._html(), "text/plain": plain}
        if self._cell is None:
            from IPython.display import display

            self._cell = display(content, raw=True, display_id=True)
        else:
            self._cell.update(content, raw=True)

    def _html(self) -> str:
        state = [progress_bar(self._step / max(self._max_steps, 1)), facts(self._state.items())]
        table = validation_table([(each.step, each.metrics, each.best) for each in self._validated])
        return framed([*state, *table], notes=self._lines)
