"""Generated instructions with answers, which ask to translate sentences and to copy, reverse or sort letters."""

from itertools import chain, zip_longest
from typing import get_args

from transom.config.data import ExercisesConfig, PhrasebookConfig, SequenceTaskConfig, SequenceTaskKind
from transom.data.pairs.pairs import Pairs
from transom.data.split import Splits
from transom.data.synthetic.phrasebook.generate import generate_phrasebook
from transom.data.synthetic.sequences import generate_sequences

RULES: tuple[SequenceTaskKind, ...] = get_args(SequenceTaskKind)


def generate_exercises(config: ExercisesConfig) -> Splits[Pairs]:
    """Generate instructions with answers, half of which are translations and half of which are operations on letters.

    Each sentence in the validation and test splits contains a word combination that never occurs in training. No sequence of letters occurs
    in two splits.

    Args:
        config: sizes and seed, which fully determine the result.

    Returns:
        The splits, as pairs of instruction and answer.
    """
    sizes = config.n_train, config.n_valid, config.n_test
    halves = tuple(-(-n // 2) for n in sizes)
    sentences = generate_phrasebook(PhrasebookConfig(n_train=halves[0], n_valid=halves[1], n_test=halves[2], seed=config.seed))
    n_train, n_valid, n_test = (-(-n // len(RULES)) for n in halves)
    letters = {
        rule: generate_sequences(
            SequenceTaskConfig(kind=rule, n_train=n_train, n_valid=n_valid, n_test=n_test, max_length=8, seed=config.seed)
        )
        for rule in RULES
    }
    parts = []
    for part, n in zip(sentences.parts, sizes, strict=True):
        translated = _alternate_directions(sentences.parts[part])
        ordered = chain.from_iterable(zip(*(_prefixed(rule, of_rule.parts[part]) for rule, of_rule in letters.items()), strict=True))
        both = [each for two in zip_longest(translated, ordered) for each in two if each is not None][:n]
        parts.append(Pairs([prompt for prompt, _ in both], [answer for _, answer in both], f"exercises, {part}"))
    return Splits(*parts)


def _alternate_directions(pairs: Pairs) -> list[tuple[str, str]]:
    """Convert English-Spanish sentence pairs to translation instructions that alternate between both directions."""
    return [
        (f"Translate into {'English' if i % 2 else 'Spanish'}: {two[i % 2]}", two[1 - i % 2])
        for i, two in enumerate(zip(pairs.source, pairs.target, strict=True))
    ]


def _prefixed(rule: str, pairs: Pairs) -> list[tuple[str, str]]:
    return [(f"{rule.capitalize()}: {source}", target) for source, target in zip(pairs.source, pairs.target, strict=True)]
