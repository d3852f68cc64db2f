"""The verbs, and the command line that imports a verb's file only when it is called."""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from transom import __version__
from transom.config.names import nearest
from transom.config.options import Verb
from transom.config.registry import task_helps
from transom.errors import ConfigError
from transom.tasks.imports import signals_held

TRAIN = Verb("train", "Train a model from a recipe, or on your own files.")
OTHERS = (
    Verb("score", "Give log p of texts, or of translations, and the perplexity."),
    Verb("compare", "Tell whether one model is better than another: paired bootstrap."),
    Verb("compare-attention", "Measure what approximations of attention would make of a model: error, time and memory."),
    Verb("kernels", "Show which fast path computes each operation on this machine, and why."),
    Verb("compare-components", "Train a recipe with other components, from the same seeds: loss, speed and parameters side by side."),
    Verb("plugins", "List the plugins that installed packages offer."),
    Verb("recipes", "List, show or copy the packaged recipes."),
    Verb("tokenizer", "Train a tokenizer, or show how it splits a sentence."),
    Verb("demo", "Train the built-in phrasebook translator and look at what it learned."),
)
"""The verbs that no task brings."""


WITHOUT_PLUGINS = {"demo", "plugins", "list", "copy", "show"}
"""The verbs, and commands of verbs, that meet no component and no task: they do not take ``--plugin``."""


def verbs() -> dict[str, Verb]:
    """Return all verbs by name, in the order in which they are listed: those of tasks stand between ``TRAIN`` and ``OTHERS``."""
    return {verb.name: verb for verb in (TRAIN, *(verb for told in task_helps() for verb in told.verbs), *OTHERS)}


class Verbs(TyperGroup):
    """The group of all verbs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let help on all verbs know the plugins that are named."""
        if "--help" in args and not set(args) & set(verbs()) and _import_named(args):
            args = ["--help"]
        found: list[str] = super().parse_args(ctx, args)
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the plugins that are named, then the verb: its options, its help and what it accepts depend on them."""
        _import_named(args)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs in their order."""
        return list(verbs())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a verb."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        known = verbs()
        if cmd_name not in known:
            raise ConfigError(f"expected a verb, found {cmd_name!r}; {nearest(cmd_name, list(known))}")
        verb = known[cmd_name]
        module = import_module(verb.module or f"transom.cli.{cmd_name.replace('-', '_')}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        command.help = f"{verb.help}\n\n{command.help or ''}\n\n\b\n[bold]Examples[/bold]{module.EXAMPLES}{_of_plugins()}".strip()
        for each in (command, *getattr(command, "commands", {}).values()):
            if each.name not in WITHOUT_PLUGINS and not hasattr(each, "commands"):
                each.params.insert(-1, _plugin_option())
            _without_values(each.get_params(ctx))
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the verbs; none needs to be imported for that."""
        self.commands = {name: TyperCommand(name, help=verb.help) for name, verb in verbs().items()}
        _without_values(self.get_params(ctx))
        super().format_help(ctx, formatter)


def _import_named(arguments: Sequence[str]) -> bool:
    """Import the plugins that are named among arguments; return whether there are any."""
    if not (named := plugins_named(arguments)):
        return False
    with signals_held():
        import torch  # noqa: F401  # which a plugin will import; a signal that comes meanwhile is not lost

        from transom.config.plugins import import_plugins
    import_plugins(named)
    return True


def _of_plugins() -> str:
    """Tell what the plugins that were named registered; for none nothing is imported."""
    plugins = sys.modules.get("transom.config.plugins")
    lines = plugins.registered_by_plugins() if plugins else []
    if not lines:
        return ""
    from rich.markup import escape

    return "\n\n\b\n[bold]From plugins[/bold]\n" + "\n".join(map(escape, lines))


def plugins_named(arguments: Sequence[str]) -> list[str]:
    """List the values of ``--plugin`` among a command line's arguments.

    >>> plugins_named(["train", "my.toml", "--plugin", "my_norm.py", "--plugin=my_task.py", "--", "--plugin", "no.py"])
    ['my_norm.py', 'my_task.py']
    """
    given = list(arguments)[: arguments.index("--") if "--" in arguments else None]
    spelled = [word.removeprefix("--plugin=") for word in given if word.startswith("--plugin=")]
    return [after for word, after in pairwise(given) if word == "--plugin"] + spelled


def _plugin_option() -> Any:
    """Make the option ``--plugin``; its values were imported before the command line is parsed, and reach no verb."""
    app = typer.Typer()

    @app.command()
    def holder(
        plugin: Annotated[
            list[str] | None,
            typer.Option(
                "--plugin",
                metavar="FILE_OR_NAME",
                help="Run this Python file, or installed plugin, first: its components and tasks are then known. May be repeated.",
            ),
        ] = None,
    ) -> None: ...

    (option,) = [each for each in typer.main.get_command(app).params if each.name == "plugin"]
    option.expose_value = False
    return option


def _without_values(options: Iterable[Any]) -> None:
    """Show no type beside a flag, which takes no value."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""


def command_line() -> TyperGroup:
    """Build the command line."""
    app = typer.Typer(cls=Verbs, add_completion=False, epilog="transom VERB --help shows a verb's options and examples.")

    @app.callback()
    def transom(
        version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ) -> None:
        """Train a Transformer on your own data with one command, and look into it."""

    return typer.main.get_group(app)


def _print_version(wanted: bool) -> bool:
    if wanted:
        print(f"transom {__version__}")
        raise typer.Exit
    return wanted
