"""The pairs that a recipe names: files, or generated ones."""

from pathlib import Path

from transom.config.data import PairData, Phrasebook
from transom.inputs.pairs import Splits, expanded, load_pairs, split_validation
from transom.inputs.phrasebook.generate import generate
from transom.inputs.tasks import generate_sequences


def load_data(data: PairData, base: Path) -> Splits:
    """Read or generate the pairs of a recipe.

    Args:
        data: the recipe's data section.
        base: folder that ``data.root`` is relative to, the recipe's own.

    Returns:
        Training and validation pairs, and test pairs where there are any. Without ``data.valid``, 1 % of the training pairs is split
        off by hash, and the validation pairs' name says so.

    Raises:
        TransomError: a file cannot be read, or the files do not fit together.
    """
    if data.generate is not None:
        return generate(data.generate) if isinstance(data.generate, Phrasebook) else generate_sequences(data.generate)
    assert data.train is not None
    root = base / expanded(data.root)
    train = load_pairs(data.train, root)
    train, valid = split_validation(train) if data.valid is None else (train, load_pairs(data.valid, root))
    return Splits(train, valid, None if data.test is None else load_pairs(data.test, root))
