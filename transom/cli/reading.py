"""Reading test files: noted in the ledger of every run that is judged by them."""

from collections.abc import Iterable
from pathlib import Path

from transom.config.data import PairFiles
from transom.errors import DataError
from transom.inputs.pairs import Pairs, load_pairs
from transom.weights.run_folder import RunFolder


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
