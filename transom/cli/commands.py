"""The list of commands, and the Click group that imports the module of a command only when the command is called."""

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

TRAIN = Command("train", "Train a model with a recipe, on the recipe's data or on your own files.")
BUILT_IN = (
    Command("plan", "Compute parameters, FLOPs, memory and time of a training before it starts."),
    Command("rehearse", "Predict memory, collectives and time of a training on many devices before they are paid for."),
    Command("profile", "Measure where the time and the memory of a training step go."),
    Command("find-batch", "Find the largest batch of a recipe that fits into memory, and the gradient accumulation that goes with it."),
    Command("find-lr", "Find a learning rate for a recipe by training a fresh model at rates that grow from step to step."),
    Command("sweep", "Search over fields of a recipe by successive halving, and keep the values with the best validation metric."),
    Command("runs", "List the runs in a folder with the state, best metric and time left of each."),
    Command("status", "Show the progress of a run, even while it trains in another terminal."),
    Command("chat", "Chat with an instruction-tuned model or a language model."),
    Command("score", "Compute the log-probability and perplexity of texts or translations."),
    Command("average", "Average the last checkpoints of a run into a new run folder."),
    Command("import", "Read a model of the transformers library as a run.", module="transom.cli.import_model"),
    Command("export", "Write a run as a model of the transformers library, and check it there."),
    Command("compare", "Test whether two translators, language models or classifiers differ significantly."),
    Command("compare-attention", "Measure the error, time and memory of attention approximations on a trained model."),
    Command("explore", "Show every number of a model in a local web page, with its calculation by hand."),
    Command("names", "List the quantities of a model's forward pass, with their formulas and shapes."),
    Command("trace", "Read attention weights, residual streams and other quantities of a model on one input."),
    Command("explain", "Write out the calculation of one token by hand, with the numbers of a model and an input."),
    Command("ablate", "Edit each head, neuron, position or key on its own, and measure how the model's answer changes."),
    Command("plot", "Draw attention maps, probabilities, norms, embeddings or the architecture of a model."),
    Command("lens", "Read a model's residual stream, divide its answer among its parts and inputs, and read its neurons."),
    Command("analogy", "List the nearest neighbors of a word's embedding, or of an analogy such as king - man + woman."),
    Command("contexts", "Compare the vectors of an ambiguous word between texts, after each block of a model."),
    Command("diff", "Find the first number at which two models, prompts, checkpoints or dtypes part."),
    Command("heads", "Measure entropy, distance, similarity and role of each attention head."),
    Command("align-error", "Compare a translator's cross-attention with the word links of the phrasebook."),
    Command("doctor", "Check a trained model for errors, dead parts, poor learning and lost speed, and say what to change."),
    Command("worked-examples", "Recompute the numbers that five articles on the Transformer print, and explain their errata."),
    Command("kernels", "Show which kernel computes each operation on this machine, and why."),
    Command(
        "compare-components",
        "Train a recipe and variants of it from the same seeds, and compare their loss, speed and number of parameters.",
    ),
    Command("plugins", "List the plugins that installed packages provide."),
    Command("recipes", "List, show or copy packaged recipes, upgrade old recipes, or draw attention masks."),
    Command("tokenizer", "Train a tokenizer, or show how it segments a sentence."),
    Command("demo", "Train the built-in phrasebook translator and translate held-out sentences."),
)
"""Commands that no task registers."""

NO_PLUGIN_COMMANDS = {"demo", "plugins", "list", "copy", "show"}
"""Commands and subcommands without ``--plugin``, because they use no components and no tasks."""


def all_commands() -> dict[str, Command]:
    """Return all commands by name in listing order: first ``TRAIN``, then the commands of the tasks, then ``BUILT_IN``."""
    of_tasks = [command for task_help in list_task_help() for command in task_help.commands]
    return {command.name: command for command in (TRAIN, *of_tasks, *BUILT_IN)}


class LazyGroup(TyperGroup):
    """Click group of all commands, which imports the module of a command on demand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Import the plugins that ``--plugin`` names, so that ``transom --help`` lists their commands."""
        if "--help" in args and not set(args) & set(all_commands()) and _import_plugins(args):
            args = ["--help"]
        found: list[str] = super().parse_args(ctx, args)
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the plugins that ``--plugin`` names, and then the command.

        The options, the help and the accepted values of the command depend on the imported plugins.
        """
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
        """Write the help page of ``transom`` without importing the commands."""
        self.commands = {name: TyperCommand(name, help=command.help) for name, command in all_commands().items()}
        _hide_flag_metavars(self.get_params(ctx))
        super().format_help(ctx, formatter)


def _import_plugins(arguments: Sequence[str]) -> bool:
    """Import the plugins that ``--plugin`` names in the arguments, and return whether there are any."""
    if not (named := plugin_arguments(arguments)):
        return False
    with defer_signals():
        import torch  # noqa: F401  # plugins import torch; a signal during this import is deferred and not lost

        from transom.config.plugins import import_plugins
    import_plugins(named)
    return True


def _plugin_help() -> str:
    """Format the help section that lists what the imported plugins registered; empty without plugins."""
    plugins = sys.modules.get("transom.config.plugins")
    lines = plugins.describe_plugins() if plugins else []
    if not lines:
        return ""
    from rich.markup import escape

    return "\n\n\b\n[bold]From plugins[/bold]\n" + "\n".join(map(escape, lines))


def plugin_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the values of ``--plugin`` in a command line, up to the separator ``--``.

    >>> plugin_arguments(["train", "my.toml", "--plugin", "my_norm.py", "--plugin=my_task.py", "--", "--plugin", "no.py"])
    ['my_norm.py', 'my_task.py']
    """
    before_separator = list(arguments)[: arguments.index("--") if "--" in arguments else None]
    with_equals = [word.removeprefix("--plugin=") for word in before_separator if word.startswith("--plugin=")]
    return [after for word, after in pairwise(before_separator) if word == "--plugin"] + with_equals


def _plugin_option() -> Any:
    """Build the option ``--plugin``.

    The plugins are imported before the command line is parsed, so no command receives the values of this option.
    """
    app = typer.Typer()

    @app.command()
    def holder(
        plugin: Annotated[
            list[str] | None,
            typer.Option(
                "--plugin",
                metavar="FILE_OR_NAME",
                help="Python file, or name of an installed plugin, that adds components or tasks. The file is executed. Repeatable.",
            ),
        ] = None,
    ) -> None: ...

    (option,) = [each for each in typer.main.get_command(app).params if each.name == "plugin"]
    option.expose_value = False
    return option


def _hide_flag_metavars(options: Iterable[Any]) -> None:
    """Hide the value type in the help of flags, which take no value."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""


def command_line() -> TyperGroup:
    """Build the group of all commands."""
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
