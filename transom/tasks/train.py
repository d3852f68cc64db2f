"""The entry points for training, ``run_training`` and ``transom.train``, and the result that they return."""

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypedDict, Unpack

from transom.checkpoints.output_paths import check_run_folder_is_no_input
from transom.config.arguments import as_overrides, data_arguments, errors_for_python, training_overrides
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides, load_training_recipe
from transom.config.model_size import Size, resize_model
from transom.config.plugins import import_plugins
from transom.config.recipe import Recipe
from transom.config.suggestions import suggest
from transom.errors import ConfigError, DivergedError
from transom.inspection.pages.number_format import format_duration
from transom.parallel.processes.torchrun import torchrun_job, torchrun_rank
from transom.tasks.signals import defer_signals
from transom.training.events import Callback, Event, StepFinished, StopReason, TrainingFinished, ValidationFinished
from transom.training.validation_metrics import format_metrics


@dataclass(frozen=True)
class RunResult:
    """Result of a training run that has ended, or that a signal has stopped.

    Attributes:
        folder: the run folder.
        step: number of completed optimizer steps.
        reason: why training ended.
        best: validation metrics of the saved weights, and the step of their validation under ``step``.
        seconds: training time in seconds, including the time before a resume.
        stopped_by: number of the signal that stopped training; 0 if none did.
        example: example of a command that uses the trained model.
        weights: kind of the saved weights, "raw" or "averaged"; None if the run does not average weights.
        problems: warnings about the training run, one sentence each.
        baseline: validation metrics of a trivial predictor, in words; empty if there are none.
        model: description of the task, the architecture and the number of parameters.
        call: example of a method call of the predictor that ``load`` returns.
        late_signal: number of a signal that arrived after the last step, which it did not change; 0 if none did.
    """

    folder: Path
    step: int
    reason: StopReason
    best: dict[str, float]
    seconds: float
    stopped_by: int
    example: str
    weights: str | None = None
    problems: Sequence[str] = ()
    baseline: str = ""
    model: str = ""
    call: str = ""
    late_signal: int = 0

    def load(self) -> Any:
        """Load the predictor of the run with ``transom.load``."""
        from transom.tasks.load import load

        return load(self.folder)

    def __repr__(self) -> str:
        """Return the run folder, the model, the number of steps and the first validation metric on one line."""
        ended = f"stopped at step {self.step:,}" if self.stopped_by else f"{self.step:,} steps"
        figures = "".join(f", {figure}" for figure in format_metrics(self.best)[:1])
        return f"<run {self.folder}: {self.model}{', ' if self.model else ''}{ended}{figures}>"

    def __str__(self) -> str:
        """Return the summary of the run, with one fact per line."""
        return "\n".join(f"{name}: {value}" if name else value for name, value in self.summary)

    def _repr_html_(self) -> str:
        """Return the summary of the run as an HTML table for notebooks."""
        from transom.inspection.pages.notebook import facts, framed

        return framed([facts((name or "trained", value) for name, value in self.summary)])

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The main facts of the run as pairs of a name and a value. The first fact, which describes the model, has an empty name."""
        took = f"{self.step:,} steps in {format_duration(self.seconds)}"
        if self.stopped_by:
            return [
                ("", self.model),
                ("stopped", took),
                ("saved in", str(self.folder)),
                ("next", "the same call with resume=True continues training"),
            ]
        best = ", ".join([*format_metrics(self.best), *([] if self.weights is None else [f"{self.weights} weights"])])
        validated = f"{best}, at step {self.best['step']:,.0f}" if self.best else "none"
        return [
            ("", self.model),
            ("best validation", validated),
            *([("trivial predictor", self.baseline)] if self.baseline else []),
            ("training time", f"{took}; {ENDS[self.reason]}"),
            *(("check", problem) for problem in self.problems),
            ("model in", str(self.folder)),
            ("report", str(self.folder / "report.html")),
            ("next", f"transom.load({str(self.folder)!r}).{self.call}   or   {self.example}"),
        ]

    @property
    def exit_code(self) -> int:
        """The exit code of the command line, which is 0 unless a signal stopped training or arrived after its last step.

        For a signal it is 128 plus the number of the signal: 130 for SIGINT, 143 for SIGTERM.
        """
        number = self.stopped_by or self.late_signal
        return 128 + number if number else 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-serializable data."""
        plain = {"folder": str(self.folder), "step": self.step, "reason": self.reason, "seconds": self.seconds, "best": self.best}
        return plain | ({} if self.weights is None else {"weights": self.weights}) | {"problems": list(self.problems)}


