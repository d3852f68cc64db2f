"""``transom tag``: the tag of each word of a text, and the entities in it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom.cli.answers import Json, answer
from transom.cli.imports import lasting_imports
from transom.cli.options import Precision, Run, refuse_with
from transom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transom.decoding.predictors.tagger import TaggedText, Tagger

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
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Texts, one a line (.gz too).")] = None,
    tagged: Annotated[
        Path | None, typer.Option("--tagged", metavar="FILE", help="Tagged sentences to score the model by, as for training.")
    ] = None,
    word_column: Annotated[
        int | None, typer.Option("--word-column", metavar="N", help="Column of the word in --tagged, from 0, which is the default.")
    ] = None,
    tag_column: Annotated[
        int | None, typer.Option("--tag-column", metavar="N", help="Column of the tag in --tagged; left out, the last one.")
    ] = None,
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """One line per word with its tag, and one with the entities; an empty line after each text. Of tagged ones: accuracy and F1."""
    if tagged is None:
        refuse_with({"--word-column": word_column, "--tag-column": tag_column}, "--tagged", "texts")
    if sum(map(bool, (texts, input_file, tagged))) != 1:
        raise ConfigError("expected one of TEXT, --input and --tagged, found none or several; give one of them")
    with lasting_imports():
        from transom.cli.progress import counting
        from transom.data.text.text import check_text, read_lines
        from transom.decoding.predictors.tagger import Tagger
        from transom.tasks.load import load_as

    tagger = load_as(Tagger, run, precision)
    if tagged is not None:
        _score(tagger, run, tagged, (word_column or 0, -1 if tag_column is None else tag_column), as_json)
        return
    rows = read_lines(input_file, empty=True) if input_file is not None else [check_text(text, "TEXT") for text in texts or []]
    with counting("texts", quiet=as_json or input_file is None) as tell:
        found = tagger.tag(rows, tell)
    records = [
        {"text": text, **each._asdict(), "entities": [span._asdict() for span in each.entities]}
        for text, each in zip(rows, found, strict=True)
    ]
    answer(records, as_json, (line for each in found for line in _lines(each)))


def _lines(found: "TaggedText") -> list[str]:
    words = [f"{word}\t{tag}" for word, tag in zip(found.words, found.tags, strict=True)]
    entities = "; ".join(f"{each.text} ({each.label})" for each in found.entities)
    return [*words, *([f"# {entities}"] if entities else []), ""]


def _score(tagger: "Tagger", run: Path, tagged: Path, columns: tuple[int, int], as_json: bool) -> None:
    from transom.checkpoints.run_folder import RunFolder
    from transom.cli.progress import counting
    from transom.data.labeled.tagged import read_tagged

    if not tagged.is_file():  # the ledger notes a hash of what is read, and a pipe has none
        raise DataError(f"{tagged}: expected a file of tagged sentences, found {'something else' if tagged.exists() else 'nothing'} there")
    known = read_tagged(tagged, *columns)
    RunFolder.open(run).ledger.record(tagged, "tag")
    with counting("sentences", quiet=as_json) as tell:
        scores = tagger.score(known, tell)
    rows = [
        f"{label}: F1 {100 * one.f1:.2f} %, precision {one.precision:.1%}, recall {one.recall:.1%} of {one.n:,}"
        for label, one in scores.labels.items()
    ]
    whole = [] if scores.entities is None else [f"entities: F1 {100 * scores.entities.f1:.2f} % of {scores.entities.n:,}"]
    value = {
        "accuracy": scores.accuracy,
        "n": scores.n,
        "entities": None if scores.entities is None else scores.entities._asdict(),
        "labels": {label: one._asdict() for label, one in scores.labels.items()},
    }
    answer(value, as_json, [*rows, *whole, f"accuracy {scores.accuracy:.2f} % of {scores.n:,} words"])
