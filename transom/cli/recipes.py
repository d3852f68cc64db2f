"""``transom recipes``: list, show or copy the packaged recipes, and draw their attention patterns."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from transom.checkpoints.outputs import refuse_output
from transom.cli.answers import Json, answer
from transom.cli.options import RecipeName, Set
from transom.config.names import nearest
from transom.config.packaged import packaged_recipes
from transom.errors import ConfigError
from transom.tasks.imports import signals_held

EXAMPLES = """
transom recipes
transom recipes show multi30k-en-de
transom recipes copy translation my.toml
transom recipes patterns cifar10-vit --set model.attention.pattern=window-2d --out patterns.svg
"""


class ListByDefault(TyperGroup):
    """A command group that runs ``list`` by default."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert ``list`` where no subcommand is named."""
        return super().parse_args(ctx, args if args and args[0] != "--json" else ["list", *args])


app = typer.Typer(
    add_completion=False,
    cls=ListByDefault,
    help="A recipe is a TOML file with all settings of a training run.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A packaged recipe.")]


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List the packaged recipes; the default of `transom recipes`."""
    about = {name: _about(text) for name, text in packaged_recipes().items()}
    answer(about, as_json, _columns(about))


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Print a recipe."""
    text = _recipe(name)
    answer({"name": name, "text": text}, as_json, [text.rstrip()])


@app.command()
def copy(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; an existing file is not overwritten.")],
    as_json: Json = False,
) -> None:
    """Copy a packaged recipe to a file, for editing."""
    from transom.files.durable import write_file

    text = _recipe(name)
    if os.path.lexists(file):
        raise ConfigError(f"{file} already exists; choose another name or delete it first")
    refuse_output(file)
    write_file(file, text.encode())
    answer({"name": name, "file": str(file)}, as_json, [f"wrote {file}; train it with: transom train {file} --out runs/{file.stem}"])


@app.command()
def patterns(
    recipe: RecipeName,
    overrides: Set = None,
    length: Annotated[
        int, typer.Option("--length", min=1, max=512, help="Number of tokens of a text; images have as many as patches.")
    ] = 32,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.svg", help="Write an SVG file instead of printing to the terminal.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw the attention mask of each layer of a recipe; no training is needed."""
    with signals_held():
        from transom.config.data import DATA_LATER
        from transom.config.recipe import load_recipe
        from transom.files.durable import write_file
        from transom.inspection.patterns import pattern_text, pattern_views, patterns_file

    refuse_output(out, [Path(recipe)])
    views = pattern_views(load_recipe(recipe, overrides or [], DATA_LATER)[0].model, length)
    if out is not None:
        write_file(out, patterns_file(views).encode())
    value = [
        {"stack": view.stack, "layers": view.layers, "pattern": view.pattern, "share": view.share, "of_family": view.of_family}
        for view in views
    ]
    drawn = ([view.title, *([] if out is not None else ["", *pattern_text(view), ""])] for view in views)
    written = [] if out is None else [f"drawn in {out}"]
    answer({"patterns": value}, as_json, [*(line for lines in drawn for line in lines), *written])


def _recipe(name: str) -> str:
    known = packaged_recipes()
    if name not in known:
        raise ConfigError(f"expected a packaged recipe, found {name!r}; {nearest(name, list(known))}")
    return known[name]


def _columns(about: Mapping[str, str]) -> Iterator[str]:
    """Format names and descriptions in two columns; in a terminal, wrap the descriptions."""
    names, lines = max(map(len, about)) + 2, max(map(len, about.values()))
    room = max(shutil.get_terminal_size().columns - names, 20) if sys.stdout.isatty() else lines
    for name, line in about.items():
        yield textwrap.fill(line, names + room, initial_indent=f"{name:{names}}", subsequent_indent=" " * names)


def _about(text: str) -> str:
    """Return the first comment line of a recipe."""
    return text.split("\n", 1)[0].removeprefix("# ")
