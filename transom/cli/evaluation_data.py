"""Read and translate test sets, and record each access in the evaluation logs of the evaluated runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from transom.checkpoints.run_folder import RunFolder
from transom.cli.options import SPLIT_NOTE, PairFiles
from transom.cli.output import note_too_long, print_note
from transom.cli.run_warnings import training_data_warnings
from transom.cli.tables import read_or_ask, training_columns
from transom.config.data import LabeledFilesConfig, PairFilesConfig
from transom.data.pairs.pairs import Pairs, load_pairs
from transom.decoding.predictors.translate_options import TranslateOptions
from transom.decoding.predictors.translator import Translator
from transom.errors import DataError
from transom.tasks.progress import show_progress

if TYPE_CHECKING:
    from transom.tasks.task import ClassifyCommand

N_LANGUAGE_SENTENCES = 200
"""Number of sentences by which the language of a test set is compared with that of the training data."""


def read_test_set(runs: Sequence[Path], files: PairFiles, command: str) -> Pairs:
    """Read a test set and record the access in the evaluation log of each run.

    Args:
        runs: folders of the evaluated runs. Columns that are not given are those of the first run's training data.
        files: the files of the test set.
        command: name of the command that reads the test set, for the log.

    Raises:
        TransomError: a folder is no run, a file cannot be read or is empty, or the numbers of lines differ.
    """
    for run in runs:
        RunFolder.open(run)  # reports a folder that is no run before the files are read
    columns = {} if files.pairs is None else training_columns(runs[0], PairFilesConfig)
    pairs = read_or_ask(lambda answers: load_pairs(files.config(columns, answers.get("header")), Path.cwd()))
    if not pairs.source:
        raise DataError(f"{pairs.name}: expected at least one line, found none; give another file")
    record_access(runs, files.paths, command)
    for problem in filter(None, (language_warning(run, pairs) for run in runs[:1])):
        print_note(f"warning: {problem}")
    return pairs


def read_labeled_data(runs: Sequence[Path], classifier: "ClassifyCommand", data: Path, columns: Mapping[str, Any], command: str) -> Any:
    """Read labeled data for a classifier and record the access in the evaluation log of each run.

    Args:
        runs: folders of the evaluated runs. Columns that are not given are those of the first run's training data.
        classifier: the object that reads the data.
        data: file or folder of the data.
        columns: options that select the columns, by field; None for those that are not given.
        command: name of the command that reads the data, for the log.

    Raises:
        TransomError: the data cannot be read.
    """
    if not (data.is_file() or data.is_dir()):  # the evaluation log records a hash of the data, and a pipe has none
        there = "a device or a pipe" if data.exists() else "nothing"
        raise DataError(f"{data}: expected labeled {classifier.NOUN}, found {there}; give another path")
    fields = training_columns(runs[0], LabeledFilesConfig) | {name: value for name, value in columns.items() if value is not None}
    known = read_or_ask(lambda answers: classifier.labeled_data(data, {**fields, **answers}))
    record_access(runs, [data], command)
    return known


def record_access(runs: Sequence[Path], paths: Sequence[Path], command: str, is_part: bool = False) -> None:
    """Record the access to test files in the evaluation logs of runs, and print a warning for each file that a run was trained on.

    Args:
        runs: folders of the evaluated runs.
        paths: the files, or a folder.
        command: name of the command that reads them.
        is_part: whether only a part of the files is read, which may be one that was held out.
    """
    for run in runs:
        folder = RunFolder.open(run)
        for path in paths:
            folder.access_log.record(path, command)
        for problem in [] if is_part else training_data_warnings(run, paths):
            print_note(f"warning: {problem}")


def language_warning(run: Path, pairs: Pairs) -> str | None:
    """Return a warning if most source sentences are unlike those that a run was trained on.

    Args:
        run: the run folder.
        pairs: a test set, of which the first ``N_LANGUAGE_SENTENCES`` pairs are examined.
    """
    from transom.tasks.input_profile import read_input_profile

    profile = read_input_profile(run)
    if profile is None:
        return None
    n = min(len(pairs), N_LANGUAGE_SENTENCES)
    sources, targets = (sum(map(profile.is_unlike, side[:n])) / n for side in (pairs.source, pairs.target))
    if sources <= 0.5:
        return None
    advice = "the target sentences are alike: swap source and target" if targets < 0.5 else "perhaps they are in another language"
    return f"{pairs.name}: {sources:.0%} of the source sentences are unlike the training sentences in words and letters; {advice}"


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
