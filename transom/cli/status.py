"""``transom status``: show the progress of a run."""

from typing import Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import RunArgument
from transom.cli.output import JsonOption
from transom.cli.runs import WatchOption, show_repeatedly
from transom.errors import ConfigError

EXAMPLES = """
transom status runs/mine
transom status runs/mine --watch
"""

app = typer.Typer(add_completion=False)

BAR_WIDTH = 30
"""Width of the progress bar in characters."""


@app.command()
def status(run: RunArgument, watch: WatchOption = False, as_json: JsonOption = False) -> None:
    """Print the state, progress, loss, speed and time left of a run. The command only reads files, so it does not disturb training."""
    with gc_frozen_imports():
        from transom.checkpoints.run_files import is_run_folder
        from transom.inspection.pages.number_format import format_compact, format_duration
        from transom.inspection.pages.run_status import read_status
        from transom.training.validation_metrics import format_metrics

    if not is_run_folder(run):
        raise ConfigError(f"{run}: expected a run folder, found none; give a folder that transom train --out wrote")

    def look() -> tuple[Any, list[str]]:
        found = read_status(run)
        share = found.step / max(found.max_steps, 1)
        bar = "█" * round(BAR_WIDTH * share) + "░" * (BAR_WIDTH - round(BAR_WIDTH * share))
        facts = {
            "state": found.state,
            "task": f"{found.task}, {found.data}" if found.task else "",
            "steps": f"{bar} {found.step:,} of {found.max_steps:,}" if found.max_steps else "",
            "time left": "" if found.seconds_left is None else format_duration(found.seconds_left),
            "training loss": "" if found.loss is None else f"{found.loss:.4f}",
            "speed": "" if found.speed is None else f"{format_compact(found.speed)}/s",
            "memory": f"ran out; micro-batches were halved {_times(found.n_halved)}" if found.n_halved else "",
            "best validation": f"step {found.best['step']:,}: {', '.join(format_metrics(found.best))}" if found.best else "",
            "problem": found.problem,
        }
        return found.to_json(), [f"{name}: {value}" for name, value in facts.items() if value]

    show_repeatedly(look, watch, as_json)


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n:,} times"
