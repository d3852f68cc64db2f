"""Training entry point: run folder, callbacks, signal handling, and the report and model card written at the end."""

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from transom.checkpoints.outputs import refuse_training_onto_its_inputs
from transom.config.finetune import NOTHING_ASKED, Asked, load_training
from transom.config.plugins import import_plugins
from transom.config.recipe import Recipe
from transom.errors import ConfigError
from transom.tasks.imports import signals_held
from transom.training.events import Event, Finished, Observer, Reason, Stepped, Validated


@dataclass(frozen=True)
class Sitting:
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
    """

    folder: Path
    step: int
    reason: Reason
    best: dict[str, float]
    seconds: float
    stopped_by: int
    example: str
    weights: str | None = None
    problems: Sequence[str] = ()

    @property
    def exit_code(self) -> int:
        """Exit code: 128 plus the number of the signal that stopped training (130 for SIGINT, 143 for SIGTERM), or 0."""
        return 128 + self.stopped_by if self.stopped_by else 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-serializable data."""
        plain = {"folder": str(self.folder), "step": self.step, "reason": self.reason, "seconds": self.seconds, "best": self.best}
        return plain | ({} if self.weights is None else {"weights": self.weights}) | {"problems": list(self.problems)}


class Stop:
    """Context in which Ctrl-C and SIGTERM stop training after the current step and save; a second signal interrupts immediately."""

    def __init__(self) -> None:
        """Start without a stop request."""
        self.signal = 0
        self._before: dict[int, Any] = {}

    def wanted(self) -> bool:
        """Return whether a stop was requested."""
        return self.signal != 0

    def __enter__(self) -> "Stop":
        """Install the signal handlers; only possible in the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


def run_training(
    recipe: Recipe,
    base: Path,
    out: Path,
    resume: bool = False,
    overwrite: bool = False,
    observers: Sequence[Observer] = (),
    tell: Callable[[str], None] = lambda _: None,
    asked: Asked = NOTHING_ASKED,
) -> Sitting:
    """Train a recipe into a run folder and write its report and model card; the state of the process is restored afterwards.

    Args:
        recipe: the recipe to train.
        base: folder that a relative ``data.root`` is resolved against.
        out: the run folder.
        resume: resume the run in ``out``, if there is one.
        overwrite: start a new run even if ``out`` contains one.
        observers: called with each event of ``training.events``.
        tell: called with a short description of each stage of the setup before the first step.
        asked: the fields of the recipe set by the user, from ``load_training``.

    Raises:
        TransomError: recipe, data and folder are inconsistent, or the run cannot be resumed.
    """
    with signals_held():
        from transom.checkpoints.run_folder import RunFolder
        from transom.inspection.describe import use
        from transom.planning.process import training_process
        from transom.tasks.pages import write_pages
        from transom.tasks.task import set_up
        from transom.training.run import train

    refuse_training_onto_its_inputs(recipe, base, out)
    with RunFolder.create(out, resume=resume, overwrite=overwrite) as folder, training_process():
        parts = set_up(recipe, base, folder, tell, asked)
        boards = [tensorboard_observer(out)] if recipe.training.tensorboard else []
        with Stop() as stop:
            finished = train(parts, [*boards, *observers], stop.wanted)
            stopped = finished.reason == "stopped"
            problems = [] if stopped else write_pages(parts, finished)
    example = use(parts.recipe, str(out))[0]
    told = (dict(finished.best), finished.seconds, stop.signal if stopped else 0, example, finished.weights, problems)
    return Sitting(out, finished.step, finished.reason, *told)


def train(
    recipe: str | Path,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    observers: Sequence[Observer] = (),
    plugins: Sequence[str | Path] = (),
) -> Sitting:
    """Train a recipe and save the model, its metrics and a report in a run folder; this is ``transom.train``.

    The caller's random state, thread count, environment variables and signal handlers are restored on return or error. For the C
    library's allocator and oneDNN see ``planning.process.training_process``.

    Args:
        recipe: name of a packaged recipe, or path of a TOML file.
        out: the run folder; defaults to ``runs/NAME``.
        overrides: changes to the recipe, such as ``"training.max_steps=300"``.
        resume: resume the run in ``out``, if there is one.
        overwrite: start a new run even if ``out`` contains one.
        observers: called with each event of ``training.events``.
        plugins: files and modules to import first, whose components and tasks the recipe may use.

    Raises:
        TransomError: recipe, data and folder are inconsistent, or the run cannot be resumed.
    """
    import_plugins(plugins)
    loaded, base, asked = load_training(recipe, overrides)
    folder = default_folder(recipe) if out is None else Path(out)
    return run_training(loaded, base, folder, resume, overwrite, observers, asked=asked)


def default_folder(recipe: str | Path) -> Path:
    """Return the default run folder of a recipe.

    >>> default_folder("recipes/my.toml").as_posix()
    'runs/my'
    """
    return Path("runs") / Path(recipe).stem


def tensorboard_observer(out: Path) -> Observer:
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
        if isinstance(event, Stepped) and not event.skipped:
            names = ("loss", "nll", "learning_rate", "grad_norm", "target_tokens_per_second", "peak_share")
            figures = {f"train/{name}": getattr(event, name) for name in names}
        elif isinstance(event, Validated):
            figures = {f"validation/{name}": value for name, value in event.figures.items()}
        for name, value in figures.items():
            writer.add_scalar(name, value, event.step)
        if isinstance(event, Finished):
            writer.close()

    return write
