"""``transom classify``: classify texts, images or sounds; score a classifier on labeled data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.answers import Json, answer, note_longer
from transom.cli.imports import lasting_imports
from transom.cli.options import IN_WINDOWS, TRUNCATED, ClassifyTooLong, Precision, Run, refuse_with
from transom.config.registry import task_helps
from transom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transom.decoding.predictors.classifier import Classified
    from transom.decoding.predictors.long_texts import TooLong
    from transom.tasks.task import Classifying

EXAMPLES = """
transom classify runs/languages "¿Dónde está la casa?"
transom classify runs/sst2 --input reviews.txt --json
transom classify runs/sst2 --labelled dev.tsv
transom classify runs/photos cat.jpg dog.png
transom classify runs/photos --labelled photos-for-testing
"""

app = typer.Typer(add_completion=False)


@app.command()
def classify(
    run: Run,
    given: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT_OR_FILE...", help="Texts, or files for a model of images or sounds.")
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Texts, one per line (.gz too), or paths of image files.")
    ] = None,
    labelled: Annotated[
        Path | None,
        typer.Option(
            "--labelled",
            metavar="PATH",
            help=f"Labeled data to score the model on: {', or '.join(told.scored_by for told in task_helps() if told.scored_by)}.",
        ),
    ] = None,
    too_long: ClassifyTooLong = None,
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """Print the most probable class and its probability per input; of labeled data, accuracy and recall and precision per class."""
    if sum(bool(each) for each in (given, input_file, labelled)) != 1:
        raise ConfigError("expected one of TEXT_OR_FILE, --input and --labelled, found none or several; give one of them")
    with lasting_imports():
        from transom.tasks.load import load_for
        from transom.tasks.progress import counting

    classifier: Classifying = load_for("classify", run, precision)
    fate, noun, cuts = too_long or "truncate", classifier.NOUN, classifier.max_tokens is not None
    if not cuts:
        refuse_with({"--too-long": too_long}, "a classifier of texts", f"a classifier of {noun}")
    if labelled is not None:
        from transom.checkpoints.run_folder import RunFolder

        if not (labelled.is_file() or labelled.is_dir()):  # the evaluation log records a hash, which a pipe does not have
            there = "a device or a pipe" if labelled.exists() else "nothing"
            raise DataError(f"{labelled}: expected labeled {noun}, found {there}")
        RunFolder.open(run).ledger.record(labelled, "classify")
        with counting(noun, quiet=as_json) as tell:
            scores = classifier.score(labelled, fate, tell)
        rows = [f"{label}: recall {one.recall:.1%} of {one.n:,}, precision {one.precision:.1%}" for label, one in scores.classes]
        value = {"accuracy": scores.accuracy, "n": scores.n, "classes": {label: each._asdict() for label, each in scores.classes}}
        if cuts:
            value |= {"n_longer": scores.n_longer, "n_left_out": scores.n_left_out}
        answer(value, as_json, [*rows, f"accuracy {scores.accuracy:.2f} % of {scores.n:,} {noun}"])
        if not as_json:
            _note(classifier, scores.n_longer, scores.n, fate, scores.n_left_out)
        return
    items = _items(given, input_file)
    with counting(noun, quiet=as_json or input_file is None) as tell:
        found = classifier.classify(items, fate, tell)
    records = [{classifier.KEY: item, **_record_of(each, cuts)} for item, each in zip(items, found, strict=True)]
    prefixes = [""] * len(items) if cuts else [f"{item}\t" for item in items]
    answer(records, as_json, [f"{prefix}{each.label}\t{each.p:.4f}" for prefix, each in zip(prefixes, found, strict=True)])
    if not as_json:
        _note(classifier, sum(each.longer for each in found), len(found), fate, sum(each.n_left_out for each in found))


def _note(classifier: "Classifying", n_longer: int, n: int, too_long: "TooLong", n_left_out: int) -> None:
    if classifier.max_tokens is not None:
        fate = TRUNCATED if too_long == "truncate" else IN_WINDOWS
        note_longer(n_longer, n, classifier.NOUN, classifier.max_tokens, fate, n_left_out)


def _items(given: Sequence[str] | None, input_file: Path | None) -> list[str]:
    from transom.data.text.text import check_text, read_lines

    return read_lines(input_file, empty=True) if input_file is not None else [check_text(text, "TEXT_OR_FILE") for text in given or []]


def _record_of(found: "Classified", cuts: bool) -> dict[str, Any]:
    """Convert a prediction to plain data; fields on long texts only for models of texts."""
    return found.to_json() if cuts else {"label": found.label, "p": found.p, "probabilities": found.probabilities}
