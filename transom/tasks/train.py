"""Training entry point: run folder, callbacks, signal handling, and the report and model card written at the end."""

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypedDict, Unpack

from transom.checkpoints.output_paths import check_run_folder_is_no_input
from transom.config.arguments import as_overrides, data_arguments, errors_for_python, training_overrides
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides, load_training_recipe
from transom.config.plugins import import_plugins
from transom.config.recipe import Recipe
from transom.config.suggestions import suggest
from transom.errors import ConfigError
from transom.inspection.number_format import format_duration
from transom.tasks.signals import defer_signals
from transom.training.events import Callback, Event, StepFinished, StopReason, TrainingFinished, ValidationFinished
from transom.training.validation_metrics import format_metrics


@dataclass(frozen=True)
class RunResult:
    """Result of a training run, or of one part of it if it was resumed.

    Attributes:
        folder: the run folder.
        step: number of completed steps.
        reason: why training ended.
        best: validation metrics of the saved weights, with their step.
        seconds: training time in seconds, including the time before a resume.
        stopped_by: number of the signal that stopped training; 0 if none did.
        example: a command that uses the model.
        weights: "raw" or "averaged", whichever were saved; None if the run does not average weights.
        problems: warnings about the training, one sentence each.
        model: task, architecture and size, in words.
        call: a method of the loaded model, with an example of its arguments.
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
    model: str = ""
    call: str = ""

    def load(self) -> Any:
        """Load the trained model; see ``transom.load``."""
        from transom.tasks.load import load

        return load(self.folder)

    def __repr__(self) -> str:
        """Return one line."""
        ended = f"stopped at step {self.step:,}" if self.stopped_by else f"{self.step:,} steps"
        figures = "".join(f", {figure}" for figure in format_metrics(self.best)[:1])
        return f"<run {self.folder}: {self.model}{', ' if self.model else ''}{ended}{figures}>"

    def __str__(self) -> str:
        """Return what was trained, how well it validates, how long it took, where it is, and what to do next; a line each."""
        return "\n".join(f"{name}: {value}" if name else value for name, value in self.summary)

    def _repr_html_(self) -> str:
        """Return the same as a table for notebooks."""
        from transom.inspection.notebook import facts, framed

        return framed([facts((name or "trained", value) for name, value in self.summary)])

    @property
    def summary(self) -> list[tuple[str, str]]:
        """Return the main facts of the run as names and values; the first has no name."""
        took = f"{self.step:,} steps in {format_duration(self.seconds)}"
        if self.stopped_by:
            return [
                ("", self.model),
                ("stopped", took),
                ("saved in", str(self.folder)),
                ("next", "the same call with resume=True continues"),
            ]
        best = ", ".join([*format_metrics(self.best), *([] if self.weights is None else [f"{self.weights} weights"])])
        validated = f"{best}, at step {self.best['step']:,.0f}" if self.best else "none"
        return [
            ("", self.model),
            ("best validation", validated),
            ("training time", f"{took}; {ENDS[self.reason]}"),
            *(("check", problem) for problem in self.problems),
            ("model in", str(self.folder)),
            ("report", str(self.folder / "report.html")),
            ("next", f"transom.load({str(self.folder)!r}).{self.call}   or   {self.example}"),
        ]

    @property
    def exit_code(self) -> int:
        """Exit code: 128 plus the number of the signal that stopped training (130 for SIGINT, 143 for SIGTERM), or 0."""
        return 128 + self.stopped_by if self.stopped_by else 0

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
"""Description of each reason for which training ends."""


class GracefulStop:
    """Context in which Ctrl-C and SIGTERM stop training after the current step and save; a second signal interrupts immediately."""

    def __init__(self) -> None:
        """Start without a stop request."""
        self.signal = 0
        self._before: dict[int, Any] = {}

    def requested(self) -> bool:
        """Return whether a stop was requested."""
        return self.signal != 0

    def __enter__(self) -> "GracefulStop":
        """Install the signal handlers; only possible in the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._request) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

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
) -> RunResult:
    """Train a recipe into a run folder and write its report and model card; the state of the process is restored afterwards.

    Args:
        recipe: the recipe to train.
        base: folder that a relative ``data.root`` is resolved against.
        out: the run folder.
        resume: resume the run in ``out``, if there is one.
        overwrite: start a new run even if ``out`` contains one.
        callbacks: called with each event of ``training.events``.
        notify: called with a short description of each stage of the setup before the first step.
        user_overrides: the fields of the recipe set by the user, from ``load_training_recipe``.

    Raises:
        TransomError: recipe, data and folder are inconsistent, or the run cannot be resumed.
    """
    with defer_signals():
        from transom.checkpoints.run_folder import RunFolder
        from transom.inspection.describe import describe_family, usage_example
        from transom.inspection.number_format import format_parameter_count
        from transom.planning.process_state import preserved_process_state
        from transom.tasks.run_pages import write_run_pages
        from transom.tasks.task import build_training_setup
        from transom.training.train_loop import train

    check_run_folder_is_no_input(recipe, base, out)
    with RunFolder.create(out, resume=resume, overwrite=overwrite) as folder, preserved_process_state():
        parts = build_training_setup(recipe, base, folder, notify, user_overrides)
        tensorboard = [tensorboard_callback(out)] if recipe.training.tensorboard else []
        with GracefulStop() as stop:
            finished = train(parts, [*tensorboard, *callbacks], stop.requested)
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
        model=f"{parts.recipe.task} model: {describe_family(parts.recipe)}, {size}",
        call=f"{parts.recipe.COMMAND}({parts.recipe.example[1]})",
    )


