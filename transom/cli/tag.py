"""``transom tag``: tag the words of a text and find the entities in the text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.edits import EditOption, edits_in_force
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.inputs import Answer, InputOptions, answer_inputs, read_inputs
from transom.cli.options import WINDOWS_NOTE, InferencePrecisionOption, RunArgument, TagTooLong, expand_options, reject_options
from transom.cli.output import JsonAnswersOption, note_too_long, print_result
from transom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transom.tasks.tagging.predictor import TaggedText, TagScores

EXAMPLES = """
transom tag runs/phrasebook-tags "Ana goes to the museum at half past three"
transom tag runs/names --input texts.txt --json
transom tag runs/names --tagged test.conll
"""

TagColumnOption = Annotated[
    int | None,
    typer.Option("--tag-column", metavar="N", help="Column of the tag in --tagged, counted from 0. Default: -1, the last column."),
]

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def tag(
    run: RunArgument,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="Texts to tag.")] = None,
    *,
    sources: InputOptions,
    tagged: Annotated[
        Path | None,
        typer.Option(
            "--tagged",
            metavar="FILE",
            help="File of tagged sentences on which to measure accuracy and F1, in the format of the training data.",
        ),
    ] = None,
    word_column: Annotated[
        int | None, typer.Option("--word-column", metavar="N", help="Column of the word in --tagged, counted from 0. Default: 0.")
    ] = None,
    tag_column: TagColumnOption = None,
    too_long: TagTooLong = "window",
    edit: EditOption = None,
    precision: InferencePrecisionOption = "auto",
    as_json: JsonAnswersOption = False,
) -> None:
    """Print each word of a text with its tag, and then the entities in the text.

    The output has one line per word, then one line with the entities, and an empty line after each text. With --tagged, print the accuracy
    and F1 of the model instead.
    """
    if tagged is None:
        reject_options({"--word-column": word_column, "--tag-column": tag_column}, "--tagged", "texts")
    elif texts or sources.input_file:
        raise ConfigError("expected TEXT, --input or --tagged, found several; give one of them")
    with gc_frozen_imports():
        from transom.cli.evaluation_data import record_access
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress
        from transom.tasks.tagging.predictor import Tagger
        from transom.tasks.tagging.tagged_files import read_tagged

    tagger = load(run, precision, kind=Tagger)
    if tagged is not None:
        if not tagged.is_file():  # the evaluation log records a hash of the file, and a pipe has none
            there = "something else" if tagged.exists() else "nothing"
            raise DataError(f"{tagged}: expected a file of tagged sentences, found {there}; give another path")
        known = read_tagged(tagged, word_column or 0, -1 if tag_column is None else tag_column)
        record_access([run], [tagged], "tag")
        with edits_in_force(tagger, edit, precision), show_progress("windows", quiet=as_json) as notify:
            scores = tagger.score(known, too_long, notify)
        print_result(_to_record(scores), as_json, _score_lines(scores))
        n_too_long, n, noun = scores.n_too_long, len(known), "sentences"
    else:
        n_windows = list[int]()

        def answer(texts: list[str], notify: Any) -> list[Answer]:
            found = tagger.tag(texts, too_long, notify)
            n_windows.extend(each.windows for each in found)
            return [Answer({"text": text, **each.to_json()}, _format_lines(each)) for text, each in zip(texts, found, strict=True)]

        inputs = read_inputs(texts, sources, "TEXT", "texts")
        with edits_in_force(tagger, edit, precision):
            answer_inputs(inputs, answer, run=run, noun="windows", as_json=as_json)
        n_too_long, n, noun = sum(n > 1 for n in n_windows), len(n_windows), "texts"
    if not as_json:
        note_too_long(n_too_long, n, noun, tagger.max_tokens, WINDOWS_NOTE)


def _format_lines(found: "TaggedText") -> list[str]:
    words = [f"{word}\t{tag}" for word, tag in zip(found.words, found.tags, strict=True)]
    entities = "; ".join(f"{each.text} ({each.label})" for each in found.entities)
    return [*words, *([f"# {entities}"] if entities else []), ""]


def _to_record(scores: "TagScores") -> dict[str, object]:
    """Convert scores to JSON-serializable data."""
    entities = None if scores.entities is None else scores.entities._asdict()
    return scores._asdict() | {"entities": entities, "labels": {label: one._asdict() for label, one in scores.labels.items()}}


def _score_lines(scores: "TagScores") -> list[str]:
    per_label = [
        f"{label}: F1 {100 * one.f1:.2f}%, precision {one.precision:.1%}, recall {one.recall:.1%} of {one.n:,}"
        for label, one in scores.labels.items()
    ]
    total = [] if scores.entities is None else [f"entities: F1 {100 * scores.entities.f1:.2f}% of {scores.entities.n:,}"]
    return [*per_label, *total, f"accuracy {scores.accuracy:.2f}% of {scores.n:,} words"]
