"""``transom recipes``: list, show or copy the packaged recipes."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from transom.cli.answers import Json, answer
from transom.config.names import nearest
from transom.config.recipe import packaged_recipes
from transom.errors import ConfigError

EXAMPLES = """
transom recipes
transom recipes show multi30k-en-de
transom recipes copy translation my.toml
"""


class ListByDefault(TyperGroup):
    """A group of which ``list`` is meant where no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``list`` in front of nothing."""
        return super().parse_args(ctx, args if args and args[0] != "--json" else ["list", *args])


app = typer.Typer(
    add_completion=False,
    cls=ListByDefault,
    help="A recipe is one TOML file that holds everything a training run depends on.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A packaged recipe.")]


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List them; also what plain `transom recipes` does."""
    about = {name: _about(text) for name, text in packaged_recipes().items()}
    answer(about, as_json, (f"{name:16}{line}" for name, line in about.items()))


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Print a recipe."""
    text = _recipe(name)
    answer({"name": name, "text": text}, as_json, [text.rstrip()])


@app.command()
def copy(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; a file that is there is not overwritten.")],
    as_json: Json = False,
) -> None:
    """Copy a recipe to a file of your own."""
    from transom.weights.durable import write_file

    text = _recipe(name)
    if os.path.lexists(file):
        raise ConfigError(f"{file} is there already; give another name or remove it first")
    write_file(file, text.encode())
    answer({"name": name, "file": str(file)}, as_json, [f"wrote {file}; train it with: transom train {file} --out runs/{file.stem}"])


def _recipe(name: str) -> str:
    known = packaged_recipes()
    if name not in known:
        raise ConfigError(f"expected a packaged recipe, found {name!r}; {nearest(name, list(known))}")
    return known[name]


def _about(text: str) -> str:
    """Return the first comment line of a recipe."""
    return text.split("\n", 1)[0].removeprefix("# ")