class DataArguments(TypedDict, total=False):
    """The user's own files, which replace a recipe's data: the options of ``transom train``, by the same names.

    Paths start from the current folder. Validation files may be left out: a part of the training data is then held out.

    Attributes:
        source, target, valid_source, valid_target: files of sentences and of their translations, line by line.
        pairs, valid_pairs: tables with both, as .tsv, .csv, .jsonl or .parquet.
        text, valid_text: text files or folders, one or several.
        suffix: endings of the files to take out of folders, such as ".py".
        instructions, valid_instructions: prompts with answers or chats, as .tsv, .csv, .jsonl or .parquet.
        labeled_data, valid_labeled_data: texts with classes, as .tsv, .csv, .jsonl or .parquet.
        text_field, label_field, source_field, target_field, prompt_field, answer_field: columns of tables, by name or index from 0.
        header: whether the first line of a .tsv or .csv file is a header.
        multi_label: whether ``|`` in the class of a labeled text separates several labels.
        images, valid_images: a folder or .zip of CLASS/NAME.jpg.
        tagged, valid_tagged: words with tags, one word per line.
        audio, valid_audio: a folder of CLASS/NAME.wav.
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
    label_field: str | int
    source_field: str | int
    target_field: str | int
    prompt_field: str | int
    answer_field: str | int
    header: bool
    multi_label: bool
    images: str | Path
    valid_images: str | Path
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
    init_from: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    plugins: Sequence[str | Path] = (),
    **data: Unpack[DataArguments],
) -> RunResult:
    """Train a recipe and save the model, its metrics and a report in a run folder; this is ``transom.train``.

    The caller's random state, thread count, environment variables and signal handlers are restored on return or error. For the C
    library's allocator and oneDNN see ``planning.process.preserved_process_state``. Ctrl-C finishes the step, saves and returns.

    Args:
        recipe: name of a packaged recipe, or path of a TOML file.
        out: the run folder; defaults to ``runs/NAME``.
        set: changes to the recipe's fields: ``{"training.max_steps": 300, "model.norm": "rmsnorm"}``, ``{"model": {"d_model": 128}}``, or
            strings as ``--set`` takes them.
        minutes: limit of the training time.
        steps: number of optimizer steps.
        init_from: run folder to fine-tune.
        resume: resume the run in ``out``, if there is one.
        overwrite: start a new run even if ``out`` contains one.
        progress: show progress: a bar in a terminal, a table in a notebook, otherwise a line now and then on standard error.
        callbacks: called with each event of ``training.events``.
        plugins: files and modules to import first, whose components and tasks the recipe may use.
        **data: your own files, in place of the recipe's data; see ``DataArguments``.

    Raises:
        TransomError: recipe, data and folder are inconsistent, or the run cannot be resumed.
    """
    with errors_for_python():
        import_plugins(plugins)
        known, given = data_arguments(), dict[str, Any](data)
        if unknown := [name for name in given if name not in known]:
            raise ConfigError(f"train: expected an argument, found {unknown[0]!r}; {suggest(unknown[0], list(known))}")
        files = {known[name]: value for name, value in given.items()}
        origin = None if init_from is None else Path(init_from)
        loaded, base, user_overrides = load_training_recipe(
            recipe, training_overrides(recipe, files, as_overrides(set), origin, minutes, steps)
        )
        folder = default_folder(recipe) if out is None else Path(out)
        with _shown(progress) as shown:
            notify, watching = (_ignore_status, callbacks) if shown is None else (shown.show_status, [shown, *callbacks])
            return run_training(loaded, base, folder, resume, overwrite, watching, notify, user_overrides)


def _ignore_status(message: str) -> None:
    """Show nothing."""


def _shown(wanted: bool) -> AbstractContextManager[Any]:
    """Return a context manager whose value is a callback that displays progress, or None if nothing is displayed."""
    from transom.tasks.notebook_progress import NotebookProgress, in_notebook
    from transom.tasks.progress import TrainingProgress

    if not wanted:
        return nullcontext()
    return NotebookProgress() if in_notebook() else TrainingProgress()


def default_folder(recipe: str | Path) -> Path:
    """Return the default run folder of a recipe.

    >>> default_folder("recipes/my.toml").as_posix()
    'runs/my'
    """
    return Path("runs") / Path(recipe).stem


def tensorboard_callback(out: Path) -> Callback:
    """Return a callback that writes TensorBoard events to ``out/tensorboard``.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("training.tensorboard = true needs TensorBoard: pip install 'transom[log]', or set it to false") from None
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
