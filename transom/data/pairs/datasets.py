"""Loading of a recipe's sentence pairs, which are read from files or generated, for one or several target languages."""

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
    """Read or generate the sentence pairs of a recipe with one target language.

    Args:
        data: the recipe's data section.
        base: the recipe's folder, to which ``data.root`` is relative.

    Returns:
        Training and validation pairs, and test pairs if the recipe has any. If ``data.valid`` is missing, about 1% of the training pairs
        are selected by hash and become the validation pairs. The name of the validation pairs then says so.

    Raises:
        TransomError: a file cannot be read, or the source and target files differ in their number of lines.
    """
    return _load(data, base / expand_path(data.root))


def load_multilingual_data(data: PairDataConfig, base: Path, languages: Sequence[LanguageConfig] = ()) -> dict[str | None, Splits[Pairs]]:
    """Read or generate the sentence pairs of a recipe with one or several target languages.

    Args:
        data: the recipe's data section.
        base: the recipe's folder, to which ``data.root`` is relative.
        languages: data of each target language. Empty for a recipe with one target language.

    Returns:
        The splits of each target language by the language's tag, or by None for a recipe with one target language.
    """
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
    least = getattr(data, "min_valid", 0)
    return read_splits(data, lambda files: load_pairs(files, root), lambda pairs: split_validation(pairs, least=least))
