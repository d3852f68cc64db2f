"""Lower case by normalizers of the ``tokenizers`` library, as ``str.lower`` has it.

The library lower-cases each character alone. Python does so too except for the Greek capital sigma, whose form depends on its neighbors
(Unicode Standard, section 3.13, condition Final_Sigma).
"""

from functools import cache
from itertools import chain

from transom.exchange.tokenizer.charsmap_convert import character_class
from transom.exchange.tokenizer.library_json import Json, regex_replace

_BLOCKS = (range(0x3400), range(0xA000, 0xAC00), range(0xD7FC, 0xD800), range(0xE000, 0x20000), range(0xE0000, 0xE1000))
"""All characters except ideographs, Hangul syllables and unused planes, which are neither letters with case nor between such."""

_SIGMA, _FINAL_SIGMA = "Σ", "ς"


def lowercase_normalizers() -> list[Json]:
    """Return normalizers that lower-case a text.

    Letters that are newer than Python's version of Unicode are lower-cased by the library only.
    """
    cased, ignorable = _sigma_neighbors()
    pattern = f"{cased}{ignorable}*+\\K{_SIGMA}(?!{ignorable}*{cased})"
    return [regex_replace(pattern, _FINAL_SIGMA), {"type": "Lowercase"}]


@cache
def _sigma_neighbors() -> tuple[str, str]:
    """Return a class of the letters that decide the form of a sigma, and one of the characters between that do not.

    Python has no function for the two properties of a character, so both are observed.
    """
    cased, ignorable = set(), set()
    for character in map(chr, chain(*_BLOCKS)):
        if (character + _SIGMA).lower().endswith(_FINAL_SIGMA):
            cased.add(character)
        elif ("A" + character + _SIGMA).lower().endswith(_FINAL_SIGMA):
            ignorable.add(character)
    return character_class(cased), character_class(ignorable)
