"""``transom plugins``: list the plugins that installed packages provide."""

import typer

from transom.cli.output import JsonOption, align_columns, print_result

EXAMPLES = """
transom plugins
transom plugins --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def plugins(as_json: JsonOption = False) -> None:
    """Entry points are read from package metadata; no plugin is imported. A plugin runs only with --plugin NAME."""
    from transom.config.plugins import GROUP, installed_plugins

    found = installed_plugins()
    rows = [["name", "module", "package"], *found]
    none = [f"no installed package has an entry point in the group {GROUP}; a Python file needs none: --plugin my_component.py"]
    print_result([each._asdict() for each in found], as_json, align_columns(rows) if found else none)
