"""The outermost function: it runs a verb, and turns whatever ends it into an exit code and at most one line."""

import logging
import os
import re
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import FrameType

import typer
from typer.exceptions import TyperException

from transom import __version__
from transom.cli.verbs import command_line
from transom.errors import TransomError
from transom.files.limits import MAX_ERROR_CHARACTERS

OK, BUG, MISTAKE, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 130, 141, 143

_FOLDED = re.compile(r"\s*\n\s*")
_POSSIBLE = re.compile(r" \(Possible options: ([^)]*)\)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line.

    Returns:
        0 when done; 2 for a mistake of the user or of a plugin, after one ``error:`` line; 1 for a fault of ours, after one line that
        names the saved traceback; 130 or 143 when Ctrl-C or SIGTERM ended it; 141 when the reader of its output went away.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _terminated)
    _ready_streams()
    try:
        with _announcements():
            code = _run(given)
        sys.stdout.flush()
    except TransomError as error:
        return _say(f"error: {error}", MISTAKE)
    except TyperException as error:
        return _say(f"error: {_usage(error)}", MISTAKE)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        _drop_output()
        return _say(f"error: cannot read or write {_place(error)}: {error.strerror or error}; choose another place", MISTAKE)
    except Exception as error:  # noqa: BLE001  # the one place where a fault of ours may end
        if _wants_memory(error):
            return _say(
                "error: expected enough memory, found too little; make the model, training.batch_tokens or decoding.beam_size smaller,"
                " raise training.accumulate, or stop other programs",
                MISTAKE,
            )
        kind = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        from transom.config.plugins import passed_plugin, plugin_names

        if (plugin := passed_plugin(error)) is not None:
            return _say(f"error: {plugin}: {kind}; mend the plugin, whose traceback is in {_saved(given)}", MISTAKE)
        at = " or ".join(["transom", *(f"plugin {name}" for name in plugin_names())])
        return _say(f"internal error: {kind}; this is a fault in {at}, please report it with {_saved(given)}", BUG)
    return code


def _run(arguments: list[str]) -> int:
    """Parse and run; the parser's own handling of errors and of interrupts is passed by."""
    command = command_line()
    try:
        with command.make_context("transom", arguments or ["--help"]) as context:
            done = command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return done if isinstance(done, int) else OK


@contextmanager
def _announcements() -> Iterator[None]:
    """Print what the library logs for people, such as that it compiles something, on standard error."""
    logger, shown = logging.getLogger("transom"), logging.StreamHandler(sys.stderr)
    level = logger.level
    logger.addHandler(shown)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(shown)
        logger.setLevel(level)


def _ready_streams() -> None:
    """Write UTF-8 whatever the locale, as it is read; a stream that was closed is one that holds nothing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # it lives as long as the process
        elif mode == "w" and isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _drop_output() -> None:
    """Send what is left of the answer nowhere, else Python complains when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _place(error: OSError) -> str:
    return str(error.filename or "standard output")[:200]


def _wants_memory(error: Exception) -> bool:
    """Tell an allocation that failed from other faults; PyTorch has a class for it on GPUs only."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _say(line: str, code: int) -> int:
    print(one_line(line), file=sys.stderr)
    return code


def one_line(text: str, most: int = MAX_ERROR_CHARACTERS) -> str:
    r"""Spell a text as one line of printable characters; a long one loses its middle, since its end says what to do.

    >>> one_line("a\nb\x1b[2J\u202ec")
    'a\\nb\\x1b[2J\\u202ec'
    >>> one_line("error: expected " + "x" * 100 + "; name another file", 40)
    'error: expected xx ... name another file'
    """
    if len(text) > 2 * most:  # before it is spelled: it may be a whole file
        text = text[:most] + text[-most:]
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text.strip())
    if len(line) <= most:
        return line
    gap = " ... "
    end = (most - len(gap)) // 2
    return line[: most - len(gap) - end] + gap + line[-end:]


def _usage(error: TyperException) -> str:
    """Word a usage error with the nearest option or verb and the way to help."""
    message = _POSSIBLE.sub(r"; did you mean \1?", _FOLDED.sub(" ", error.format_message())).replace(". Did you", "; did you").rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "transom"
    return f"{message[:1].lower()}{message[1:]}{' ' if message.endswith('?') else '; '}see {path} --help"


def _saved(arguments: Sequence[str]) -> str:
    """Save the traceback for a report and name the file."""
    text = f"transom {__version__}, Python {sys.version}\n{shlex.join(['transom', *arguments])}\n\n{traceback.format_exc()}"
    try:
        handle, name = tempfile.mkstemp(prefix="transom-traceback-", suffix=".txt")
        os.close(handle)
        Path(name).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return f"this: {text}"
    return name


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)
