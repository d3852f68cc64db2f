"""Convert the character rules of SentencePiece to normalizers of the ``tokenizers`` library with the same result."""

import base64
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

from tokenizers import normalizers

from transom.data.tokenizer.charsmap import Charsmap
from transom.exchange.tokenizer.library_json import Json, regex_replace, string_replace

_MAX_REPLACEMENTS = 64
_MAX_LEFT_OUT = 0.01
"""Maximum fraction of rules that are left out."""

_UNIT, _PART = "\ufdd0", "\ufdd1"
"""Noncharacters that separate the units of a text, and the characters in a unit, while it is normalized."""


def charsmap_normalizers(charsmap: Charsmap) -> list[Json]:
    """Return normalizers of the ``tokenizers`` library that apply character rules.

    The library's own normalizer ``Precompiled`` applies rules to single characters rightly, but to a character and its combining marks
    it may apply the rule of the first character alone, and of six bytes or more it composes none. Therefore each string of several
    characters with a rule is separated from its surroundings, each of its characters is replaced alone, and NFC composes the results.
    A rule with another result has a replacement of its own.

    If such rules are few among many, as in NFKC the compositions that are newer than the library's version of Unicode, they are left out.

    Raises:
        ValueError: too many rules have another result. The message is a noun phrase.
    """
    singles = {key: value for key, value in charsmap.rules.items() if len(key) == 1}
    several = [key for key in charsmap.rules if len(key) > 1]
    precompiled: Json = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap.content).decode()}
    later = character_class({character for key in several for character in key[1:]})
    plain = character_class(_plain_characters() - {character for key in several for character in key[1:]})
    unit = f"(?=[\\s\\S]{later})(?>{any_of_pattern(several)})|" if several else ""
    boundary = f"(?:{unit}(?!{plain})[\\s\\S]|{plain}(?!{plain}))\\K"
    separate, join = [regex_replace(boundary, _UNIT)], [string_replace(_UNIT, "")]
    if not several:
        return [*separate, precompiled, *join]
    own = _own_replacements(charsmap.rules, singles)
    parts = regex_replace(f"(?<=[^{_UNIT}])(?={later})", _PART)
    return [*separate, *own, parts, precompiled, string_replace(_PART, ""), {"type": "NFC"}, *join]


def _own_replacements(rules: dict[str, str], singles: dict[str, str]) -> list[Json]:
    """Return one replacement per result of the rules that do not compose the results of their characters."""
    nfc = normalizers.NFC()
    replaced = _UNIT.join("".join(singles.get(character, character) for character in key) for key in rules)
    composed = nfc.normalize_str(replaced).split(_UNIT)
    others: dict[str, set[str]] = defaultdict(set)
    for (key, value), result in zip(rules.items(), composed, strict=True):
        if result != value:
            others[value].add(key)
    if sum(map(len, others.values())) <= len(rules) * _MAX_LEFT_OUT:
        return []
    if len(others) > _MAX_REPLACEMENTS or any(
        len(key) == 1 or nfc.normalize_str(value) != value or any(singles.get(character, character) != character for character in value)
        for value, keys in others.items()
        for key in keys
    ):
        raise ValueError("character rules that neither replace single characters nor compose them")
    return [regex_replace(f"(?<![^{_UNIT}])(?>{any_of_pattern(keys)})(?![^{_UNIT}])", value) for value, keys in sorted(others.items())]


def _plain_characters() -> set[str]:
    """Return the characters of common scripts that neither combine with a neighbor nor form one grapheme with it.

    Between two of them no separator is needed, which keeps the work small for most texts.
    """
    starts_and_ends = ((0x20, 0x300), (0x370, 0x483), (0x48A, 0x530), (0x2010, 0x2028), (0x3001, 0x3003))
    ideographs = ((0x3041, 0x3097), (0x30A1, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A4))
    kept = ("L", "N", "P", "Z", "Sm", "Sc", "Sk")
    return {
        chr(code)
        for start, end in (*starts_and_ends, *ideographs)
        for code in range(start, end)
        if unicodedata.category(chr(code)).startswith(kept)
    }


def any_of_pattern(texts: Iterable[str]) -> str:
    """Return a regular expression that matches the longest of some texts, tried character by character."""
    return _pattern(_trie(texts))


_Trie = dict[str, "_Trie"]
_END = ""


def _trie(keys: Iterable[str]) -> _Trie:
    root: _Trie = {}
    for key in keys:
        node = root
        for character in key:
            node = node.setdefault(character, {})
        node[_END] = {}
    return root


def _pattern(trie: _Trie) -> str:
    """Return a pattern that matches the longest string of a trie. Characters with the same continuations share a class."""
    groups: dict[str, set[str]] = defaultdict(set)
    for character, below in trie.items():
        if character != _END:
            groups[_pattern(below)].add(character)
    branches = [character_class(characters) + below for below, characters in sorted(groups.items())]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)}){'?' if _END in trie else ''}"


def character_class(characters: Iterable[str]) -> str:
    """Return a class of a regular expression with these characters, as ranges of hexadecimal numbers."""
    codes = sorted(map(ord, characters))
    starts = [code for at, code in enumerate(codes) if at == 0 or codes[at - 1] != code - 1]
    ends = [code for at, code in enumerate(codes) if at == len(codes) - 1 or codes[at + 1] != code + 1]
    ranges = (f"\\x{{{start:x}}}" + (f"-\\x{{{end:x}}}" if end > start else "") for start, end in zip(starts, ends, strict=True))
    return f"[{''.join(ranges)}]"
