"""``transom runs``: list the runs in a folder with the state of each."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.errors import ConfigError

EXAMPLES = """
transom runs
transom runs experiments --watch
transom runs --json
"""

SECONDS_BETWEEN_LOOKS = 2.0
"""Interval in seconds at which ``--watch`` reads the runs again."""

app = typer.Typer(add_completion=False)

WatchOption = Annotated[bool, typer.Option("--watch", help="Update the output every two seconds until Ctrl-C.")]


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder in which to find run folders, up to three levels deep.")] = Path(
        "runs"
    ),
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print a table of the runs in a folder. The newest run is listed first."""
    with gc_frozen_imports():
        from transom.inspection.pages.number_format import format_duration
        from transom.inspection.pages.run_status import find_runs, read_status

    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder of runs, found none; give the folder that contains your run folders")

    def look() -> tuple[Any, list[str]]:
        found = [read_status(path) for path in find_runs(folder)]
        rows = [["run", "task", "data", "state", "step", "best validation"]]
        for each in found:
            left = f", {format_duration(each.seconds_left)} left" if each.seconds_left is not None else ""
            steps = f"{each.step:,} of {each.max_steps:,}" if each.max_steps else ""
            rows.append([str(each.path), each.task, each.data[:40], f"{each.state}{left}", steps, each.best_metrics or each.problem[:60]])
        lines = align_columns(rows, n_left=len(rows[0])) if found else [f"no runs in {folder}"]
        return [each.to_json() for each in found], lines

    show_repeatedly(look, watch, as_json)


def show_repeatedly(look: Callable[[], tuple[Any, list[str]]], watch: bool, as_json: bool) -> None:
    """Print the state of runs as JSON or as lines, once or repeatedly. In a terminal, new lines replace the previous ones.

    Args:
        look: function that reads the state and returns it both as JSON-serializable data and as lines.
        watch: read and print the state again every ``SECONDS_BETWEEN_LOOKS`` until Ctrl-C.
        as_json: print JSON instead of lines.
    """
    n_shown = 0
    while True:
        value, lines = look()
        if n_shown and sys.stdout.isatty() and not as_json:
            print(f"\x1b[{n_shown}A\x1b[J", end="")
        print_result(value, as_json, lines)
        sys.stdout.flush()
        if not watch:
            return
        n_shown = len(lines)
        try:
            threading.Event().wait(SECONDS_BETWEEN_LOOKS)
        except KeyboardInterrupt:
            print_note("")
            return
