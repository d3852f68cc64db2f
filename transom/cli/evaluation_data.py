"""Read and translate test sets, and record each access in the evaluation logs of the evaluated runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

from transom.checkpoints.run_folder import RunFolder
from transom.cli.options import SPLIT_NOTE, PairFiles
from transom.cli.output import note_too_long
from transom.cli.tables import read_or_ask, training_columns
from transom.config.data import PairFilesConfig
from transom.data.pairs.pairs import Pairs, load_pairs
from transom.decoding.predictors.translator import TranslateOptions, Translator
from transom.errors import DataError
from transom.tasks.progress import show_progress


def read_test_set(runs: Sequence[Path], files: PairFiles, command: str) -> Pairs:
    """Read a test set and record the access in the evaluation log of each run.

    Args:
        runs: folders of the evaluated runs. Columns that are not given are those of the first run's training data.
        files: the files of the test set.
        command: name of the command that reads the test set, for the log.

    Raises:
        TransomError: a folder is no run, a file cannot be read or is empty, or the numbers of lines differ.
    """
    folders = [RunFolder.open(run) for run in runs]
    columns = {} if files.pairs is None else training_columns(runs[0], PairFilesConfig)
    pairs = read_or_ask(lambda answers: load_pairs(files.config(columns, answers.get("header")), Path.cwd()))
    if not pairs.source:
        raise DataError(f"{pairs.name}: expected at least one line, found none; give another file")
    for folder in folders:
        for file in files.paths:
            folder.access_log.record(file, command)
    return pairs


class TranslatedTestSet(NamedTuple):
    """Translations of a test set.

    Attributes:
        lines: one translation per source sentence.
        n_too_long: number of sentences that exceed the context window and were split.
    """

    lines: list[str]
    n_too_long: int


def translate_test_set(
    translator: Translator, sources: list[str], noun: str, quiet: bool, **options: Unpack[TranslateOptions]
) -> TranslatedTestSet:
    """Translate a test set, and print a note on how many sentences exceed the context window.

    Args:
        translator: translator of a run.
        sources: source sentences.
        noun: plural noun for the sentences, as printed.
        quiet: print neither progress nor the note.
        options: decoding options.
    """
    with show_progress(noun, quiet) as options["notify"]:
        found = translator.n_best(sources, 1, **options)
    n_too_long = sum(best[0].pieces > 1 for best in found if best)
    if not quiet:
        note_too_long(n_too_long, len(sources), noun, translator.max_tokens(options.get("to")), SPLIT_NOTE)
    return TranslatedTestSet([best[0].text if best else "" for best in found], n_too_long)