ENDS: Mapping[StopReason, str] = {
    "max_steps": "all steps are done",
    "max_minutes": "the time limit is reached",
    "patience": "validation no longer improves",
    "stopped": "stopped on request",
}
"""Description of each reason why training ends."""


class GracefulStop:
    """Context manager in which Ctrl-C and SIGTERM request training to stop and to save a checkpoint after the current step.

    A second signal interrupts training immediately. A signal in a step that diverges is raised when the context ends.
    """

    def __init__(self) -> None:
        """Initialize without a stop request."""
        self.signal = 0
        self._before: dict[int, Any] = {}

    def requested(self) -> bool:
        """Return whether a signal has requested training to stop."""
        return self.signal != 0

    def __enter__(self) -> "GracefulStop":
        """Install the signal handlers, unless this is not the main thread, where Python does not allow it."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._request) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.signal and isinstance(error, DivergedError):  # no checkpoint is saved, and commands with several runs would continue
            signal.raise_signal(self.signal)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


def run_training(
    recipe: Recipe,
    base: Path,
    out: Path,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    notify: Callable[[str], None] = lambda _: None,
    user_overrides: UserOverrides = NO_OVERRIDES,
    size_note: str = "",
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Train a recipe, and write the model, a report and a model card to a run folder.

    The state of the process, such as its random state, is restored afterwards.

    Args:
        recipe: the recipe to train.
        base: folder that a relative ``data.root`` is resolved against.
        out: the run folder.
        resume: resume the run in ``out``, if there is one.
        overwrite: start a new run even if ``out`` contains one.
        callbacks: functions that are called with each event of the run; the module ``training.events`` defines the events.
        notify: called with a short description of each stage of the setup before the first step.
        user_overrides: the fields of the recipe that the user has set, from ``load_training_recipe``.
        size_note: a line on the size of the model, shown at the start before the number of parameters; empty for none.
        should_stop: called after each step; True saves a checkpoint and stops, as a signal does. A resumed run continues from there.

    Raises:
        TransomError: the recipe does not fit the data or the run folder, or the run cannot be resumed.
    """
    with defer_signals():
        from transom.checkpoints.run_folder import RunFolder
        from transom.data.reports.baseline import describe_baseline
        from transom.inspection.pages.describe import describe_family, usage_example
        from transom.inspection.pages.number_format import format_parameter_count
        from transom.planning.process_state import preserved_process_state
        from transom.tasks.run_pages import write_run_pages
        from transom.tasks.task import build_training_setup
        from transom.training.train_loop import train

    check_run_folder_is_no_input(recipe, base, out)
    with RunFolder.create(out, resume, overwrite, torchrun_job()) as folder, preserved_process_state():
        parts = build_training_setup(recipe, base, folder, notify, user_overrides)
        if size_note:
            parts = replace(parts, notes=(size_note, *parts.notes))
        tensorboard = [tensorboard_callback(out)] if recipe.training.tensorboard else []
        with GracefulStop() as stop:
            finished = train(parts, [*tensorboard, *callbacks], lambda: stop.requested() or should_stop())
            stopped = finished.reason == "stopped"
            problems = [] if stopped else write_run_pages(parts, finished)
    size = format_parameter_count(parts.facts["parameters"], parts.facts["active_parameters"])
    return RunResult(
        folder=out,
        step=finished.step,
        reason=finished.reason,
        best=dict(finished.best),
        seconds=finished.seconds,
        stopped_by=stop.signal if stopped else 0,
        example=usage_example(parts.recipe, str(out))[0],
        weights=finished.weights,
        problems=problems,
        baseline=describe_baseline(parts.facts["data"].get("baseline", ())),
        model=f"{parts.recipe.task} model: {describe_family(parts.recipe)}, {size}",
        call=f"{parts.recipe.COMMAND}({parts.recipe.example[1]})",
        late_signal=0 if stopped else stop.signal,
    )


