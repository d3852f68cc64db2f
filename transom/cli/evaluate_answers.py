"""Answers of an instruction-tuned model to the prompts of a test set, for ``transom evaluate``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from transom.cli.options import PairFiles, column_option
from transom.cli.output import note_too_long, print_note, print_result
from transom.config.task_options import TABLES
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.cli.sampling import SamplingOptions
    from transom.data.pairs.pairs import Pairs
    from transom.decoding.predictors.generator import Continuation, Generator, LongPromptPolicy

MAX_ERRORS, MAX_PRINTED_LENGTH = 10, 100
"""Maximum number of wrong answers that are printed, and of characters printed per text; --json and --output have whole texts."""


class InstructionFiles(NamedTuple):
    """Options that name the prompts and reference answers of a test set, one option per field.

    Attributes:
        instructions: a table of prompts and answers, or conversations.
        prompt_field: column of the prompt, by name or index.
        answer_field: column of the reference answer, by name or index.
    """

    instructions: Annotated[
        Path | None,
        typer.Option(
            "--instructions",
            metavar="FILE",
            help=f"{TABLES} file of prompts and reference answers, or of chats, in the format of the training data.",
        ),
    ] = None
    prompt_field: Annotated[str | None, column_option("prompt", "prompt")] = None
    answer_field: Annotated[str | None, column_option("answer", "reference answer")] = None

    def check(self, run: Path, others: PairFiles) -> None:
        """Check that the file is given.

        Args:
            run: the run folder, for messages.
            others: options for translators, which are no replacement.

        Raises:
            ConfigError: the file is not given.
        """
        if self.instructions is None:
            given = [f"--{name}" for name in ("source", "target", "pairs") if getattr(others, name) is not None]
            found = " and ".join(given) or "none"
            raise ConfigError(
                f"{run}: expected prompts and answers for an instruction-tuned model, found {found}; give --instructions FILE"
            )


def evaluate_answers(
    generator: "Generator",
    run: Path,
    files: InstructionFiles,
    header: bool | None,
    sampling: "SamplingOptions",
    too_long: "LongPromptPolicy",
    output_file: Path | None,
    as_json: bool,
) -> None:
    """Generate an answer to each prompt of a test set, and print the scores of the answers and some wrong answers.

    Args:
        generator: generator of an instruction-tuned run.
        run: the run folder.
        files: the test set.
        header: whether the first line of the table is a header.
        sampling: options of decoding. Without a temperature, decoding is greedy, whatever the recipe.
        too_long: treatment of prompts that exceed the context window.
        output_file: file to write the answers to.
        as_json: print JSON, and show no progress.
    """
    from transom.files.atomic_io import write_file
    from transom.tasks.progress import show_progress
    from transom.training.translation_metrics import chrf, is_match

    test_set = _read_instructions(run, files, header)
    options = {**sampling.given, "temperature": sampling.temperature or 0.0, "too_long": too_long, "name": test_set.name}
    if not as_json:
        for note in test_set.notes:
            print_note(f"{test_set.name}: {note}")
        sampling.note_unused(0.0)
    with show_progress("answers", as_json) as notify:
        found = [one for (one,) in generator.continuations(test_set.source, 1, **options, notify=notify)]
    answers = [each.text for each in found]
    if output_file is not None:
        rows = (_record(test_set, i, answer) for i, answer in enumerate(answers))
        write_file(output_file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    wrong = [i for i, answer in enumerate(answers) if not is_match(answer, test_set.target[i])]
    first = dict[str, int]()  # a prompt that occurs several times is shown once
    for i in wrong:
        first.setdefault(test_set.source[i], i)
    shown = list(first.values())[:MAX_ERRORS]
    score, n = chrf(answers, test_set.target), len(test_set)
    value = {
        "run": str(run),
        "instructions": n,
        "n_too_long": sum(each.windows > 0 for each in found),
        "n_cut_off": sum(each.finish_reason == "length" for each in found),
        "exact_match": 1 - len(wrong) / n,
        "n_exact": n - len(wrong),
        "chrf": {"score": score.value, "signature": score.signature},
        "wrong_answers": [_record(test_set, i, answers[i]) for i in shown],
    }
    print_result(value, as_json, _format_lines(value, len(wrong)))
    if not as_json:
        _note_limits(generator, found, sampling.max_new_tokens or generator.sampling.max_new_tokens)


def _read_instructions(run: Path, files: InstructionFiles, header: bool | None) -> "Pairs":
    """Read prompts and reference answers as for training, and record the access in the evaluation log of the run."""
    from transom.cli.evaluation_data import record_access
    from transom.cli.tables import chat_template, read_or_ask, training_columns
    from transom.config.data import InstructionFilesConfig
    from transom.data.labeled.instructions import read_instructions
    from transom.errors import DataError

    assert files.instructions is not None
    columns = training_columns(run, InstructionFilesConfig)
    columns |= {name: value for name in ("prompt_field", "answer_field") if (value := getattr(files, name)) is not None}
    raw = {"file": str(files.instructions.absolute()), "header": header, **columns}
    template = chat_template(run)
    found = read_or_ask(lambda answers: read_instructions(InstructionFilesConfig(**{**raw, **answers}), Path.cwd(), template))
    if not len(found):
        raise DataError(f"{found.name}: expected at least one prompt with its answer, found none; give another file")
    record_access([run], [files.instructions], "evaluate")
    return found


def _record(test_set: "Pairs", i: int, answer: str) -> dict[str, Any]:
    return {"line": test_set.line_number(i), "prompt": test_set.source[i], "answer": answer, "reference": test_set.target[i]}


def _format_lines(value: dict[str, Any], n_wrong: int) -> Iterator[str]:
    """Format the wrong answers, and the scores below them."""
    shown = value["wrong_answers"]
    if shown:
        yield f"Wrong answers: {len(shown)} of {n_wrong:,}"
    for each in shown:
        yield from ("", *(f"{name + ':':10} {_shorten(each[name])}" for name in ("prompt", "answer", "reference")))
    if shown:
        yield ""
    yield f"chrf {value['chrf']['score']:.2f} ({value['chrf']['signature']})"
    yield f"exact match {100 * value['exact_match']:.2f}%: {value['n_exact']:,} of {value['instructions']:,} answers"


def _shorten(text: str) -> str:
    """Return a text on one line, without the middle of a long text: a prompt may end with its question, after earlier turns."""
    line, half = " ".join(text.split()), MAX_PRINTED_LENGTH // 2
    return line if len(line) <= MAX_PRINTED_LENGTH else f"{line[:half].rstrip()} … {line[-half:].lstrip()}"


def _note_limits(generator: "Generator", found: list["Continuation"], max_new_tokens: int) -> None:
    """Print notes on how many answers the context window or the maximum number of tokens affects."""
    n_too_long, n_cut_off = sum(each.windows > 0 for each in found), sum(each.finish_reason == "length" for each in found)
    treatment = "answers were continued from the last half of the tokens"
    note_too_long(n_too_long, len(found), "prompts with their answers", generator.model.config.max_seq_len, treatment)
    if n_cut_off:
        print_note(f"{n_cut_off:,} of {len(found):,} answers were cut off at {max_new_tokens:,} tokens (--max-new-tokens)")
