"""The commands, and the Click group that imports a command's module only when the command is called."""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from transom import __version__
from transom.config.suggestions import suggest
from transom.config.task_options import Command
from transom.config.task_registry import list_task_help
from transom.errors import ConfigError
from transom.tasks.signals import defer_signals

TRAIN = Command("train", "Train a model from a recipe or on your own files.")
BUILT_IN = (
    Command("runs", "List the runs in a folder with their state, best metric and time left."),
    Command("status", "Show how far a run is, also while it trains in another terminal."),
    Command("chat", "Talk with an instruction-tuned model or a language model."),
    Command("score", "Score texts or translations: log-probability and perplexity."),
    Command("average", "Average the last checkpoints of a run into a new run folder."),
    Command("compare", "Test whether two models differ significantly in BLEU (paired bootstrap)."),
    Command("compare-attention", "Measure error, time and memory of approximate attention on a trained model."),
    Command("kernels", "List the kernel that computes each operation on this machine, with the reason."),
    Command("compare-components", "Train a recipe and variants of it with the same seeds; compare loss, speed and parameters."),
    Command("plugins", "List the plugins of installed packages."),
    Command("recipes", "List, show or copy the packaged recipes."),
    Command("tokenizer", "Train a tokenizer, or show how it segments a sentence."),
    Command("demo", "Train the built-in phrasebook translator; translate held-out sentences and show the alignment."),
)
"""The commands that belong to no task."""

NO_PLUGIN_COMMANDS = {"demo", "plugins", "list", "copy", "show"}
"""Commands and subcommands without ``--plugin``: they use no components and no tasks."""


def all_commands() -> dict[str, Command]:
    """Return all commands by name in listing order: ``TRAIN``, those of the tasks, ``BUILT_IN``."""
    of_tasks = [command for task_help in list_task_help() for command in task_help.commands]
    return {command.name: command for command in (TRAIN, *of_tasks, *BUILT_IN)}


class LazyGroup(TyperGroup):
    """The group of all commands, each imported on demand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Import the named plugins before ``transom --help``."""
        if "--help" in args and not set(args) & set(all_commands()) and _import_plugins(args):
            args = ["--help"]
        found: list[str] = super().parse_args(ctx, args)
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the named plugins, then the command: its options, help and accepted values depend on them."""
        _import_plugins(args)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in listing order."""
        return list(all_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of a command and return the command.

        Raises:
            ConfigError: no command has this name.
        """
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        known = all_commands()
        if cmd_name not in known:
            raise ConfigError(f"expected a command, found {cmd_name!r}; {suggest(cmd_name, list(known))}")
        entry = known[cmd_name]
        module = import_module(entry.module or f"transom.cli.{cmd_name.replace('-', '_')}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        command.help = f"{entry.help}\n\n{command.help or ''}\n\n\b\n[bold]Examples[/bold]{module.EXAMPLES}{_plugin_help()}".strip()
        for each in (command, *getattr(command, "commands", {}).values()):
            if each.name not in NO_PLUGIN_COMMANDS and not hasattr(each, "commands"):
                each.params.insert(-1, _plugin_option())
            _hide_flag_metavars(each.get_params(ctx))
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        self.commands = {name: TyperCommand(name, help=command.help) for name, command in all_commands().items()}
        _hide_flag_metavars(self.get_params(ctx))
        super().format_help(ctx, formatter)


def _import_plugins(arguments: Sequence[str]) -> bool:
    """Import the plugins named in the arguments; return whether there are any."""
    if not (named := plugin_arguments(arguments)):
        return False
    with defer_signals():
        import torch  # noqa: F401  # plugins import it; a signal during the import is deferred, not lost

        from transom.config.plugins import import_plugins
    import_plugins(named)
    return True


def _plugin_help() -> str:
    """Format what the named plugins registered; without plugins nothing is imported."""
    plugins = sys.modules.get("transom.config.plugins")
    lines = plugins.describe_plugins() if plugins else []
    if not lines:
        return ""
    from rich.markup import escape

    return "\n\n\b\n[bold]From plugins[/bold]\n" + "\n".join(map(escape, lines))


def plugin_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the values of ``--plugin`` in a command line.

    >>> plugin_arguments(["train", "my.toml", "--plugin", "my_norm.py", "--plugin=my_task.py", "--", "--plugin", "no.py"])
    ['my_norm.py', 'my_task.py']
    """
    before_separator = list(arguments)[: arguments.index("--") if "--" in arguments else None]
    with_equals = [word.removeprefix("--plugin=") for word in before_separator if word.startswith("--plugin=")]
    return [after for word, after in pairwise(before_separator) if word == "--plugin"] + with_equals


def _plugin_option() -> Any:
    """Build the option ``--plugin``. Its values are imported before the command line is parsed and passed to no command."""
    app = typer.Typer()

    @app.command()
    def holder(
        plugin: Annotated[
            list[str] | None,
            typer.Option(
                "--plugin",
                metavar="FILE_OR_NAME",
                help="Run a Python file, or load an installed plugin, that registers components or tasks. Repeatable.",
            ),
        ] = None,
    ) -> None: ...

    (option,) = [each for each in typer.main.get_command(app).params if each.name == "plugin"]
    option.expose_value = False
    return option


def _hide_flag_metavars(options: Iterable[Any]) -> None:
    """Show no type for flags, which take no value."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""


def command_line() -> TyperGroup:
    """Build the command line."""
    app = typer.Typer(cls=LazyGroup, epilog="transom COMMAND --help shows the options and examples of a command.")

    @app.callback()
    def transom(
        version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ) -> None:
        """Train, evaluate and run Transformers: translation, language models, classification, tagging and embeddings."""

    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def _print_version(wanted: bool) -> bool:
    if wanted:
        print(f"transom {__version__}")
        raise typer.Exit
    return wanted
