"""Retrieval baseline, which translates a sentence by the translation of the most similar training sentence."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from transom.data.pairs.pairs import Pairs

_WORD = re.compile(r"\w+|[^\w\s]")


def _occurrences(sentence: str) -> Iterator[tuple[str, int]]:
    """Yield each word of a sentence with the number of its earlier occurrences in the sentence.

    The number makes repeated words distinct, so that the results of two sentences can be compared as sets.
    """
    said: Counter[str] = Counter()
    for word in _WORD.findall(sentence.lower()):
        yield word, said[word]
        said[word] += 1


def retrieval_baseline(train: Pairs, sources: list[str]) -> list[str]:
    """Return the translation of the most similar training sentence for each source sentence.

    The similarity of two sentences is Dice's coefficient of their multisets of words, 2 |A and B| / (|A| + |B|). Each punctuation mark is
    a word. Case and word order are ignored. Of equally similar training sentences, the first is chosen.

    Args:
        train: training pairs.
        sources: sentences to translate.

    Returns:
        One target sentence of ``train`` for each sentence in ``sources``.
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
