"""``transom classify``: classify texts, images or sounds, or score a classifier on labeled data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.inputs import Answer, InputOptions, answer_inputs, input_warnings, no_warnings, read_inputs
from transom.cli.options import (
    TRUNCATED_NOTE,
    WINDOWS_NOTE,
    ClassifyTooLong,
    LabeledColumns,
    PrecisionOption,
    RunArgument,
    expand_options,
    given_options,
    reject_options,
)
from transom.cli.output import JsonAnswersOption, note_too_long, print_note, print_result
from transom.config.task_registry import list_task_help
from transom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transom.decoding.predictors.classifier import ClassPrediction
    from transom.decoding.predictors.long_texts import LongTextPolicy
    from transom.tasks.task import ClassifyCommand

EXAMPLES = """
transom classify runs/languages "¿Dónde está la casa?"
transom classify runs/sst2 --input reviews.txt --json
transom classify runs/sst2 --labeled-data dev.tsv
transom classify runs/sst2 --labeled-data dev.csv --text-field review --label-field stars
transom classify runs/photos cat.jpg dog.png
transom classify runs/photos --labeled-data photos-for-testing
"""

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def classify(
    run: RunArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT_OR_FILE...", help="Texts to classify, or files for an image or audio classifier."),
    ] = None,
    *,
    sources: InputOptions,
    labeled_data: Annotated[
        Path | None,
        typer.Option(
            "--labeled-data",
            metavar="PATH",
            help=f"Labeled data to measure accuracy on: {', or '.join(each.scored_by for each in list_task_help() if each.scored_by)}.",
        ),
    ] = None,
    columns: LabeledColumns,
    too_long: ClassifyTooLong = None,
    precision: PrecisionOption = "auto",
    as_json: JsonAnswersOption = False,
) -> None:
    """Print the most probable class of each input and its probability.

    With --labeled-data, print the accuracy of the model, and the recall and precision of each class.
    """
    if labeled_data is not None and (inputs or sources.input_file):
        raise ConfigError("expected TEXT_OR_FILE, --input or --labeled-data, found several; give one of them")
    with gc_frozen_imports():
        from transom.tasks.load import load_for

    classifier: ClassifyCommand = load_for("classify", run, precision)
    treatment, noun, is_limited = too_long or "truncate", classifier.NOUN, classifier.max_tokens is not None
    if not is_limited:
        reject_options({"--too-long": too_long, **given_options(columns)}, "a classifier of texts", f"a classifier of {noun}")
    if labeled_data is not None:
        _score(classifier, run, labeled_data, columns, treatment, as_json)
        return
    reject_options(given_options(columns), "--labeled-data", "other inputs")

    n_too_long = n_dropped_tokens = 0

    def answer(items: list[str], notify: Any) -> list[Answer]:
        nonlocal n_too_long, n_dropped_tokens
        found = classifier.classify(items, treatment, notify)
        n_too_long += sum(each.is_too_long for each in found)
        n_dropped_tokens += sum(each.n_dropped_tokens for each in found)
        prefixes = [""] * len(items) if is_limited else [f"{item}\t" for item in items]
        return [
            Answer({classifier.KEY: item, **_to_record(each, is_limited)}, [f"{prefix}{each.label}\t{each.p:.4f}"])
            for item, prefix, each in zip(items, prefixes, found, strict=True)
        ]

    warnings = input_warnings(run) if is_limited else no_warnings
    answered = answer_inputs(read_inputs(inputs, sources, "TEXT_OR_FILE", noun), answer, noun=noun, warnings=warnings, as_json=as_json)
    if not as_json:
        _note_truncation(classifier, n_too_long, len(answered), treatment, n_dropped_tokens)


def _score(
    classifier: "ClassifyCommand", run: Path, labeled_data: Path, columns: LabeledColumns, too_long: "LongTextPolicy", as_json: bool
) -> None:
    """Score a classifier on labeled data, and print the metrics."""
    from transom.checkpoints.run_folder import RunFolder
    from transom.cli.tables import read_or_ask, training_columns
    from transom.config.data import LabeledFilesConfig
    from transom.tasks.progress import show_progress

    noun, is_limited = classifier.NOUN, classifier.max_tokens is not None
    if not (labeled_data.is_file() or labeled_data.is_dir()):  # the evaluation log records a hash of the data, and a pipe has none
        there = "a device or a pipe" if labeled_data.exists() else "nothing"
        raise DataError(f"{labeled_data}: expected labeled {noun}, found {there}; give another path")
    fields = training_columns(run, LabeledFilesConfig) | {name: value for name, value in columns._asdict().items() if value is not None}
    known = read_or_ask(lambda answer: classifier.labeled_data(labeled_data, fields if answer is None else fields | {"header": answer}))
    RunFolder.open(run).access_log.record(labeled_data, "classify")
    with show_progress(noun, quiet=as_json) as notify:
        scores = classifier.score(known, too_long, notify)
    rows = [f"{label}: recall {one.recall:.1%} of {one.n:,}, precision {one.precision:.1%}" for label, one in scores.classes]
    value = {"accuracy": scores.accuracy, "n": scores.n, "classes": {label: each._asdict() for label, each in scores.classes}}
    if is_limited:
        value |= {"n_too_long": scores.n_too_long, "n_dropped_tokens": scores.n_dropped_tokens}
    print_result(value, as_json, [*rows, f"accuracy {scores.accuracy:.2f}% of {scores.n:,} {noun}"])
    if not as_json:
        for note in getattr(known, "notes", ()):
            print_note(f"{labeled_data}: {note}")
        _note_truncation(classifier, scores.n_too_long, scores.n, too_long, scores.n_dropped_tokens)


def _note_truncation(classifier: "ClassifyCommand", n_too_long: int, n: int, too_long: "LongTextPolicy", n_dropped_tokens: int) -> None:
    if classifier.max_tokens is not None:
        treatment = TRUNCATED_NOTE if too_long == "truncate" else WINDOWS_NOTE
        note_too_long(n_too_long, n, classifier.NOUN, classifier.max_tokens, treatment, n_dropped_tokens)


def _to_record(found: "ClassPrediction", is_limited: bool) -> dict[str, Any]:
    """Convert a prediction to JSON-serializable data, including the fields on long texts if the model has a context window."""
    return found.to_json() if is_limited else {"label": found.label, "p": found.p, "probabilities": found.probabilities}
