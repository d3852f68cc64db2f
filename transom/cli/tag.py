"""``transom tag``: tag the words of a text and extract its entities."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transom.cli.answers import Json, answer, note_longer
from transom.cli.imports import lasting_imports
from transom.cli.options import IN_WINDOWS, Precision, Run, refuse_with
from transom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transom.tasks.tagging.predictor import TaggedText, TagScores

EXAMPLES = """
transom tag runs/phrasebook-tags "Ana goes to the museum at half past three"
transom tag runs/names --input texts.txt --json
transom tag runs/names --tagged test.conll
"""

app = typer.Typer(add_completion=False)


@app.command()
def tag(
    run: Run,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="Texts to tag.")] = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Texts, one per line (.gz too).")] = None,
    tagged: Annotated[
        Path | None,
        typer.Option("--tagged", metavar="FILE", help="Tagged sentences to score the model on, in the format of the training data."),
    ] = None,
    word_column: Annotated[
        int | None, typer.Option("--word-column", metavar="N", help="Column of the word in --tagged, counted from 0. Default: 0.")
    ] = None,
    tag_column: Annotated[
        int | None, typer.Option("--tag-column", metavar="N", help="Column of the tag in --tagged. Default: -1, the last column.")
    ] = None,
    too_long: Annotated[
        Literal["window", "refuse"],
        typer.Option("--too-long", help="How to treat texts longer than the context window: tag in windows, or refuse with an error."),
    ] = "window",
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """Print each word with its tag, then the entities; with --tagged, accuracy and F1.

    One line per word, one line with the entities, an empty line after each text.
    """
    if tagged is None:
        refuse_with({"--word-column": word_column, "--tag-column": tag_column}, "--tagged", "texts")
    if sum(map(bool, (texts, input_file, tagged))) != 1:
        raise ConfigError("expected one of TEXT, --input and --tagged, found none or several; give one of them")
    with lasting_imports():
        from transom.checkpoints.run_folder import RunFolder
        from transom.data.text.text import check_text, read_lines
        from transom.tasks.load import load_as
        from transom.tasks.progress import counting
        from transom.tasks.tagging.predictor import Tagger
        from transom.tasks.tagging.tagged_files import read_tagged

    tagger = load_as(Tagger, run, precision)
    if tagged is not None:
        if not tagged.is_file():  # the evaluation log records a hash, which a pipe does not have
            there = "something else" if tagged.exists() else "nothing"
            raise DataError(f"{tagged}: expected a file of tagged sentences, found {there}")
        known = read_tagged(tagged, word_column or 0, -1 if tag_column is None else tag_column)
        RunFolder.open(run).ledger.record(tagged, "tag")
        with counting("windows", quiet=as_json) as tell:
            scores = tagger.score(known, too_long, tell)
        answer(_plain(scores), as_json, _told(scores))
        n_longer, n, noun = scores.n_longer, len(known), "sentences"
    else:
        rows = read_lines(input_file, empty=True) if input_file is not None else [check_text(text, "TEXT") for text in texts or []]
        with counting("windows", quiet=as_json or input_file is None) as tell:
            found = tagger.tag(rows, too_long, tell)
        records = [{"text": text, **each.to_json()} for text, each in zip(rows, found, strict=True)]
        answer(records, as_json, (line for each in found for line in _lines(each)))
        n_longer, n, noun = sum(each.windows > 1 for each in found), len(found), "texts"
    if not as_json:
        note_longer(n_longer, n, noun, tagger.max_tokens, IN_WINDOWS)


def _lines(found: "TaggedText") -> list[str]:
    words = [f"{word}\t{tag}" for word, tag in zip(found.words, found.tags, strict=True)]
    entities = "; ".join(f"{each.text} ({each.label})" for each in found.entities)
    return [*words, *([f"# {entities}"] if entities else []), ""]


def _plain(scores: "TagScores") -> dict[str, object]:
    """Convert scores to plain data."""
    entities = None if scores.entities is None else scores.entities._asdict()
    return scores._asdict() | {"entities": entities, "labels": {label: one._asdict() for label, one in scores.labels.items()}}


def _told(scores: "TagScores") -> list[str]:
    per_label = [
        f"{label}: F1 {100 * one.f1:.2f} %, precision {one.precision:.1%}, recall {one.recall:.1%} of {one.n:,}"
        for label, one in scores.labels.items()
    ]
    total = [] if scores.entities is None else [f"entities: F1 {100 * scores.entities.f1:.2f} % of {scores.entities.n:,}"]
    return [*per_label, *total, f"accuracy {scores.accuracy:.2f} % of {scores.n:,} words"]
