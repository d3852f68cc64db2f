"""Shows progress on standard error, as a live progress bar in a terminal and as plain lines elsewhere."""

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from transom.data.reports.baseline import worse_than_baseline
from transom.inspection.pages.number_format import format_compact, format_count, format_duration, format_parameter_count, format_percent
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
from transom.training.validation_metrics import format_metrics

SECONDS_BETWEEN_LINES = 10.0
"""Minimum time between two progress lines if standard error is not a terminal, in seconds."""


def live() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def note(line: str) -> None:
    """Write a line to standard error. In a terminal, a long line is wrapped at words."""
    if sys.stderr is not None:
        sys.stderr.write(f"{wrap(line, shutil.get_terminal_size().columns) if live() else line}\n")
        sys.stderr.flush()


def wrap(line: str, width: int) -> str:
    r"""Wrap a line at words, and indent its continuation lines. Words longer than ``width`` are not broken.

    >>> wrap("validation loss 2.46 is worse than 1.79", 24)
    'validation loss 2.46 is\n  worse than 1.79'
    """
    if len(line) <= width:
        return line
    return textwrap.fill(line, max(width, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def fit_figures(figures: Sequence[tuple[int, str]], width: int) -> str:
    """Join the most important figures that fit into a width.

    The figures keep their order, and the most important figure is always included.

    >>> fit_figures([(2, "loss 1.234"), (3, "900 tokens/s"), (1, "2 min left")], 24)
    'loss 1.234  2 min left'

    Args:
        figures: rank and text of each figure; rank 1 is the most important.
        width: maximum number of characters.
    """
    chosen = set[int]()
    for rank, _ in sorted(figures):
        shown = "  ".join(text for other, text in figures if other in chosen | {rank})
        if chosen and len(shown) > width:
            break
        chosen.add(rank)
    return "  ".join(text for rank, text in figures if rank in chosen)


class TrainingProgress(AbstractContextManager["TrainingProgress"]):
    """Training callback that shows the progress of a training run on standard error."""

    def __init__(self) -> None:
        """Initialize without a progress bar. In a terminal, the bar appears when training starts."""
        self._bar: Any = None
        self._task: Any = None
        self._max_steps = 0
        self._unit = "tokens"
        self._last_line = 0.0
        self._baseline: Sequence[Mapping[str, Any]] = ()
        self._was_worse = False

    def __call__(self, event: Event) -> None:
        match event:
            case TrainingStarted():
                self._start(event.step, event.max_steps)
                for line in event.notes:
                    self.notify(line)
                facts = event.facts
                self._unit = facts["unit"].split()[-1]
                self._baseline = facts.get("data", {}).get("baseline", ())
                choices = [facts[name] for name in ("precision", "threads", "processes") if facts[name]]
                self.notify("; ".join([format_parameter_count(facts["parameters"], facts["active_parameters"]), *choices]))
                if event.step:
                    self.notify(f"resuming from step {format_count(event.step)}")
            case StepFinished():
                self._step(event)
            case MicroBatchesHalved() | MemoryIsShort():
                self.notify(event.note)
            case Forecast():
                self._set_total(event.max_steps)
                for line in event.notes:
                    self.notify(line)
            case ValidationFinished():
                self.notify(validation_line(event))
                problems = worse_than_baseline({"loss": event.metrics["loss"]}, self._baseline)
                for problem in [] if self._was_worse else problems:  # once, and again only after a better validation
                    self.notify(f"warning: {problem}")
                self._was_worse = bool(problems)
            case TrainingFinished():
                self._stop()
                self.notify(f"{ENDED[event.reason]} at step {format_count(event.step)} after {format_duration(event.seconds)} of training")

    def notify(self, line: str) -> None:
        """Print a line to standard error, above the progress bar if one is shown."""
        if self._bar is None:
            note(line)
        else:
            self._bar.console.print(wrap(line, self._bar.console.width), markup=False, highlight=False, soft_wrap=True)

    def show_status(self, what: str) -> None:
        """Print a description of the current stage of the setup, such as "reading the text"."""
        self.notify(f"{what} ...")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove the progress bar."""
        self._stop()

    def _start(self, step: int, max_steps: int) -> None:
        self._max_steps = max_steps
        if live():
            self._bar = _bar("{task.completed:,.0f}/{task.total:,.0f} steps", "{task.fields[figures]}")
            self._bar.start()
            self._task = self._bar.add_task("", total=max_steps, completed=step, figures="")

    def _set_total(self, max_steps: int) -> None:
        self._max_steps = max_steps
        if self._bar is not None:
            self._bar.update(self._task, total=max_steps)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _step(self, event: StepFinished) -> None:
        if event.skipped:
            names = ", ".join(map(str, event.skipped[:10])) + (" ..." if len(event.skipped) > 10 else "")
            self.notify(f"step {format_count(event.step)}: loss or gradient was not finite, step skipped (samples: {names})")
            return
        figures = [
            (4, f"epoch {event.epochs:.1f}"),
            (2, f"loss {event.loss:.3f}"),
            (3, f"{format_count(event.target_tokens_per_second)} {self._unit}/s"),
            (5, f"{format_percent(event.matmul_utilization)} of peak"),
            *([(6, load)] if (load := _format_expert_load(event.aux_metrics)) else []),
            (1, f"{format_duration(event.seconds_left)} left"),
        ]
        if self._bar is not None:
            steps = f"{event.step:,}/{self._max_steps:,} steps"
            room = self._bar.console.width - bar_width(self._bar.console.width) - len(steps) - 3
            self._bar.update(self._task, completed=event.step, figures=fit_figures(figures, room))
        elif time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            note(f"step {format_count(event.step)}/{format_count(self._max_steps)}  {fit_figures(figures, 200)}")


ENDED = {
    "max_steps": "max_steps reached: ended",
    "max_minutes": "max_minutes reached: ended",
    "patience": "early stopping: ended",
    "stopped": "stopped by a signal, checkpoint saved",
}


def _format_expert_load(aux_metrics: Mapping[str, float]) -> str:
    """Format the maximum load of an expert relative to the mean load, and the number of dropped token assignments.

    The text is empty if the model has no experts.
    """
    if "max_expert_load" not in aux_metrics:
        return ""
    overflow = aux_metrics["expert_overflow"]
    dropped = f", {format_count(overflow)} dropped" if overflow else ""
    return f"max expert load {aux_metrics['max_expert_load']:.2f} x mean{dropped}"


def validation_line(event: ValidationFinished) -> str:
    """Format the metrics of a validation on one line."""
    figures = [*format_metrics(event.metrics), *([] if event.weights is None else [f"{event.weights} weights"])]
    return f"step {format_count(event.step)}: validation {', '.join(figures)}{' (best so far)' if event.best else ''}"


@contextmanager
def show_progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show the number of finished items, their rate and the remaining time on standard error.

    The rate is measured from the first call, so that it leaves out the set-up.

    The context manager yields a function. The caller calls it with the number of finished items and the total number of items.

    Args:
        what: plural noun for the items, such as "sentences".
        quiet: whether to show nothing.
    """
    if quiet:
        yield lambda done, total: None
    elif live():
        rate = _Rate()
        with _bar("{task.completed:,.0f}/{task.total:,.0f} {task.description}", "{task.fields[rate]}") as bar:
            task = bar.add_task(what, total=1, rate="")
            yield lambda done, total: bar.update(task, completed=done, total=total, rate=rate(done, total))
    else:
        yield _Lines(what)


class _Lines:
    def __init__(self, what: str) -> None:
        self._what, self._rate = what, _Rate()
        self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now, rate = time.monotonic(), self._rate(done, total)
        if now - self._last > SECONDS_BETWEEN_LINES:
            self._last = now
            note(f"{format_count(done)}/{format_count(total)} {self._what}  {rate}".rstrip())


class _Rate:
    """Formats the rate and the remaining time since the first call, which gives an empty text."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def __call__(self, done: int, total: int) -> str:
        now = time.monotonic()
        start, done_before = self._first = self._first or (now, done)
        if done <= done_before:
            return ""
        seconds, n = max(now - start, 1e-6), done - done_before
        return f"{format_compact(n / seconds)}/s  {format_duration((total - done) * seconds / n)} left"


def _bar(*texts: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(stderr=True)
    columns = [TextColumn(text, table_column=Column(no_wrap=True)) for text in texts]
    return Progress(BarColumn(bar_width=bar_width(console.width)), *columns, console=console, transient=True)


def bar_width(width: int) -> int:
    """Return the width of the progress bar for a terminal width, both in characters."""
    return 24 if width >= 80 else max(width // 5, 6)
