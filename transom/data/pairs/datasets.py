"""The sentence pairs of a recipe, from files or generated, for one or several target languages."""

from collections.abc import Sequence
from pathlib import Path

from transom.config.components import build
from transom.config.data import Language, PairData
from transom.data.pairs.pairs import Pairs, load_pairs, split_validation
from transom.data.split import Splits, read_splits
from transom.data.synthetic import sequences  # noqa: F401  # registers its builder
from transom.data.synthetic.phrasebook import generate  # noqa: F401  # registers its builder
from transom.data.text.text import expanded


def load_data(data: PairData, base: Path) -> Splits[Pairs]:
    """Read or generate the pairs of a recipe with one target language.

    Args:
        data: the recipe's data section.
        base: the recipe's folder, to which ``data.root`` is relative.

    Returns:
        Training and validation pairs, and test pairs if the recipe has them. Without ``data.valid``, 1 % of the training pairs is split
        off by hash and the validation pairs are named accordingly.

    Raises:
        TransomError: a file cannot be read, or the files do not match.
    """
    return _load(data, base / expanded(data.root))


def load_languages(data: PairData, base: Path, languages: Sequence[Language] = ()) -> dict[str | None, Splits[Pairs]]:
    """Return the splits of each target language by its tag, as ``load_data`` does; the tag is None for a single language."""
    if not languages:
        return {None: load_data(data, base)}
    root, found = base / expanded(data.root), dict[str | None, Splits[Pairs]]()
    for language in languages:
        splits = _load(language, root)
        found[language.tag] = Splits(*(part.reversed() for part in splits.parts.values())) if language.reverse else splits
    return found


def _load(data: PairData | Language, root: Path) -> Splits[Pairs]:
    if data.generate is not None:
        return build(data.generate)
    return read_splits(data, lambda files: load_pairs(files, root), split_validation)
