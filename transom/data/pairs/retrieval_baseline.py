"""A retrieval baseline: the translation of the most similar training sentence."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from transom.data.pairs.pairs import Pairs

_WORD = re.compile(r"\w+|[^\w\s]")


def _occurrences(sentence: str) -> Iterator[tuple[str, int]]:
    """Yield each word with the number of its earlier occurrences, so that a repeated word matches as often as it occurs."""
    said: Counter[str] = Counter()
    for word in _WORD.findall(sentence.lower()):
        yield word, said[word]
        said[word] += 1


def retrieval_baseline(train: Pairs, sources: list[str]) -> list[str]:
    """Return, for each sentence, the translation of the most similar training sentence.

    Similarity is Dice's coefficient of the two multisets of words, 2 |A and B| / (|A| + |B|); ties go to the first training sentence.
    Punctuation marks are words, case is ignored, and so is word order.

    Args:
        train: training pairs.
        sources: sentences to translate.

    Returns:
        A target sentence of ``train`` for each source.
    """
    index: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    lengths = np.zeros(len(train.source))
    for sample, sentence in enumerate(train.source):
        words = list(_occurrences(sentence))
        lengths[sample] = len(words)
        for word in words:
            index[word].append(sample)
    postings = {word: np.array(samples) for word, samples in index.items()}
    translations = []
    for sentence in sources:
        words = list(_occurrences(sentence))
        found = [postings[word] for word in words if word in postings]
        shared = np.bincount(np.concatenate(found), minlength=len(lengths)) if found else np.zeros(len(lengths))
        similarity = 2 * shared / np.maximum(lengths + len(words), 1)
        translations.append(train.target[int(similarity.argmax())])
    return translations
