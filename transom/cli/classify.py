"""``transom classify``: the class of texts or images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.answers import Json, answer, note_longer
from transom.cli.imports import lasting_imports
from transom.cli.options import IN_WINDOWS, TRUNCATED, ClassifyTooLong, Precision, Run, refuse_with
from transom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transom.decoding.inference import Tell
    from transom.decoding.predictors.classifier import Classified, Classifier, Scores
    from transom.decoding.predictors.image_classifier import ImageClassifier
    from transom.decoding.predictors.long_texts import TooLong

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
    given: Annotated[list[str] | None, typer.Argument(metavar="TEXT_OR_IMAGE...", help="Texts, or files of images.")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Texts, one a line (.gz too), or names of image files.")
    ] = None,
    labelled: Annotated[
        Path | None,
        typer.Option(
            "--labelled",
            metavar="PATH",
            help="What to score the model by: a .tsv, .csv or .jsonl file of texts and their classes, or a folder or .zip of"
            " CLASS/NAME.jpg.",
        ),
    ] = None,
    too_long: ClassifyTooLong = None,
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """One line each: the class and how probable it is. Of labelled ones: the accuracy, and of each class how much was found."""
    if sum(bool(each) for each in (given, input_file, labelled)) != 1:
        raise ConfigError("expected one of TEXT_OR_IMAGE, --input and --labelled, found none or several; give one of them")
    with lasting_imports():
        from transom.cli.progress import counting
        from transom.decoding.load import load_classifier
        from transom.decoding.predictors.classifier import Classifier

    classifier = load_classifier(run, precision)
    of_texts, fate = isinstance(classifier, Classifier), too_long or "truncate"
    if not of_texts:
        refuse_with({"--too-long": too_long}, "a classifier of texts", "one of images")
    if labelled is not None:
        from transom.checkpoints.run_folder import RunFolder

        if not (labelled.is_file() or labelled.is_dir()):  # the ledger notes a hash of what is read, and a pipe has none
            there = "a device or a pipe" if labelled.exists() else "nothing"
            raise DataError(f"{labelled}: expected labelled {'texts' if of_texts else 'images'}, found {there} there")
        RunFolder.open(run).ledger.record(labelled, "classify")
        with counting("texts" if of_texts else "images", quiet=as_json) as tell:
            if isinstance(classifier, Classifier):
                scores = _scores_of_texts(classifier, labelled, fate, tell)
            else:
                scores = _scores(classifier, labelled, tell)
        rows = [f"{label}: found {one.recall:.1%} of {one.n:,}, right {one.precision:.1%}" for label, one in scores.classes]
        value = {"accuracy": scores.accuracy, "n": scores.n, "classes": {label: each._asdict() for label, each in scores.classes}}
        if of_texts:
            value |= {"n_longer": scores.n_longer, "n_left_out": scores.n_left_out}
        answer(value, as_json, [*rows, f"accuracy {scores.accuracy:.2f} % of {scores.n:,} {'texts' if of_texts else 'images'}"])
        if isinstance(classifier, Classifier) and not as_json:
            _note(classifier, scores.n_longer, scores.n, fate, scores.n_left_out)
        return
    items = _items(given, input_file)
    with counting("texts" if of_texts else "images", quiet=as_json or input_file is None) as tell:
        found = classifier.classify(items, fate, tell) if isinstance(classifier, Classifier) else classifier.classify(items, tell)
    records = [_record_of(item, each, of_texts) for item, each in zip(items, found, strict=True)]
    prefixes = [""] * len(items) if of_texts else [f"{item}\t" for item in items]
    answer(records, as_json, [f"{prefix}{each.label}\t{each.p:.4f}" for prefix, each in zip(prefixes, found, strict=True)])
    if isinstance(classifier, Classifier) and not as_json:
        _note(classifier, sum(each.longer for each in found), len(found), fate, sum(each.n_left_out for each in found))


def _note(classifier: "Classifier", n_longer: int, n: int, too_long: "TooLong", n_left_out: int) -> None:
    most = classifier.model.config.max_seq_len - 1
    note_longer(n_longer, n, "texts", most, TRUNCATED if too_long == "truncate" else IN_WINDOWS, n_left_out)


def _items(given: Sequence[str] | None, input_file: Path | None) -> list[str]:
    from transom.data.text.text import check_text, read_lines

    return read_lines(input_file, empty=True) if input_file is not None else [check_text(text, "TEXT_OR_IMAGE") for text in given or []]


def _record_of(item: str, found: "Classified", of_texts: bool) -> dict[str, Any]:
    if of_texts:
        return {"text": item, **found._asdict()}
    return {"image": item, "label": found.label, "p": found.p, "probabilities": found.probabilities}


def _scores_of_texts(classifier: "Classifier", labelled: Path, too_long: "TooLong", tell: "Tell") -> "Scores":
    from transom.config.data import LabelledFiles
    from transom.data.labeled.labelled import read_labelled
    from transom.decoding.predictors.classifier import scored

    known = read_labelled(LabelledFiles(file=str(labelled.absolute())), Path.cwd())
    return scored(classifier.classify(known.source, too_long, tell), known.target, known, classifier.model.config.classes)


def _scores(classifier: "ImageClassifier", labelled: Path, tell: "Tell") -> "Scores":
    from transom.data.images.images import read_images
    from transom.decoding.predictors.classifier import scored

    config, batch = classifier.model.config, classifier.reading.batch_images
    known = read_images(labelled, config.image_size, config.channels)
    parts = [range(start, min(start + batch, len(known))) for start in range(0, len(known), batch)]
    found = list["Classified"]()
    for part in parts:
        found += classifier.classify_pixels(known.load(part))
        tell(len(found), len(known))
    return scored(found, known.labels, known, config.classes)
