"""``transom classify``: classify texts, images or sounds; score a classifier on labeled data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import TRUNCATED_NOTE, WINDOWS_NOTE, ClassifyTooLong, PrecisionOption, RunArgument, reject_options
from transom.cli.output import JsonOption, note_too_long, print_result
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
transom classify runs/photos cat.jpg dog.png
transom classify runs/photos --labeled-data photos-for-testing
"""

app = typer.Typer(add_completion=False)


@app.command()
def classify(
    run: RunArgument,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT_OR_FILE...", help="Texts, or files for a model of images or sounds.")
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Texts, one per line (.gz too), or paths of image files.")
    ] = None,
    labeled_data: Annotated[
        Path | None,
        typer.Option(
            "--labeled-data",
            metavar="PATH",
            help=f"Labeled data to score the model on: {', or '.join(each.scored_by for each in list_task_help() if each.scored_by)}.",
        ),
    ] = None,
    too_long: ClassifyTooLong = None,
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print the most probable class and its probability per input; of labeled data, accuracy and recall and precision per class."""
    if sum(bool(each) for each in (inputs, input_file, labeled_data)) != 1:
        raise ConfigError("expected one of TEXT_OR_FILE, --input and --labeled-data, found none or several; give one of them")
    with gc_frozen_imports():
        from transom.tasks.load import load_for
        from transom.tasks.progress import show_progress

    classifier: ClassifyCommand = load_for("classify", run, precision)
    treatment, noun, is_limited = too_long or "truncate", classifier.NOUN, classifier.max_tokens is not None
    if not is_limited:
        reject_options({"--too-long": too_long}, "a classifier of texts", f"a classifier of {noun}")
    if labeled_data is not None:
        from transom.checkpoints.run_folder import RunFolder

        if not (labeled_data.is_file() or labeled_data.is_dir()):  # the evaluation log records a hash, which a pipe does not have
            there = "a device or a pipe" if labeled_data.exists() else "nothing"
            raise DataError(f"{labeled_data}: expected labeled {noun}, found {there}")
        RunFolder.open(run).access_log.record(labeled_data, "classify")
        with show_progress(noun, quiet=as_json) as notify:
            scores = classifier.score(labeled_data, treatment, notify)
        rows = [f"{label}: recall {one.recall:.1%} of {one.n:,}, precision {one.precision:.1%}" for label, one in scores.classes]
        value = {"accuracy": scores.accuracy, "n": scores.n, "classes": {label: each._asdict() for label, each in scores.classes}}
        if is_limited:
            value |= {"n_too_long": scores.n_too_long, "n_dropped_tokens": scores.n_dropped_tokens}
        print_result(value, as_json, [*rows, f"accuracy {scores.accuracy:.2f}% of {scores.n:,} {noun}"])
        if not as_json:
            _note_truncation(classifier, scores.n_too_long, scores.n, treatment, scores.n_dropped_tokens)
        return
    items = _read_inputs(inputs, input_file)
    with show_progress(noun, quiet=as_json or input_file is None) as notify:
        found = classifier.classify(items, treatment, notify)
    records = [{classifier.KEY: item, **_to_record(each, is_limited)} for item, each in zip(items, found, strict=True)]
    prefixes = [""] * len(items) if is_limited else [f"{item}\t" for item in items]
    print_result(records, as_json, [f"{prefix}{each.label}\t{each.p:.4f}" for prefix, each in zip(prefixes, found, strict=True)])
    if not as_json:
        _note_truncation(
            classifier, sum(each.is_too_long for each in found), len(found), treatment, sum(each.n_dropped_tokens for each in found)
        )


def _note_truncation(classifier: "ClassifyCommand", n_too_long: int, n: int, too_long: "LongTextPolicy", n_dropped_tokens: int) -> None:
    if classifier.max_tokens is not None:
        treatment = TRUNCATED_NOTE if too_long == "truncate" else WINDOWS_NOTE
        note_too_long(n_too_long, n, classifier.NOUN, classifier.max_tokens, treatment, n_dropped_tokens)


def _read_inputs(inputs: Sequence[str] | None, input_file: Path | None) -> list[str]:
    from transom.data.text.text_io import check_text, read_lines

    return (
        read_lines(input_file, allow_empty=True) if input_file is not None else [check_text(text, "TEXT_OR_FILE") for text in inputs or []]
    )


def _to_record(found: "ClassPrediction", is_limited: bool) -> dict[str, Any]:
    """Convert a prediction to plain data; fields on long texts only for models of texts."""
    return found.to_json() if is_limited else {"label": found.label, "p": found.p, "probabilities": found.probabilities}
