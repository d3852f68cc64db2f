"""``transom classify``: classify texts, images or sounds, or score a classifier on labeled data."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.edits import EditOption, edits_in_force
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.inputs import Answer, InputOptions, Inputs, answer_inputs, read_inputs
from transom.cli.options import (
    TRUNCATED_NOTE,
    WINDOWS_NOTE,
    ClassifyTooLong,
    InferencePrecisionOption,
    LabeledColumns,
    RunArgument,
    expand_options,
    given_options,
    reject_options,
)
from transom.cli.output import JsonAnswersOption, align_columns, note_too_long, print_note, print_result
from transom.config.task_registry import list_task_help
from transom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transom.data.labeled.text_pairs import Text
    from transom.decoding.predictors.class_metrics import ClassificationMetrics
    from transom.decoding.predictors.classifier import ClassPrediction
    from transom.decoding.predictors.long_texts import LongTextPolicy
    from transom.decoding.predictors.multi_label import LabelsPrediction, MultiLabelMetrics
    from transom.tasks.task import ClassifyCommand

EXAMPLES = """
transom classify runs/languages "¿Dónde está la casa?"
transom classify runs/sst2 --input reviews.txt --json
transom classify runs/nli "A man sleeps." --second "Somebody is awake."
transom classify runs/nli --paired --input pairs.txt
transom classify runs/sst2 --labeled-data dev.tsv
transom classify runs/sst2 --labeled-data dev.csv --text-field review --label-field stars
transom classify runs/sst2 --labeled-data dev.tsv --html dev.html
transom classify runs/sst2 --abstain-below 0.8 --input reviews.txt
transom classify runs/sst2 --edit without-head-2.json --labeled-data dev.tsv
transom classify runs/photos cat.jpg dog.png
transom classify runs/photos --labeled-data photos-for-testing
"""

MAX_MATRIX_CLASSES = 10
"""Maximum number of classes of which the confusion matrix is printed."""

MAX_PRINTED_ERRORS, MAX_PRINTED_LENGTH = 10, 100
"""Maximum number of errors that are printed, and of the characters of each; --json has whole texts."""

ABSTAIN = "abstain"
"""Printed in place of a class that is less probable than --abstain-below."""

NO_LABEL = "(no label)"
"""Printed for a text none of whose labels reaches its threshold."""


class PairOptions(NamedTuple):
    """Options of pairs of texts, one option per field.

    Attributes:
        second: second text of each input.
        paired: whether a tab separates the texts of an input.
    """

    second: Annotated[
        str | None, typer.Option("--second", metavar="TEXT", help="Second text of each input, for a model of pairs of texts.")
    ] = None
    paired: Annotated[bool, typer.Option("--paired", help="Read each input as two texts separated by a tab, for a model of pairs.")] = False

    def as_text(self, line: str) -> "Text":
        """Return an input as a text, or as a pair of texts.

        Raises:
            ConfigError: both options are given.
            DataError: a pair has no tab, or several.
        """
        if not self.paired:
            return line if self.second is None else (line, self.second)
        if self.second is not None:
            raise ConfigError("expected --second or --paired, found both; remove one")
        if line.count("\t") != 1:
            raise DataError(f"--paired: expected two texts separated by a tab, found {line!r:.80}; correct it, or leave --paired out")
        return line.partition("\t")[::2]


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
    pairs: PairOptions,
    labeled_data: Annotated[
        Path | None,
        typer.Option(
            "--labeled-data",
            metavar="PATH",
            help=f"Labeled data to measure accuracy on: {', or '.join(each.scored_by for each in list_task_help() if each.scored_by)}.",
        ),
    ] = None,
    columns: LabeledColumns,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="With --labeled-data: write the metrics to a page with diagrams.")
    ] = None,
    abstain_below: Annotated[
        float | None,
        typer.Option(
            "--abstain-below",
            metavar="P",
            help=f"Print {ABSTAIN!r} (in JSON: null) instead of a class whose probability is below P, from 0 to 1.",
        ),
    ] = None,
    too_long: ClassifyTooLong = None,
    edit: EditOption = None,
    precision: InferencePrecisionOption = "auto",
    as_json: JsonAnswersOption = False,
) -> None:
    """Print the most probable class and its probability per input, or all labels if a text can have several.

    With --labeled-data: precision, recall and F1 per class, confusion matrix, calibration, abstention, most confident errors.
    """
    if labeled_data is not None and (inputs or sources.input_file):
        raise ConfigError("expected TEXT_OR_FILE, --input or --labeled-data, found several; give one of them")
    if abstain_below is not None and not 0 <= abstain_below <= 1:
        raise ConfigError(f"--abstain-below: expected a probability from 0 to 1, found {abstain_below:g}; give another")
    check_output_path(html, [run, labeled_data, sources.input_file])
    with gc_frozen_imports():
        from transom.tasks.classification.command import MultiLabelClassifyCommand
        from transom.tasks.load import load_for

    classifier: ClassifyCommand = load_for("classify", run, precision)
    treatment, noun, is_limited = too_long or "truncate", classifier.NOUN, classifier.max_tokens is not None
    if not is_limited:
        of_texts = {"--too-long": too_long, **given_options(pairs), **given_options(columns)}
        reject_options(of_texts, "a classifier of texts", f"a classifier of {noun}")
    if isinstance(classifier, MultiLabelClassifyCommand):
        reject_options({"--abstain-below": abstain_below}, "a classifier of texts with one class each", "one of several labels per text")
    if labeled_data is not None:
        reject_options(given_options(pairs), "texts", "--labeled-data")
        with edits_in_force(classifier, edit, precision):
            metrics = _score(classifier, run, labeled_data, columns, treatment, abstain_below, as_json)
        _write_page(html, run, labeled_data, noun, metrics)
        return
    reject_options({**given_options(columns), "--html": html}, "--labeled-data", "other inputs")
    given = read_inputs(inputs, sources, "TEXT_OR_FILE", noun, names_files=not is_limited, reads_tabs=pairs.paired)
    with edits_in_force(classifier, edit, precision):
        _predict(classifier, run, given, pairs.as_text, treatment, abstain_below, as_json)


def _predict(
    classifier: "ClassifyCommand",
    run: Path,
    inputs: Inputs,
    as_text: Callable[[str], "Text"],
    too_long: "LongTextPolicy",
    abstain_below: float | None,
    as_json: bool,
) -> None:
    """Print a prediction for each input, which ``as_text`` turns into a text or a pair of texts."""
    noun, is_limited = classifier.NOUN, classifier.max_tokens is not None
    n_too_long = n_dropped_tokens = 0

    def answer(items: list[str], notify: Any) -> list[Answer]:
        nonlocal n_too_long, n_dropped_tokens
        answers = list[Answer]()
        texts = [*map(as_text, items)]
        for item, text, found in zip(items, texts, classifier.classify(texts, too_long, notify), strict=True):
            key = {classifier.KEY: item} if isinstance(text, str) else {classifier.KEY: text[0], "second": text[1]}
            if isinstance(found, DataError):
                answers.append(Answer({**key, "error": str(found)}, (), str(found)))
                continue
            n_too_long += found.is_too_long
            n_dropped_tokens += found.n_dropped_tokens
            answers.append(_answer(key, "" if is_limited else f"{item}\t", found, abstain_below, is_limited))
        return answers

    answered = [*map(as_text, answer_inputs(inputs, answer, run=run, noun=noun, as_json=as_json))]
    if is_limited and (n_empty := sum(not all(map(str.strip, [text] if isinstance(text, str) else text)) for text in answered)):
        print_note(f"warning: {n_empty:,} of {len(answered):,} {noun} are empty: their class says nothing")
    if not as_json:
        _note_truncation(classifier, n_too_long, len(answered), too_long, n_dropped_tokens)


def _score(
    classifier: "ClassifyCommand",
    run: Path,
    labeled_data: Path,
    columns: LabeledColumns,
    too_long: "LongTextPolicy",
    abstain_below: float | None,
    as_json: bool,
) -> "ClassificationMetrics | MultiLabelMetrics":
    """Print and return the metrics of a classifier on labeled data."""
    from transom.cli.evaluation_data import read_labeled_data
    from transom.tasks.progress import show_progress

    noun, is_limited = classifier.NOUN, classifier.max_tokens is not None
    known = read_labeled_data([run], classifier, labeled_data, columns._asdict(), "classify")
    with show_progress(noun, quiet=as_json) as notify:
        metrics = classifier.score(known, too_long, notify, () if abstain_below is None else (abstain_below,))
    value = metrics.to_json()
    if is_limited:
        value |= {"n_too_long": metrics.n_too_long, "n_dropped_tokens": metrics.n_dropped_tokens}
    print_result(value, as_json, _metric_lines(metrics, noun))
    if not as_json:
        for note in getattr(known, "notes", ()):
            print_note(f"{labeled_data}: {note}")
        _note_truncation(classifier, metrics.n_too_long, metrics.n, too_long, metrics.n_dropped_tokens)
    return metrics


def _table(title: str, table: tuple[list[str], list[list[str]]], n_left: int = 1) -> list[str]:
    """Format a table below its title and an empty line."""
    return ["", title, *align_columns([table[0], *table[1]], n_left)]


def _metric_lines(metrics: "ClassificationMetrics | MultiLabelMetrics", noun: str) -> Iterator[str]:
    """Format the metrics as tables, and the accuracy as the last line."""
    from transom.decoding.predictors.multi_label import MultiLabelMetrics

    if isinstance(metrics, MultiLabelMetrics):
        yield from _multi_label_lines(metrics, noun)
    else:
        yield from _class_lines(metrics, noun)


def _class_lines(metrics: "ClassificationMetrics", noun: str) -> Iterator[str]:
    from transom.inspection.pages import classification_section as shown
    from transom.inspection.pages.markup import shorten

    yield from _table(shown.class_table_title(metrics), shown.class_table(metrics))[1:]
    if len(metrics.classes) <= MAX_MATRIX_CLASSES:
        yield from _table("Confusion matrix: rows are classes, columns are predicted classes", shown.confusion_table(metrics))
    elif metrics.confused:
        yield from _table("Most confused classes", shown.confused_table(metrics), 2)
    yield from _table(f"Calibration: {shown.calibration_sentence(metrics)}", shown.calibration_table(metrics))
    yield from _table("Abstaining below a confidence (--abstain-below)", shown.abstention_table(metrics))
    if metrics.errors:
        yield from ("", "Most confident errors")
    for each in metrics.errors[:MAX_PRINTED_ERRORS]:
        yield f"{each.found} {each.p:.1%}, not {each.label}: {shorten(each.item, MAX_PRINTED_LENGTH)}"
    yield from ("", f"accuracy {metrics.accuracy:.2f}% of {metrics.n:,} {noun}")


def _multi_label_lines(metrics: "MultiLabelMetrics", noun: str) -> Iterator[str]:
    from transom.inspection.pages import multi_label_section as shown
    from transom.inspection.pages.markup import shorten

    yield from _table(shown.label_table_title(metrics), shown.label_table(metrics))[1:]
    yield from _table(f"Calibration: {shown.probability_sentence(metrics)}", shown.probability_table(metrics))
    if metrics.errors:
        yield from ("", "Most confident errors")
    yield from (f"{shown.describe_error(each)}: {shorten(each.item, MAX_PRINTED_LENGTH)}" for each in metrics.errors[:MAX_PRINTED_ERRORS])
    yield from ("", shown.summary_sentence(metrics, noun))


def _write_page(html: Path | None, run: Path, data: Path, noun: str, metrics: "ClassificationMetrics | MultiLabelMetrics") -> None:
    """Write the page of the metrics, if a file is given."""
    if html is None:
        return
    from transom.files.atomic_io import write_file
    from transom.inspection.pages.classification_section import classification_page

    write_file(html, classification_page(run.resolve().name, data.name, noun, metrics).encode())


def _note_truncation(classifier: "ClassifyCommand", n_too_long: int, n: int, too_long: "LongTextPolicy", n_dropped_tokens: int) -> None:
    if classifier.max_tokens is not None:
        treatment = TRUNCATED_NOTE if too_long == "truncate" else WINDOWS_NOTE
        note_too_long(n_too_long, n, classifier.NOUN, classifier.max_tokens, treatment, n_dropped_tokens)


def _answer(
    item: dict[str, str], prefix: str, found: "ClassPrediction | LabelsPrediction", abstain_below: float | None, is_limited: bool
) -> Answer:
    """Return a prediction as JSON and text; JSON has the fields on long texts only for models of texts."""
    from transom.decoding.predictors.multi_label import LabelsPrediction

    if isinstance(found, LabelsPrediction):
        p = [f"{found.probabilities[label]:.4f}" for label in found.labels]
        return Answer({**item, **found.to_json()}, [f"{'|'.join(found.labels) or NO_LABEL}\t{'|'.join(p)}".rstrip()])
    record = found.to_json() if is_limited else {"label": found.label, "p": found.p, "probabilities": found.probabilities}
    if abstain_below is not None and found.p < abstain_below:
        return Answer({**item, **record, "label": None}, [f"{prefix}{ABSTAIN}\t{found.p:.4f}"])
    return Answer({**item, **record}, [f"{prefix}{found.label}\t{found.p:.4f}"])
