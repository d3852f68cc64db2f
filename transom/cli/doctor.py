"""``transom doctor``: check a trained model for errors, dead parts, poor learning and lost speed."""

import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import RunArgument
from transom.cli.output import JsonOption, print_result
from transom.cli.terminal_width import terminal_width

if TYPE_CHECKING:
    from transom.inspection.doctor.finding import Finding

EXAMPLES = """
transom doctor runs/mine
transom doctor runs/mine --checks causality,cache,padding
transom doctor runs/mine --no-data --seconds 10
transom doctor runs/mine --json
"""

app = typer.Typer(add_completion=False)

MAX_WIDTH = 100
"""Largest width of the table, in characters."""


@app.command()
def doctor(
    run: RunArgument,
    checks: Annotated[
        str | None,
        typer.Option("--checks", metavar="NAME,NAME", help="Checks to run, such as causality,cache. Default: all, listed by the command."),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="Time limit. Checks that have not started by then are left out.")
    ] = 20.0,
    data: Annotated[
        bool, typer.Option("--data/--no-data", help="Read the run's own data; without, checks that need data are left out.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Check a run, and print what is wrong, measured against a bound, and what to change. Nothing is trained or written.

    problem: the model computes something wrong, or learned nothing. warning: it wastes something. not applicable: the check does not exist
    for such a model, or lacks data. The checks: no token sees later ones (causality), other documents (packing), padding or other rows
    (batch); steps with the cache equal whole passes (cache, decoder); finite numbers, bf16 and fp16 (finite, dtype, fp16-range); attention
    maps certified; the loss against guessing, the course of training, generalization, calibration; dead heads, attention, neurons, experts,
    embeddings; speed against this machine's peak. Bounds of rounding are measured: they are 8 times the difference from float64.

    The exit code is 1 if there is a problem, else 0.
    """
    start = time.perf_counter()
    with gc_frozen_imports():
        from transom.inspection.doctor.checks import run_checks, select_checks
        from transom.inspection.pages.number_format import format_duration
        from transom.tasks.examine import open_checkup
        from transom.tasks.progress import show_progress

    chosen = select_checks(None if checks is None else [name.strip() for name in checks.split(",")])
    checkup = open_checkup(run, chosen, seconds, data)
    with show_progress("checks", quiet=as_json) as notify:
        found = run_checks(checkup, chosen, max(seconds - (time.perf_counter() - start), seconds / 2), notify)
    taken = time.perf_counter() - start
    counts = {verdict: sum(each.verdict == verdict for each in found) for verdict in ("problem", "warning", "ok", "not applicable")}
    record = {"run": str(run), "seconds": taken, "verdicts": counts, "checks": [each._asdict() for each in found]}
    summary = f"{', '.join(f'{n} {verdict}' for verdict, n in counts.items())} in {format_duration(taken)}"
    print_result(record, as_json, [*_lines(found, min(terminal_width() or MAX_WIDTH, MAX_WIDTH)), "", summary])
    if counts["problem"]:
        raise typer.Exit(1)


def _lines(found: Sequence["Finding"], width: int) -> Iterator[str]:
    """Format the findings, grouped by verdict, the worst first."""
    from transom.inspection.doctor.finding import VERDICTS

    names = max((len(each.name) for each in found), default=0) + 4
    for verdict in VERDICTS:
        group = [each for each in found if each.verdict == verdict]
        if group:
            yield verdict
        for each in group:
            yield from _wrapped(f"  {each.name}".ljust(names), each.message, width)
            if each.advice:
                yield from _wrapped(" " * names, f"-> {each.advice}", width)


def _wrapped(start: str, text: str, width: int) -> Iterable[str]:
    """Wrap a text at words; continuation lines are indented to the end of ``start``."""
    indent: dict[str, Any] = {"initial_indent": start, "subsequent_indent": " " * len(start)}
    return textwrap.wrap(text, max(width, len(start) + 20), break_long_words=False, break_on_hyphens=False, **indent)
