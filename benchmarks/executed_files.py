"""Files of the package whose functions one training step enters, and one translation (``python -m benchmarks.tracer``).

A profile hook sees every call; the first step and the first translation are left out, for they also prepare what later ones use.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import transom

PACKAGE = Path(transom.__file__).parent
STEPS = 3


class FileTracer:
    """The files entered while it is installed as the profile hook."""

    def __init__(self) -> None:
        """Start with none."""
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note the file of a call."""
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            self.files.add(str(Path(frame.f_code.co_filename).relative_to(PACKAGE)))


def files_executed_by(action: Callable[[], object]) -> set[str]:
    """Return the files of the package whose functions an action enters, in this thread and those that it starts."""
    import threading

    tracer = FileTracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return tracer.files


def files_of_training_step(folder: Path) -> set[str]:
    """Return the files that the last step of a short training enters, from its batch to its update."""
    from transom.training import train_step as steps

    stepper: Any = next(kind for name, kind in vars(steps).items() if name in ("Stepper", "TrainStep"))
    original_step, found = stepper.step, set[str]()
    n_steps = 0

    def profiled(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal n_steps, found
        n_steps += 1
        results: list[Any] = []
        if n_steps < STEPS:
            return original_step(self, *arguments, **named)
        found = files_executed_by(lambda: results.append(original_step(self, *arguments, **named)))
        return results[0]

    stepper.step = profiled
    try:
        transom.train("copy", out=folder, set=["training.max_steps=3", "data.generate.n_train=500"])
    finally:
        stepper.step = original_step
    return found


def files_of_translation(folder: Path) -> set[str]:
    """Return the files that the second translation with a model enters."""
    model = transom.load(folder)
    model.translate(["a b c"])
    return files_executed_by(lambda: model.translate(["c b a"]))


def main() -> None:
    """Print both lists."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        for what, files in (("one training step", files_of_training_step(folder)), ("one translation", files_of_translation(folder))):
            print(f"{what}: {len(files)} files\n  " + "\n  ".join(sorted(files)))


if __name__ == "__main__":
    main()