def follow_training() -> RunResult:
    """Take part in a run as one of the other ranks that torchrun has started; return the result of rank 0."""
    from transom.planning.process_state import preserved_process_state
    from transom.training.rank_process import follow_rank_0

    with preserved_process_state():
        folder, finished = follow_rank_0()
    stopped = signal.SIGTERM if finished.reason == "stopped" else 0
    return RunResult(folder, finished.step, finished.reason, dict(finished.best), finished.seconds, stopped, "", finished.weights)


class DataArguments(TypedDict, total=False):
    """Keyword arguments of ``transom.train`` that replace the data of a recipe with the user's own files.

    The options of ``transom train`` have the same names. Relative paths start from the current folder. If no validation files are given, a
    part of the training data is held out for validation.

    Attributes:
        source, target, valid_source, valid_target: a file with one sentence per line, and a file with their translations on the same lines.
        pairs, valid_pairs: a table with a sentence and its translation per row, as .tsv, .csv, .jsonl or .parquet.
        text, valid_text: one or several text files or folders.
        suffix: one or several endings of the files to read from folders, such as ".py".
        instructions, valid_instructions: a table of prompts with answers, or of chats, as .tsv, .csv, .jsonl or .parquet.
        labeled_data, valid_labeled_data: a table of texts with classes, as .tsv, .csv, .jsonl or .parquet.
        text_field, second_field, label_field, source_field, target_field, prompt_field, answer_field: a column of the table, by name or by
            index from 0.
        header: whether the first line of a .tsv or .csv file is a header.
        multi_label: whether ``|`` in the class of a labeled text separates several labels.
        images, valid_images: a folder or .zip file that contains images CLASS/NAME.jpg.
        skip_damaged: whether damaged images or sounds are skipped instead of refused.
        tagged, valid_tagged: a file with a word and its tag per line.
        audio, valid_audio: a folder that contains sounds CLASS/NAME.wav.
    """

    source: str | Path
    target: str | Path
    valid_source: str | Path
    valid_target: str | Path
    pairs: str | Path
    valid_pairs: str | Path
    text: str | Path | Sequence[str | Path]
    valid_text: str | Path | Sequence[str | Path]
    suffix: str | Sequence[str]
    instructions: str | Path
    valid_instructions: str | Path
    labeled_data: str | Path
    valid_labeled_data: str | Path
    text_field: str | int
    second_field: str | int
    label_field: str | int
    source_field: str | int
    target_field: str | int
    prompt_field: str | int
    answer_field: str | int
    header: bool
    multi_label: bool
    images: str | Path
    valid_images: str | Path
    skip_damaged: bool
    tagged: str | Path
    valid_tagged: str | Path
    audio: str | Path
    valid_audio: str | Path


