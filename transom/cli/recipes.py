"""``transom recipes``: list, show or copy packaged recipes, list presets, upgrade old recipes, or draw attention masks."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from transom.checkpoints.output_paths import check_output_path
from transom.cli.options import RecipeArgument, SetOption
from transom.cli.output import JsonOption, print_result
from transom.config.packaged import packaged_preset, packaged_recipes
from transom.config.suggestions import suggest
from transom.errors import ConfigError
from transom.tasks.signals import defer_signals

EXAMPLES = """
transom recipes
transom recipes show multi30k-en-de
transom recipes copy translation my.toml
transom recipes presets
transom recipes presets gpt2-xl
transom recipes upgrade my.toml
transom recipes patterns cifar10-vit --set model.attention.pattern=window-2d --out patterns.svg
"""


class ListByDefault(TyperGroup):
    """A command group that runs ``list`` by default."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert ``list`` before the arguments if they name no subcommand."""
        return super().parse_args(ctx, args if args and args[0] != "--json" else ["list", *args])


app = typer.Typer(
    add_completion=False,
    cls=ListByDefault,
    help="A recipe is a TOML file with all settings of a training run.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a packaged recipe.")]


@app.command("list")
def list_all(as_json: JsonOption = False) -> None:
    """List the packaged recipes, as `transom recipes` without a command does."""
    descriptions = {name: _first_comment(text) for name, text in packaged_recipes().items()}
    print_result(descriptions, as_json, _two_columns(descriptions))


@app.command()
def show(name: Name, as_json: JsonOption = False) -> None:
    """Print a packaged recipe."""
    text = _packaged_recipe(name)
    print_result({"name": name, "text": text}, as_json, [text.rstrip()])


@app.command()
def copy(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write. An existing file is not overwritten.")],
    as_json: JsonOption = False,
) -> None:
    """Copy a packaged recipe to a file, for editing."""
    from transom.files.atomic_io import write_file

    text = _packaged_recipe(name)
    if os.path.lexists(file):
        raise ConfigError(f"{file} already exists; choose another name or delete it first")
    check_output_path(file)
    write_file(file, text.encode())
    print_result({"name": name, "file": str(file)}, as_json, [f"wrote {file}; train it with: transom train {file} --out runs/{file.stem}"])


@app.command()
def upgrade(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recipe with field names of an earlier version.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.toml", help="File to write the new recipe to. Default: overwrite FILE.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Update the field names of a recipe of an earlier version. Comments and the order of the fields are kept."""
    from transom.config.toml_input import read_toml_text
    from transom.config.upgrade import upgrade_recipe
    from transom.files.atomic_io import write_file

    text, changes = upgrade_recipe(read_toml_text(file), str(file))
    target = output or file
    if output is not None:
        check_output_path(output, [file])
    if changes or output is not None:
        write_file(target, text.encode())
    listed = [{"field": ".".join(change.path), "old": change.old, "new": change.new} for change in changes]
    lines = [f"{each['field']}: {each['old']} -> {each['new']}" for each in listed] or ["all names are current; nothing to change"]
    print_result({"file": str(target), "changes": listed}, as_json, [*lines, *([f"wrote {target}"] if changes else [])])


@app.command()
def patterns(
    recipe: RecipeArgument,
    overrides: SetOption = None,
    length: Annotated[
        int,
        typer.Option(
            "--length", min=1, max=512, help="Number of tokens to draw for a text model. For an image model, all patches are drawn."
        ),
    ] = 32,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.svg", help="SVG file to write, instead of drawing in the terminal.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the attention mask of each layer of a recipe's model. The model need not be trained."""
    with defer_signals():
        from transom.config.data import DATA_OPTIONAL
        from transom.config.recipe import load_recipe
        from transom.files.atomic_io import write_file
        from transom.inspection.pages.pattern_pictures import pattern_text, pattern_views, patterns_svg_file

    check_output_path(out, [Path(recipe)])
    views = pattern_views(load_recipe(recipe, overrides or [], DATA_OPTIONAL)[0].model, length)
    if out is not None:
        write_file(out, patterns_svg_file(views).encode())
    value = [
        {
            "stack": view.stack,
            "layers": view.layers,
            "pattern": view.pattern,
            "density": view.density,
            "fraction_of_allowed": view.fraction_of_allowed,
        }
        for view in views
    ]
    drawn = ([view.title, *([] if out is not None else ["", *pattern_text(view), ""])] for view in views)
    written = [] if out is None else [f"drawn in {out}"]
    print_result({"patterns": value}, as_json, [*(line for lines in drawn for line in lines), *written])


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of a preset, whose facts and fields are printed.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the published architectures for `--set model.preset=NAME`, or print one: its source, published counts and model fields."""
    if name is not None:
        import tomli_w

        tables = packaged_preset(name)
        print_result({"name": name, **tables}, as_json, [tomli_w.dumps(tables).rstrip()])
        return
    from transom.config.presets import load_presets

    found = load_presets()
    listed = {each: preset.model_dump(mode="json", exclude={"name"}) for each, preset in found.items()}
    print_result(listed, as_json, _two_columns({each: preset.summary for each, preset in found.items()}))


def _packaged_recipe(name: str) -> str:
    known = packaged_recipes()
    if name not in known:
        raise ConfigError(f"expected a packaged recipe, found {name!r}; {suggest(name, list(known))}")
    return known[name]


def _two_columns(descriptions: Mapping[str, str]) -> Iterator[str]:
    """Format names and descriptions in two columns, and wrap the descriptions if the output is a terminal."""
    names, lines = max(map(len, descriptions)) + 2, max(map(len, descriptions.values()))
    room = max(shutil.get_terminal_size().columns - names, 20) if sys.stdout.isatty() else lines
    for name, line in descriptions.items():
        yield textwrap.fill(line, names + room, initial_indent=f"{name:{names}}", subsequent_indent=" " * names)


def _first_comment(text: str) -> str:
    """Return the first line of a recipe, a comment that describes the recipe."""
    return text.split("\n", 1)[0].removeprefix("# ")
