"""Entry point of the command line, which runs a command and converts every exception into an exit code and at most one line of output."""

import logging
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from transom import __version__
from transom.cli.commands import command_line
from transom.cli.output import one_line
from transom.errors import TransomError
from transom.tasks.signals import SignalExits

COMPLETION_VARIABLE = "_TRANSOM_COMPLETE"
"""Environment variable by which a shell requests completions. ``transom --install-completion`` configures the shell to set it."""

SUCCESS, INTERNAL_ERROR, USER_ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

_LINE_BREAKS = re.compile(r"\s*\n\s*")
_PARSER_WORDING = (
    ("Input should be a valid integer, unable to parse string as an integer", "expected a whole number"),
    ("Input should be a valid number, unable to parse string as a number", "expected a number"),
    ("Input should be ", "expected a number "),
    ("Value error, ", ""),
)
"""Wording of the parser of options, and what is printed instead."""
_SUGGESTIONS = re.compile(r" \(Possible options: ([^)]*)\)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line.

    Returns:
        The exit code, which is one of the following.

        * 0: the command succeeded.
        * 1: transom has a bug, and one line of output names the file with the traceback; or ``transom doctor`` found a problem.
        * 2: the user or a plugin made an error. One line of output starts with ``error:``.
        * 130 or 143: Ctrl-C or SIGTERM stopped the command.
        * 141: the program that reads the output closed its pipe.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    _configure_streams()
    try:
        with SignalExits(), _log_to_stderr():
            code = _run(argv)
            sys.stdout.flush()
    except TransomError as error:
        return _print_error(f"error: {error}", USER_ERROR)
    except TyperException as error:
        return _print_error(f"error: {_format_usage_error(error)}", USER_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        _discard_output()
        return _print_error(f"error: cannot read or write {_path_of(error)}: {error.strerror or error}; choose another path", USER_ERROR)
    except Exception as error:  # noqa: BLE001  # the only handler of internal errors
        if _is_out_of_memory(error):
            return _print_error(
                "error: expected enough memory, found too little; reduce the model size, training.batch_tokens or decoding.beam_size,"
                " raise training.grad_accum_steps, or stop other programs",
                USER_ERROR,
            )
        kind = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        from transom.config.plugins import plugin_in_traceback, plugin_names

        if (plugin := plugin_in_traceback(error)) is not None:
            return _print_error(f"error: {plugin}: {kind}; fix the plugin (traceback in {_save_traceback(argv)})", USER_ERROR)
        at = " or ".join(["transom", *(f"plugin {name}" for name in plugin_names())])
        return _print_error(f"internal error: {kind}; this is a bug in {at}, please report it with {_save_traceback(argv)}", INTERNAL_ERROR)
    return code


def _run(arguments: list[str]) -> int:
    """Parse and run a command without the handling of errors and interrupts that Typer adds."""
    command = command_line()
    if COMPLETION_VARIABLE in os.environ:
        _complete(command)
    try:
        with command.make_context("transom", arguments or ["--help"]) as context:
            done = command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return done if isinstance(done, int) else SUCCESS


def _complete(command: TyperGroup) -> NoReturn:
    """Print the completions that the shell requests through environment variables, and exit."""
    with suppress(TransomError, TyperException):  # the words typed so far may not be a valid command line yet
        command.main([], prog_name="transom")
    raise SystemExit(SUCCESS)


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Print the library's log messages, such as compilation notices, to standard error."""
    logger, handler = logging.getLogger("transom"), logging.StreamHandler(sys.stderr)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _configure_streams() -> None:
    """Set the output streams to UTF-8 regardless of the locale, and replace closed standard streams by ``os.devnull``."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # stays open until the process exits
        elif mode == "w" and isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _discard_output() -> None:
    """Redirect standard output to ``os.devnull``, so that flushing the output at exit raises no second error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _path_of(error: OSError) -> str:
    return str(error.filename or "standard output")[:200]


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is a failed memory allocation, for which PyTorch has an exception class on GPUs only."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _print_error(line: str, code: int) -> int:
    print(one_line(line), file=sys.stderr)
    return code


def _format_usage_error(error: TyperException) -> str:
    """Format a usage error in one line, with the closest option or command and a pointer to the help of the command."""
    message = (
        _SUGGESTIONS.sub(r"; did you mean \1?", _LINE_BREAKS.sub(" ", error.format_message())).replace(". Did you", "; did you").rstrip(".")
    )
    for found, wording in _PARSER_WORDING:
        message = message.replace(found, wording)
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "transom"
    return f"{message[:1].lower()}{message[1:]}{' ' if message.endswith('?') else '; '}see {path} --help"


def _save_traceback(arguments: Sequence[str]) -> str:
    """Save the traceback of the current exception to a temporary file for a bug report.

    Returns:
        The name of the file, or the traceback itself if no file can be written.
    """
    text = f"transom {__version__}, Python {sys.version}\n{shlex.join(['transom', *arguments])}\n\n{traceback.format_exc()}"
    try:
        handle, name = tempfile.mkstemp(prefix="transom-traceback-", suffix=".txt")
        os.close(handle)
        Path(name).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return f"this: {text}"
    return name
