"""``transom classify``: the class of a text, or of each line of a file."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from transom.cli.answers import Json, answer, note
from transom.cli.imports import lasting_imports
from transom.cli.options import Precision, Run
from transom.errors import ConfigError

EXAMPLES = """
transom classify runs/languages "¿Dónde está la casa?"
transom classify runs/sst2 --input reviews.txt
transom classify runs/sst2 --input reviews.txt --json
transom classify runs/sst2 --labelled dev.tsv
"""

app = typer.Typer(add_completion=False)


@app.command()
def classify(
    run: Run,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A text.")] = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Texts, one a line (.gz too).")] = None,
    labelled: Annotated[
        Path | None,
        typer.Option("--labelled", metavar="FILE", help="A .tsv, .csv or .jsonl file of texts and their classes, to score the model by."),
    ] = None,
    too_long: Annotated[
        Literal["truncate", "window", "refuse"],
        typer.Option("--too-long", help="A text longer than the model reads: take its beginning, all of it in windows, or refuse."),
    ] = "truncate",
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """One line a text: its class and how probable that is. Of labelled texts: the accuracy, and of each class how much was found."""
    if sum(given is not None for given in (text, input_file, labelled)) != 1:
        raise ConfigError("expected one of TEXT, --input and --labelled, found none or several; give one of them")
    with lasting_imports():
        from transom.decoding.classifier import Classifier, scored
        from transom.decoding.load import load_as
        from transom.inputs.labelled import read_labelled
        from transom.inputs.text import check_text, read_lines

    classifier = load_as(Classifier, run, precision)
    if labelled is not None:
        from transom.config.data import LabelledFiles
        from transom.weights.run_folder import RunFolder

        known = read_labelled(LabelledFiles(file=str(labelled.absolute())), Path.cwd())
        RunFolder.open(run).ledger.record(labelled.absolute(), "classify")
        scores = scored(classifier.classify(known.source, too_long), known, classifier.model.config.classes)
        rows = [f"{label}: found {one.recall:.1%} of {one.n:,}, right {one.precision:.1%}" for label, one in scores.classes]
        value = {"accuracy": scores.accuracy, "n": scores.n, "classes": {label: each._asdict() for label, each in scores.classes}}
        answer(value, as_json, [*rows, f"accuracy {scores.accuracy:.2f} % of {scores.n:,} texts"])
        return
    texts = [check_text(text, "TEXT")] if text is not None else read_lines(input_file or Path(), empty=True)
    found = classifier.classify(texts, too_long)
    records = [{"text": text, **each._asdict()} for text, each in zip(texts, found, strict=True)]
    answer(records, as_json, [f"{each.label}\t{each.p:.4f}" for each in found])
    if not as_json and (cut := sum(each.n_left_out > 0 for each in found)):
        most = classifier.model.config.max_seq_len - 1
        note(f"{cut:,} of {len(found):,} texts were longer than the {most:,} tokens that the model reads: their beginning stands for them")
