"""Random Unicode texts for tests of tokenizers."""

import random
import unicodedata
from collections.abc import Sequence

ANY = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
ASSIGNED = [character for character in ANY if unicodedata.category(character) not in ("Cn", "Co")]
MARKS = [character for character in ASSIGNED if unicodedata.category(character).startswith("M")]
CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x200D, 0x2028, 0x3000, 0xFEFF, 0xFFFD)]
NAMES = ["[PAD]", "[SOS]", "[EOS]", "[UNK]", "[CLS]", "[SEP]", "<2de>", "<s>", "</s>", "<mask>", "<|endoftext|>"]
NAMES += ["<0x41>", "<0xC3>", "▁", "Ġ"]
LETTERS = list("abcABC ÀßéÉΣσΑ.\n1234'_ ")


def random_texts(seed: int, n: int, words: Sequence[str], characters: Sequence[str] = ANY) -> list[str]:
    """Return random texts.

    Args:
        seed: seed of the draw.
        n: number of texts.
        words: words or sentences that the tokenizer has seen.
        characters: further characters.
    """
    draw = random.Random(seed)
    pools = [[characters], [words, [" "]], [words, characters], [LETTERS], [LETTERS, MARKS], [NAMES, words, CONTROLS], [CONTROLS, LETTERS]]
    texts = []
    for _ in range(n):
        pool = draw.choice(pools)
        texts.append("".join(draw.choice(draw.choice(pool)) for _ in range(draw.randint(0, 12))))
    return texts
