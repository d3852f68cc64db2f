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
    """Read the list from the metadata of the installed packages. A plugin is imported only if another command names it with --plugin."""
    from transom.config.plugins import GROUP, installed_plugins

    found = installed_plugins()
    rows = [["name", "module", "package"], *found]
    none = [f"no installed package has an entry point in the group {GROUP}; a plugin can also be a Python file: --plugin my_component.py"]
    print_result([each._asdict() for each in found], as_json, align_columns(rows) if found else none)
