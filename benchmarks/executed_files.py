"""List the files whose functions one training step and one translation call (``python -m benchmarks.executed_files``).

A profile hook records every call. The first steps and the first translation are not recorded because they also initialize caches.
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
    """A profile hook that records the package's files whose functions are called, in ``files``."""

    def __init__(self) -> None:
        """Start with an empty set."""
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Record the file of a call event."""
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            self.files.add(str(Path(frame.f_code.co_filename).relative_to(PACKAGE)))


def files_executed_by(action: Callable[[], object]) -> set[str]:
    """Return the package's files whose functions an action calls, in this thread and in the threads it starts."""
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
    """Return the files called by the last step of a short training, from the batch to the optimizer's update."""
    from transom.training.train_step import TrainStep

    original_step, found = TrainStep.step, set[str]()
    n_steps = 0

    def profiled(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal n_steps, found
        n_steps += 1
        results: list[Any] = []
        if n_steps < STEPS:
            return original_step(self, *arguments, **named)
        found = files_executed_by(lambda: results.append(original_step(self, *arguments, **named)))
        return results[0]

    TrainStep.step = profiled  # type: ignore[method-assign]
    try:
        transom.train("copy", out=folder, set=["training.max_steps=3", "data.generate.n_train=500"])
    finally:
        TrainStep.step = original_step  # type: ignore[method-assign]
    return found


def files_of_translation(folder: Path) -> set[str]:
    """Return the files called by the second translation of a loaded model."""
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
