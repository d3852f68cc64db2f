"""Kill a process with -9 before every line of the code under test, in turn. Run by the tests in a process of its own."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

UNDER_TEST = tuple(str(Path("transom", room)) for room in ("files", "checkpoints"))


def survive(action: Callable[[], object], check: Callable[[], object], stride: int = 1) -> None:
    """Run ``action`` in a forked process again and again, killed ``stride`` lines later each time, and ``check`` what it left."""
    point = 1 - stride
    while True:
        point += stride
        if (process := os.fork()) == 0:
            sys.settrace(_killer(point))
            action()
            os._exit(0)
        status = os.waitpid(process, 0)[1]
        check()
        if status == 0:
            print(point)
            return
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"the process failed by itself: {status}"


def _killer(point: int) -> Callable[[FrameType, str, Any], Any]:
    lines = 0

    def inside(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return inside

    return lambda frame, event, argument: inside if any(room in frame.f_code.co_filename for room in UNDER_TEST) else None
