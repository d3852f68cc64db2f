"""The sentence pairs of a recipe, from files or generated, for one or several target languages."""

from collections.abc import Sequence
from pathlib import Path

from transom.config.component_registry import build
from transom.config.data import LanguageConfig, PairDataConfig
from transom.data.pairs.pairs import Pairs, load_pairs, split_validation
from transom.data.split import Splits, read_splits
from transom.data.synthetic import sequences  # noqa: F401  # registers its builder
from transom.data.synthetic.phrasebook import generate  # noqa: F401  # registers its builder
from transom.data.text.text_io import expand_path


def load_translation_data(data: PairDataConfig, base: Path) -> Splits[Pairs]:
    """Read or generate the pairs of a recipe with one target language.

    Args:
        data: the recipe's data section.
        base: the recipe's folder, to which ``data.root`` is relative.

    Returns:
        Training and validation pairs, and test pairs if the recipe has them. Without ``data.valid``, 1% of the training pairs is split
        off by hash and the validation pairs are named accordingly.

    Raises:
        TransomError: a file cannot be read, or the files do not match.
    """
    return _load(data, base / expand_path(data.root))


def load_multilingual_data(data: PairDataConfig, base: Path, languages: Sequence[LanguageConfig] = ()) -> dict[str | None, Splits[Pairs]]:
    """Return the splits of each target language by its tag, as ``load_translation_data`` does; the tag is None for a single language."""
    if not languages:
        return {None: load_translation_data(data, base)}
    root, found = base / expand_path(data.root), dict[str | None, Splits[Pairs]]()
    for language in languages:
        splits = _load(language, root)
        found[language.tag] = Splits(*(part.swapped() for part in splits.parts.values())) if language.reverse else splits
    return found


def _load(data: PairDataConfig | LanguageConfig, root: Path) -> Splits[Pairs]:
    if data.generate is not None:
        return build(data.generate)
    return read_splits(data, lambda files: load_pairs(files, root), split_validation)
