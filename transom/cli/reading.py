"""Test files: noted in the ledger of every run that is judged by them, and translated."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Unpack

from transom.checkpoints.run_folder import RunFolder
from transom.cli.answers import note_longer
from transom.cli.options import SPLIT
from transom.config.data import PairFiles
from transom.data.pairs.pairs import Pairs, load_pairs
from transom.decoding.predictors.translator import Options, Translator
from transom.errors import DataError
from transom.tasks.progress import counting


def read_test_set(runs: Iterable[Path], source: Path, target: Path, verb: str) -> Pairs:
    """Read aligned test files after noting it in each run's ledger.

    Args:
        runs: run folders.
        source: source sentences.
        target: their translations.
        verb: what reads them.

    Raises:
        TransomError: a folder is no run, the files cannot be read or do not fit together, or there is nothing in them.
    """
    folders = [RunFolder.open(run) for run in runs]
    pairs = load_pairs(PairFiles(source=str(source.absolute()), target=str(target.absolute())), Path.cwd())
    if not pairs.source:
        raise DataError(f"{source}: expected at least one line, found none")
    for folder in folders:
        for file in (source, target):
            folder.ledger.record(file, verb)
    return pairs


class Translated(NamedTuple):
    """A translated test set.

    Attributes:
        lines: one translation for each source sentence.
        n_longer: sentences longer than the model reads, which were split.
    """

    lines: list[str]
    n_longer: int


def translate_test_set(translator: Translator, sources: list[str], what: str, quiet: bool, **options: Unpack[Options]) -> Translated:
    """Translate a test set, and say how many of its sentences were longer than the model reads.

    Args:
        translator: a loaded run.
        sources: source sentences.
        what: they are called, for people.
        quiet: say nothing.
        options: of the search.
    """
    with counting(what, quiet) as options["tell"]:
        found = translator.n_best(sources, 1, **options)
    n_longer = sum(best[0].pieces > 1 for best in found if best)
    if not quiet:
        note_longer(n_longer, len(sources), what, translator.most(options.get("to")), SPLIT)
    return Translated([best[0].text if best else "" for best in found], n_longer)
