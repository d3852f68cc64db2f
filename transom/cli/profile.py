"""``transom profile``: where the time and the memory of a training step go."""

from pathlib import Path
from typing import Annotated

import typer

from transom.checkpoints.output_paths import check_output_file
from transom.cli.options import RecipeArgument, SetOption, WithDataOptions
from transom.cli.output import JsonOption, print_note, print_result
from transom.config.arguments import Files, file_overrides
from transom.errors import ConfigError
from transom.files.atomic_io import check_writable
from transom.tasks.signals import defer_signals

EXAMPLES = """
transom profile phrasebook
transom profile text-bpe --text notes --set training.batch_tokens=8192
transom profile my.toml --steps 30 --trace steps.json
transom profile my.toml --set training.activation_checkpointing=blocks --json
"""

app = typer.Typer(add_completion=False)


@app.command()
@WithDataOptions
def profile(
    recipe: RecipeArgument,
    files: Files,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Number of measured steps.")] = 10,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Also write a trace of two steps, which chrome://tracing and ui.perfetto.dev show."),
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the time of a training step by part and component, its FLOPs, operators and memory, and what to change.

    The steps start from fresh weights on the recipe's data, in one process; the first ones are not counted. Each batch is taken twice,
    without and with PyTorch's profiler, whose own time is printed. The parts add up to the time of a step with it. Passes that
    training.compile compiles are one component. No run folder is written.
    """
    if trace is not None:
        if not trace.name:
            raise ConfigError("--trace: expected the name of a file, found none; give one, such as --trace steps.json")
        check_output_file(trace, [Path(recipe)])
        check_writable(trace)
    with defer_signals():
        from transom.cli.profile_table import profile_lines
        from transom.config.model_overrides import load_training_recipe
        from transom.tasks.profile import fresh_bench
        from transom.tasks.progress import show_progress
        from transom.training.step_profile import profile_steps

    all_overrides = [*file_overrides(recipe, overrides or [], files), *(overrides or [])]
    loaded, base, own = load_training_recipe(recipe, all_overrides)
    notify = (lambda _: None) if as_json else print_note
    with fresh_bench(loaded, base, recipe, notify, own) as bench:
        with show_progress("steps", quiet=as_json) as progress:
            found = profile_steps(bench, steps, progress)
        print_result(found.to_json(), as_json, profile_lines(found, loaded.UNIT))
        if trace is not None:
            bench.write_trace(trace)
            print_note(f"wrote {trace}")
