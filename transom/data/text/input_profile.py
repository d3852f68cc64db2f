"""Profile of a run's training texts, by which a model warns about inputs that differ from its training texts."""

import base64
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transom.files.message import phrase

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Characters of scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Japanese and Chinese.

Each of these characters counts as a word.
"""

_WORD = re.compile(rf"[{_UNSPACED}]|[^\W\d_{_UNSPACED}]+")
_MAX_CHARACTERS = 2**26
"""Maximum number of characters of the training texts that are read.

If the training texts are longer, not all of their words are known, so no word of an input is reported as unseen.
"""

_MAX_TRIGRAMS = 5000
_BITS_PER_WORD, _N_HASHES = 10, 7
"""Parameters of the Bloom filter, with which about 1% of unseen words are mistaken for seen words."""

_MIN_TRIGRAMS, _MIN_WORDS = 15, 4
"""Minimum numbers of trigrams and of words in a text for a comparison of the whole text with the training texts."""

_CHUNK_CHARACTERS = 60
"""Minimum number of characters in each chunk of the validation texts on which the thresholds are calibrated."""

_FAR_LONGER = 2.0
"""Ratio of an input's length to the length of the longest training text above which a warning is given."""

_EXAMPLES = 3


@dataclass(frozen=True)
class InputProfile:
    """Words, letter trigrams and maximum length of training texts.

    A text is reported as unlike the training texts if two conditions hold. First, the mean log-probability of its trigrams is more than
    three standard deviations below the mean of the validation texts. Second, its fraction of unseen words exceeds 0.35 and is more than two
    standard deviations above the mean of the validation texts.

    Attributes:
        bits: Bloom filter (Bloom 1970) of the words in lower case, with one bit per entry. Empty if not all training texts were read.
        trigrams: natural logarithm of the relative frequency of each of the most frequent letter trigrams.
        min_log_p: threshold of the mean log-probability of a text's trigrams, below which the text is unusual.
        max_unseen: threshold of the fraction of unseen words, above which a text is unusual.
        max_characters: number of characters of the longest training text. None if no length is unusual.
        single_turn: whether the texts are prompts none of which contains previous turns of a conversation.
    """

    bits: NDArray[np.bool_]
    trigrams: Mapping[str, float]
    min_log_p: float
    max_unseen: float
    max_characters: int | None
    single_turn: bool = False

    @classmethod
    def from_texts(cls, train: Sequence[str], valid: Sequence[str], any_length: bool = False) -> Self:
        """Compute the profile of training texts.

        Args:
            train: training texts.
            valid: validation texts, on which the thresholds are calibrated.
            any_length: True if texts of any length are read in windows, so that no length is unusual.
        """
        words, n_characters = Counter[str](), 0
        for text in train:
            n_characters += len(text)
            if n_characters > _MAX_CHARACTERS:
                break
            words.update(split_words(text))
        counts = Counter[str]()
        for word, n in words.items():
            for trigram in _trigrams(word):
                counts[trigram] += n
        trigrams = {trigram: round(math.log(n / counts.total()), 2) for trigram, n in counts.most_common(_MAX_TRIGRAMS)}
        longest = None if any_length else max(map(len, train), default=0)
        found = cls(_bloom_filter(words if n_characters <= _MAX_CHARACTERS else ()), trigrams, -math.inf, 1.0, longest)
        chunks = list(_chunks(valid))
        scores = [score for score in map(found._mean_log_p, chunks) if score is not None]
        shares = [len(unseen) / n_words for unseen, n_words in map(found.unseen_words, chunks) if n_words >= _MIN_WORDS]
        if not (scores and shares):
            return found
        min_log_p = float(np.mean(scores) - 3 * np.std(scores))
        return replace(found, min_log_p=min_log_p, max_unseen=max(0.35, float(np.mean(shares) + 2 * np.std(shares))))

    def unseen_words(self, text: str) -> tuple[list[str], int]:
        """Return the words of a text that are absent from the training texts, and the number of all words of the text."""
        words = split_words(text)
        if not len(self.bits):
            return [], len(words)
        return [word for word in words if not all(self.bits[place] for place in _places(word, len(self.bits)))], len(words)

    def is_unlike(self, text: str) -> bool:
        """Return whether the words and letters of a text are unlike those of the training texts, as those of another language are."""
        unseen, n_words = self.unseen_words(text)
        score = self._mean_log_p(text)
        return score is not None and score < self.min_log_p and n_words >= _MIN_WORDS and len(unseen) / n_words > self.max_unseen

    def warnings(self, text: str) -> list[str]:
        """Return one warning for each respect in which an input differs from the training texts."""
        found = []
        unseen, n_words = self.unseen_words(text)
        if unseen:
            examples = ", ".join(list(dict.fromkeys(unseen))[:_EXAMPLES]) + (", ..." if len(set(unseen)) > _EXAMPLES else "")
            template = "{seen} of {n} words never seen in training: {examples}"
            found.append(phrase("unlike.unseen", template, seen=len(unseen), n=n_words, examples=examples))
        if self.is_unlike(text):
            found.append(phrase("unlike.language", "unlike the training texts in words and letters: perhaps another language"))
        if self.max_characters is not None and len(text) > _FAR_LONGER * self.max_characters:
            template = "{found} characters long, but the longest training text has {longest}"
            found.append(phrase("unlike.longer", template, found=len(text), longest=self.max_characters))
        return found

    def _mean_log_p(self, text: str) -> float | None:
        """Return the mean log-probability of a text's letter trigrams, or None if the text is too short.

        An unknown trigram gets the log-probability of the rarest known trigram.
        """
        found = list(_trigrams(text[:10_000]))
        rarest = min(self.trigrams.values(), default=0.0)
        return sum(self.trigrams.get(trigram, rarest) for trigram in found) / len(found) if len(found) >= _MIN_TRIGRAMS else None

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON values, with the Bloom filter encoded in base64."""
        return {
            "n_bits": len(self.bits),
            "words": base64.b64encode(np.packbits(self.bits).tobytes()).decode(),
            "trigrams": dict(self.trigrams),
            "min_log_p": self.min_log_p if math.isfinite(self.min_log_p) else None,
            "max_unseen": self.max_unseen,
            "max_characters": self.max_characters,
            **({"single_turn": True} if self.single_turn else {}),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild a profile from the result of ``to_json``.

        Raises:
            ValueError: a field is missing, has the wrong type or is damaged.
        """
        try:
            packed = np.frombuffer(base64.b64decode(value["words"], validate=True), np.uint8)
            bits = np.unpackbits(packed, count=int(value["n_bits"])).astype(bool)
            trigrams = {str(trigram): float(log_p) for trigram, log_p in value["trigrams"].items()}
            lowest, longest = value["min_log_p"], value["max_characters"]
            min_log_p, single_turn = -math.inf if lowest is None else float(lowest), bool(value.get("single_turn", False))
            return cls(bits, trigrams, min_log_p, float(value["max_unseen"]), longest and int(longest), single_turn)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a field is missing or of another type: {error}") from error


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case. Digits and punctuation separate words, and combining marks are removed.

    >>> split_words("Don't panic: 42 cafés!")
    ['don', 't', 'panic', 'cafés']
    """
    if not text.isascii():
        text = "".join(letter for letter in unicodedata.normalize("NFKC", text) if not unicodedata.category(letter).startswith("M"))
    return _WORD.findall(text.lower())


def _trigrams(text: str) -> Iterator[str]:
    """Yield the letter trigrams of each word of a text, after adding a space before and after the word."""
    for word in split_words(text):
        padded = f" {word} "
        yield from (padded[i : i + 3] for i in range(len(padded) - 2))


def _chunks(texts: Sequence[str]) -> Iterator[str]:
    """Yield chunks of texts with at least 60 and usually fewer than 300 characters, in which short texts are joined."""
    pieces = [
        text[start : start + 4 * _CHUNK_CHARACTERS]
        for text in texts[:2000]
        for start in range(0, min(len(text), 200_000), 4 * _CHUNK_CHARACTERS)
    ]
    chunk = ""
    for piece in pieces[:: -(-len(pieces) // 2000) or 1]:
        chunk = f"{chunk} {piece}"
        if len(chunk) >= _CHUNK_CHARACTERS:
            yield chunk
            chunk = ""


def _bloom_filter(words: Iterable[str]) -> NDArray[np.bool_]:
    distinct = set(words)
    bits = np.zeros(max(_BITS_PER_WORD * len(distinct), 64) if distinct else 0, bool)
    for word in distinct:
        bits[_places(word, len(bits))] = True
    return bits


def _places(word: str, n_bits: int) -> list[int]:
    """Return the indices of a word's bits in the Bloom filter, computed by double hashing (Kirsch & Mitzenmacher 2006)."""
    digest = blake2b(word.encode(), digest_size=16).digest()
    first, second = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1
    return [(first + i * second) % n_bits for i in range(_N_HASHES)]
