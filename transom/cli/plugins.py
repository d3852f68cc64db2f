"""``transom plugins``: what installed packages offer to ``--plugin``."""

import typer

from transom.cli.answers import Json, answer, table

EXAMPLES = """
transom plugins
transom plugins --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def plugins(as_json: Json = False) -> None:
    """They are read from the packages' metadata; nothing is imported. A plugin runs only when it is named: --plugin NAME."""
    from transom.config.plugins import GROUP, installed_plugins

    found = installed_plugins()
    rows = [["name", "module", "package"], *found]
    none = [f"no installed package has an entry point of the group {GROUP}; a file of your own needs none: --plugin my_component.py"]
    answer([each._asdict() for each in found], as_json, table(rows) if found else none)
