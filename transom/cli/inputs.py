"""Inputs of the prediction commands, read from arguments, a file or standard input and answered in batches or line by line."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from transom.cli.output import print_error, print_note, print_result, show_controls
from transom.cli.run_warnings import input_warnings, result_warnings
from transom.errors import ConfigError, DataError, TransomError

ProgressCallback = Callable[[int, int], None]

MAX_SHOWN_WARNINGS = 3
"""Maximum number of inputs of a batch whose warnings are printed. With ``--json``, all warnings are printed."""


class InputOptions(NamedTuple):
    """Options that choose where inputs are read from, one option per field.

    Attributes:
        input_file: file of inputs, one per line.
        line_buffered: answer each line as soon as it arrives.
    """

    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input", metavar="FILE", help="File of inputs, one per line (may be gzipped). Default: the arguments, or else standard input."
        ),
    ] = None
    line_buffered: Annotated[
        bool, typer.Option("--line-buffered", help="Answer each line as soon as it arrives instead of reading all lines first.")
    ] = False

    def is_stream(self, arguments: Sequence[str] | None) -> bool:
        """Return whether the inputs come from a file or a pipe and are answered in batches."""
        return not arguments and not self.line_buffered and (self.input_file is not None or not sys.stdin.isatty())


class Answer(NamedTuple):
    """The answer to one input.

    Attributes:
        record: the answer as JSON-serializable data.
        lines: the answer as lines of text.
        error: why the input could not be answered; empty if it was.
    """

    record: dict[str, Any]
    lines: Sequence[str]
    error: str = ""


class Inputs(NamedTuple):
    """Inputs of a command, to be answered either in batches or one by one.

    Attributes:
        name: name of the file or argument the inputs come from, for messages.
        given: inputs that are answered in batches; None if ``lines`` are answered one by one instead.
        lines: lines that are answered one by one as they arrive.
        is_stream: whether the inputs come from a file or a pipe, so that progress is shown.
        is_prompt: whether the lines are typed in a terminal.
    """

    name: str
    given: list[str] | None
    lines: Iterator[str] = iter(())
    is_stream: bool = False
    is_prompt: bool = False


PROMPT_HELP = "the arrow keys edit a line and recall earlier ones; /exit or Ctrl-D ends; --help lists the options of the command"


def read_inputs(
    arguments: Sequence[str] | None, options: InputOptions, argument: str, noun: str, names_files: bool = False, reads_tabs: bool = False
) -> Inputs:
    """Read the inputs of a command from its arguments, from ``--input`` or from standard input.

    Args:
        arguments: inputs given as arguments.
        options: options that choose where inputs are read from.
        argument: name of the argument in the help, for messages.
        noun: plural noun for the inputs, such as "sentences".
        names_files: whether the inputs are names of files by right.
        reads_tabs: whether tabs separate the texts of an input, as in a table.

    Raises:
        ConfigError: both arguments and ``--input`` are given.
        DataError: the file or an argument is not clean UTF-8 text.
    """
    from transom.data.text.tabular import is_table
    from transom.data.text.text_io import check_text, decode_lines, read_lines

    if arguments and options.input_file is not None:
        raise ConfigError(f"expected {argument} or --input, found both; remove one")
    if arguments:
        if not names_files and (files := [text for text in arguments if os.path.isfile(text)]):  # noqa: PTH113 - False for any text
            print_note(f"warning: {files[0]} is a file, but its name is read as one of the {noun}; --input {files[0]} reads its lines")
        return Inputs(argument, [check_text(text, argument) for text in arguments])
    if options.input_file is not None:
        lines = read_lines(options.input_file)
        if is_table(options.input_file) and not reads_tabs:
            print_note(
                f"warning: {options.input_file} looks like a table, but each whole line is read as one of the {noun}; write a file with one"
                " per line if that is not meant"
            )
        return Inputs(str(options.input_file), None if options.line_buffered else lines, iter(lines), is_stream=True)
    if sys.stdin.isatty():
        print_note(f"type {noun}, one per line; /help explains, /exit or Ctrl-D ends")
        return Inputs("standard input", None, typed_lines(), is_prompt=True)
    piped = decode_lines(sys.stdin.buffer, "standard input")
    if options.line_buffered:
        return Inputs("standard input", None, piped, is_stream=True)
    lines = list(piped)
    if not lines:
        print_note(f"standard input is empty: no {noun}")
    return Inputs("standard input", lines, is_stream=True)


def answer_inputs(
    inputs: Inputs,
    answer: Callable[[list[str], ProgressCallback], Sequence[Answer]],
    *,
    run: Path,
    noun: str,
    as_json: bool,
    readable: Callable[[str], str] = str,
    stream: Callable[[str], None] | None = None,
    output_file: Path | None = None,
    separator: str | None = None,
    json_lines: bool = False,
) -> list[str]:
    """Answer all inputs and print the answers.

    Inputs in a batch are answered together, and the answers are printed as text or as one JSON list. Inputs that arrive line by line are
    answered immediately, and each answer is printed as text or as one JSON object per line. Warnings about the inputs are printed to
    standard error, or in JSON stored in each record under ``warnings``. An input with an error does not keep the others from being
    answered; at the end, its error is printed.

    Args:
        inputs: the inputs.
        answer: function that answers a list of inputs. Its second argument is a progress callback, called with the numbers of finished
            inputs and of all inputs.
        run: the run folder of the model. Warnings compare the inputs with the run's training inputs, and its result with a trivial one.
        noun: plural noun for the inputs.
        as_json: print JSON.
        readable: function that returns the text of an input that is compared with the training texts.
        stream: function that prints the answer to one input piece by piece. It replaces ``answer`` for text output line by line.
        output_file: file to which the text of a batch is written instead of standard output.
        separator: line that is printed between the answers of a batch.
        json_lines: print a batch too as one JSON object per line, instead of as one list.

    Returns:
        The inputs that were answered.

    Raises:
        DataError: an input that was not typed at a prompt has an error.
    """
    from transom.files.atomic_io import write_file
    from transom.planning.freed_memory import restored_malloc
    from transom.tasks.progress import show_progress

    of_input = input_warnings(run)

    def warnings(text: str) -> Sequence[str]:
        return of_input(readable(text))

    for problem in result_warnings(run):
        print_note(f"warning: {problem}")
    if inputs.given is None:
        return _answer_lines(inputs, answer, noun, warnings, as_json, stream)
    with show_progress(noun, quiet=as_json or not inputs.is_stream) as notify, restored_malloc():
        answers = list(answer(inputs.given, notify))
    found = [list(warnings(text)) for text in inputs.given]
    records = [{**each.record, "warnings": of_text} for each, of_text in zip(answers, found, strict=True)]
    between = [] if separator is None else [separator]
    lines = [line for number, each in enumerate(answers) for line in (*(between if number else ()), *each.lines)]
    if as_json and json_lines:
        for record in records:
            print(json.dumps(record, ensure_ascii=False))
    elif output_file is None:
        print_result(records, as_json, lines)
    else:
        write_file(output_file, "".join(f"{line}\n" for line in lines).encode())
    if not as_json:
        _note_warnings(found, noun)
    if errors := [each.error for each in answers if each.error]:
        _fail(errors, len(answers), noun)
    return inputs.given


def _fail(errors: Sequence[str], n: int, noun: str) -> NoReturn:
    """Print the errors of a batch, and raise an error with their number; the only error of a single input is raised itself.

    Args:
        errors: one message per input that could not be answered.
        n: number of inputs.
        noun: plural noun for the inputs.
    """
    if n == 1:
        raise DataError(errors[0])
    for error in errors:
        print_error(error)
    raise _unanswered(len(errors), n, noun)


def _unanswered(n_errors: int, n: int, noun: str) -> DataError:
    others = "none is answered" if n_errors == n else "the others are answered"
    return DataError(
        f"expected {noun} that can be read, found {n_errors:,} of {n:,} that cannot: {others}; repair or remove those named above"
    )


def _answer_lines(
    inputs: Inputs,
    answer: Callable[[list[str], ProgressCallback], Sequence[Answer]],
    noun: str,
    warnings: Callable[[str], Sequence[str]],
    as_json: bool,
    stream: Callable[[str], None] | None,
) -> list[str]:
    """Answer lines one by one as they arrive; see ``answer_inputs``. At a prompt, the loop continues after an error."""
    answered, n_errors = list[str](), 0
    for text in inputs.lines:
        if inputs.is_prompt and text.strip() == "/help":
            print_note(PROMPT_HELP)
            continue
        if inputs.is_prompt and text.strip() == "/exit":
            break
        try:
            n_errors += _answer_line(text, answer, list(warnings(text)), as_json, stream)
        except TransomError as error:
            if not inputs.is_prompt:
                raise
            print_error(error)
        answered.append(text)
    if n_errors and not inputs.is_prompt:
        raise _unanswered(n_errors, len(answered), noun)
    return answered


def _answer_line(
    text: str,
    answer: Callable[[list[str], ProgressCallback], Sequence[Answer]],
    found: list[str],
    as_json: bool,
    stream: Callable[[str], None] | None,
) -> bool:
    """Print the answer to one input, or the error if it cannot be answered, and return whether there was an error."""
    if not as_json:
        for warning in found:
            print_note(f"warning: {warning}")
        if stream is not None:
            stream(text)
            return False
    (one,) = answer([text], lambda done, total: None)
    if as_json:
        print(json.dumps({**one.record, "warnings": found}, ensure_ascii=False), flush=True)
    else:
        for line in one.lines:
            print(show_controls(line) if sys.stdout.isatty() else line, flush=True)
    if one.error:
        print_error(one.error)
    return bool(one.error)


def _note_warnings(found: Sequence[Sequence[str]], noun: str) -> None:
    """Print the warnings about the first inputs that have warnings, and the number of further inputs that have some."""
    with_warnings = [(number, of_text) for number, of_text in enumerate(found, 1) if of_text]
    for number, of_text in with_warnings[:MAX_SHOWN_WARNINGS]:
        where = f"line {number}: " if len(found) > 1 else ""
        for warning in of_text:
            print_note(f"warning: {where}{warning}")
    if (more := len(with_warnings) - MAX_SHOWN_WARNINGS) > 0:
        print_note(f"warning: {more:,} more of {len(found):,} {noun} have warnings; --json prints all warnings")


def typed_lines() -> Iterator[str]:
    """Yield the lines that are typed at a prompt.

    Lines can be edited and earlier lines recalled if Python has the module ``readline``.
    """
    with suppress(ImportError):
        import readline  # noqa: F401  # enables line editing in input()
    while True:
        try:
            yield input("> ") if sys.stdout.isatty() else _prompted_line()
        except EOFError:
            print_note("")
            return


def _prompted_line() -> str:
    """Read a line with the prompt on standard error, because standard output is redirected."""
    print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
