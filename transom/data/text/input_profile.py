"""Profile of the training texts of a run, by which inputs that differ from them are recognized."""

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

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Scripts without spaces between words (Thai, Lao, Burmese, Khmer, Japanese, Chinese); each letter counts as a word."""

_WORD = re.compile(rf"[{_UNSPACED}]|[^\W\d_{_UNSPACED}]+")
_MAX_CHARACTERS = 2**26
"""Maximum number of characters that are read; of longer training texts, not all words are known, and none is called unseen."""

_MAX_TRIGRAMS = 5000
_BITS_PER_WORD, _N_HASHES = 10, 7
"""Parameters of the Bloom filter: 1% of unseen words pass as seen."""

_MIN_TRIGRAMS, _MIN_WORDS = 15, 4
"""Minimum length of a text that is compared with the training texts as a whole."""

_CHUNK_CHARACTERS = 60
"""Minimum number of characters of the validation texts' parts that calibrate the thresholds."""

_FAR_LONGER = 2.0
"""Inputs of more than this multiple of the longest training text's characters are reported."""

_EXAMPLES = 3


@dataclass(frozen=True)
class InputProfile:
    """Words, letter trigrams and lengths of training texts.

    A text is unlike the training texts if both hold: the mean log-probability of its trigrams is more than three standard deviations below
    that of validation texts, and its fraction of unseen words is more than two above theirs, and at least 0.35.

    Attributes:
        bits: Bloom filter of the lower-case words (Bloom 1970), one bit per entry; empty if not all words were read.
        trigrams: natural logarithm of the frequency of the most frequent letter trigrams.
        min_log_p: lowest usual mean of these logarithms over a text.
        max_unseen: highest usual fraction of unseen words.
        max_characters: length of the longest training text in characters; None if texts are read in windows.
    """

    bits: NDArray[np.bool_]
    trigrams: Mapping[str, float]
    min_log_p: float
    max_unseen: float
    max_characters: int | None

    @classmethod
    def from_texts(cls, train: Sequence[str], valid: Sequence[str], any_length: bool = False) -> Self:
        """Collect the profile of training texts; validation texts calibrate the thresholds.

        Args:
            train: training texts.
            valid: validation texts.
            any_length: whether texts are read in windows, so that no length is unusual.
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
        """Return the words of a text that do not occur in the training texts, and the number of all its words."""
        words = split_words(text)
        if not len(self.bits):
            return [], len(words)
        return [word for word in words if not all(self.bits[place] for place in _places(word, len(self.bits)))], len(words)

    def warnings(self, text: str) -> list[str]:
        """Describe how an input differs from the training texts, one sentence each."""
        found = []
        unseen, n_words = self.unseen_words(text)
        if unseen:
            examples = ", ".join(list(dict.fromkeys(unseen))[:_EXAMPLES]) + (", ..." if len(set(unseen)) > _EXAMPLES else "")
            found.append(f"{len(unseen):,} of {n_words:,} words never seen in training: {examples}")
        score = self._mean_log_p(text)
        if score is not None and score < self.min_log_p and n_words >= _MIN_WORDS and len(unseen) / n_words > self.max_unseen:
            found.append("unlike the training texts in words and letters: perhaps another language")
        if self.max_characters is not None and len(text) > _FAR_LONGER * self.max_characters:
            found.append(f"{len(text):,} characters long, but the longest training text has {self.max_characters:,}")
        return found

    def _mean_log_p(self, text: str) -> float | None:
        """Return the mean log-probability of a text's trigrams; None for a short text. A rare trigram counts as the rarest known one."""
        found = list(_trigrams(text[:10_000]))
        rarest = min(self.trigrams.values(), default=0.0)
        return sum(self.trigrams.get(trigram, rarest) for trigram in found) / len(found) if len(found) >= _MIN_TRIGRAMS else None

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON-serializable data, the Bloom filter in base64."""
        return {
            "n_bits": len(self.bits),
            "words": base64.b64encode(np.packbits(self.bits).tobytes()).decode(),
            "trigrams": dict(self.trigrams),
            "min_log_p": self.min_log_p if math.isfinite(self.min_log_p) else None,
            "max_unseen": self.max_unseen,
            "max_characters": self.max_characters,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Restore a profile.

        Raises:
            ValueError: the value is damaged.
        """
        try:
            packed = np.frombuffer(base64.b64decode(value["words"], validate=True), np.uint8)
            bits = np.unpackbits(packed, count=int(value["n_bits"])).astype(bool)
            trigrams = {str(trigram): float(log_p) for trigram, log_p in value["trigrams"].items()}
            lowest, longest = value["min_log_p"], value["max_characters"]
            return cls(bits, trigrams, -math.inf if lowest is None else float(lowest), float(value["max_unseen"]), longest and int(longest))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a field is missing or of another type: {error}") from error


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without digits, punctuation and combining marks.

    >>> split_words("Don't panic: 42 cafés!")
    ['don', 't', 'panic', 'cafés']
    """
    if not text.isascii():
        text = "".join(letter for letter in unicodedata.normalize("NFKC", text) if not unicodedata.category(letter).startswith("M"))
    return _WORD.findall(text.lower())


def _trigrams(text: str) -> Iterator[str]:
    """Yield the letter trigrams of each word with a space on either side."""
    for word in split_words(text):
        padded = f" {word} "
        yield from (padded[i : i + 3] for i in range(len(padded) - 2))


def _chunks(texts: Sequence[str]) -> Iterator[str]:
    """Yield parts of texts, of at least 60 and usually less than 300 characters; short texts are joined."""
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
    """Return the bits of a word by double hashing (Kirsch & Mitzenmacher 2006)."""
    digest = blake2b(word.encode(), digest_size=16).digest()
    first, second = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1
    return [(first + i * second) % n_bits for i in range(_N_HASHES)]
