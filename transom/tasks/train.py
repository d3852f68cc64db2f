"""One sitting of a training: the folder, the observers, the signals, and the pages written at the end."""

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
    """What a sitting came to.

    Attributes:
        folder: the run folder.
        step: steps done.
        reason: why it ended.
        best: validation figures of the kept weights, with their step.
        seconds: training time over all sittings.
        stopped_by: number of the signal that stopped it; 0 for none.
        example: a command that answers with the model.
        weights: "raw" or "averaged", whichever were kept; None where the run averages none.
        problems: sentences that name what a person should look at in the training.
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
        """0, or 130 and 143 as shells count signals."""
        return 128 + self.stopped_by if self.stopped_by else 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {"folder": str(self.folder), "step": self.step, "reason": self.reason, "seconds": self.seconds, "best": self.best}
        return plain | ({} if self.weights is None else {"weights": self.weights}) | {"problems": list(self.problems)}


class Stop:
    """While entered, Ctrl-C and SIGTERM ask the run to finish its step and save; a second one interrupts at once."""

    def __init__(self) -> None:
        """Nothing was asked for yet."""
        self.signal = 0
        self._before: dict[int, Any] = {}

    def wanted(self) -> bool:
        """Tell whether a stop was asked for."""
        return self.signal != 0

    def __enter__(self) -> "Stop":
        """Take over the two signals; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give them back."""
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
    """Train a recipe into a run folder and write its report and model card; the process is afterwards as it was before.

    Args:
        recipe: what to train.
        base: folder that a relative ``data.root`` starts from.
        out: the run folder.
        resume: go on with the run that ``out`` holds, if any.
        overwrite: begin anew where ``out`` holds a run.
        observers: called with each event of ``training.events``.
        tell: is told, in a few words, what is being done before the first step.
        asked: what a person set of the recipe, as ``load_training`` tells it.

    Raises:
        TransomError: recipe, data and folder do not fit together, or the run could not go on.
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
    """Train a recipe and leave the model, its record and a report in a run folder; this is ``transom.train``.

    The caller's random state, threads, environment variables and signal handlers are as before when it returns or raises; of the C
    library's allocator and oneDNN see ``planning.process.training_process``.

    Args:
        recipe: name of a packaged recipe, or path of a TOML file.
        out: the run folder; left out, ``runs/NAME``.
        overrides: changes to the recipe, as in ``"training.max_steps=300"``.
        resume: go on with the run that ``out`` holds, if any.
        overwrite: begin anew where ``out`` holds a run.
        observers: called with each event of ``training.events``.
        plugins: files and modules to import first, whose components and tasks the recipe may then name.

    Raises:
        TransomError: recipe, data and folder do not fit together, or the run could not go on.
    """
    import_plugins(plugins)
    loaded, base, asked = load_training(recipe, overrides)
    folder = default_folder(recipe) if out is None else Path(out)
    return run_training(loaded, base, folder, resume, overwrite, observers, asked=asked)


def default_folder(recipe: str | Path) -> Path:
    """Name the run folder of a recipe where none is given.

    >>> default_folder("recipes/my.toml").as_posix()
    'runs/my'
    """
    return Path("runs") / Path(recipe).stem


def tensorboard_observer(out: Path) -> Observer:
    """Make an observer that writes TensorBoard events under ``out/tensorboard``.

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