def train(
    recipe: str | Path,
    out: str | Path | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),
    *,
    minutes: float | None = None,
    steps: int | None = None,
    size: Size | None = None,
    processes: int | None = None,
    init_from: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    plugins: Sequence[str | Path] = (),
    **data: Unpack[DataArguments],
) -> RunResult:
    """Train a recipe, and save the model, its metrics and a report in a run folder.

    The caller's random state, thread count, environment variables and signal handlers are restored on return and after an error.
    Some settings of the C library's memory allocator and of oneDNN persist, as described for
    ``transom.planning.process_state.preserved_process_state``. Ctrl-C ends the run after the current step, saves a checkpoint and returns.

    Args:
        recipe: name of a packaged recipe, or path of a TOML file.
        out: the run folder; defaults to ``runs/NAME``.
        set: changes to the recipe's fields: ``{"training.max_steps": 300, "model.norm": "rmsnorm"}``, ``{"model": {"d_model": 128}}``, or
            strings in the form of ``--set``, such as ``["training.max_steps=300"]``.
        minutes: maximum training time in minutes.
        steps: number of optimizer steps.
        size: size of the model: "base" is that of the recipe, "small" has half of its dimensions, "large" twice. Fields in
            ``set`` are kept. By default the recipe chooses.
        processes: number of processes, on GPUs with one GPU each; ``parallel.data`` is what the recipe's other axes of ``[parallel]`` leave
            of it. In a program that torchrun has started, all ranks call this function and return the result of rank 0.
        init_from: run folder whose model is fine-tuned.
        resume: resume the run in ``out``, if there is one.
        overwrite: start a new run even if ``out`` contains one.
        progress: whether to show progress, as a bar in a terminal, as an output cell in a notebook, and otherwise as occasional lines on
            standard error.
        callbacks: functions that are called with each event of the run; the module ``training.events`` defines the events.
        plugins: files and modules to import first. The recipe may use the components and tasks that they define.
        **data: your own files, which replace the data of the recipe; ``DataArguments`` lists the arguments.

    Raises:
        TransomError: the recipe does not fit the data or the run folder, or the run cannot be resumed.
    """
    if (place := torchrun_rank()) is not None and place.rank > 0:
        return follow_training()
    with errors_for_python():
        import_plugins(plugins)
        known, given = data_arguments(), dict[str, Any](data)
        if unknown := [name for name in given if name not in known]:
            raise ConfigError(f"train: expected an argument, found {unknown[0]!r}; {suggest(unknown[0], list(known))}")
        files = {known[name]: value for name, value in given.items()}
        origin = None if init_from is None else Path(init_from)
        overrides = training_overrides(recipe, files, as_overrides(set), origin, minutes, steps)
        sized = resize_model(recipe, overrides, size)
        loaded, base, user_overrides = load_training_recipe(recipe, [*sized.overrides, *overrides])
        folder = default_folder(recipe) if out is None else Path(out)
        with _shown(progress) as shown:
            notify, watching = (_ignore_status, callbacks) if shown is None else (shown.show_status, [shown, *callbacks])
            return run_training(
                loaded.with_processes(processes), base, folder, resume, overwrite, watching, notify, user_overrides, sized.note
            )


def _ignore_status(message: str) -> None:
    """Ignore a status message."""


def _shown(wanted: bool) -> AbstractContextManager[Any]:
    """Return a context manager that yields the callback that shows progress, or None if progress is not wanted."""
    from transom.tasks.notebook_progress import NotebookProgress, in_notebook
    from transom.tasks.progress import TrainingProgress

    if not wanted:
        return nullcontext()
    return NotebookProgress() if in_notebook() else TrainingProgress()


def default_folder(recipe: str | Path) -> Path:
    """Return the default run folder of a recipe, which is ``runs/NAME``.

    >>> default_folder("recipes/my.toml").as_posix()
    'runs/my'
    """
    return Path("runs") / Path(recipe).stem


def tensorboard_callback(out: Path) -> Callback:
    """Return a training callback that writes metrics as TensorBoard events to ``out/tensorboard``.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "training.tensorboard = true needs TensorBoard; run pip install 'transom[log]', or set training.tensorboard to false"
        ) from None
    writer = SummaryWriter(str(out / "tensorboard"))

    def write(event: Event) -> None:
        figures: dict[str, float] = {}
        if isinstance(event, StepFinished) and not event.skipped:
            names = ("loss", "nll", "learning_rate", "grad_norm", "target_tokens_per_second", "matmul_utilization")
            figures = {f"train/{name}": getattr(event, name) for name in names}
        elif isinstance(event, ValidationFinished):
            figures = {f"validation/{name}": value for name, value in event.metrics.items()}
        for name, value in figures.items():
            writer.add_scalar(name, value, event.step)
        if isinstance(event, TrainingFinished):
            writer.close()

    return write
