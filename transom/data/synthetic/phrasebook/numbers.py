"""Conversion of numbers to words, for 0 to 99 and for the multiples of 100 below 1,000."""

from functools import cache

from transom.data.synthetic.phrasebook.tables import read_table


@cache
def _words(language: str, group: str) -> list[str]:
    return list(map(str, read_table("numbers.toml")[language][group].split()))


@cache
def _ordinals() -> dict[str, str]:
    return dict(read_table("numbers.toml")["english"]["ordinals"])


def english(n: int) -> str:
    """Write a number in English words.

    >>> english(7), english(42), english(300)
    ('seven', 'forty-two', 'three hundred')
    """
    units = _words("english", "units")
    if n < 20:
        return units[n]
    if n >= 100:
        return f"{units[n // 100]} hundred"
    tens = _words("english", "tens")[n // 10 - 2]
    return f"{tens}-{units[n % 10]}" if n % 10 else tens


def english_ordinal(n: int) -> str:
    """Write the ordinal of a number from 1 to 99 in English words.

    >>> english_ordinal(3), english_ordinal(20), english_ordinal(31)
    ('third', 'twentieth', 'thirty-first')
    """
    *before, last = english(n).split("-")
    regular = (last[:-1] + "ie" if last.endswith("y") else last) + "th"
    return "-".join([*before, _ordinals().get(last, regular)])


def spanish(n: int, feminine: bool | None = None) -> str:
    """Write a number in Spanish words.

    Args:
        n: the number.
        feminine: gender of the noun that follows the number. None if no noun follows.

    >>> spanish(31), spanish(31, feminine=False), spanish(21, feminine=True), spanish(21, feminine=False), spanish(200, feminine=True)
    ('treinta y uno', 'treinta y un', 'veintiuna', 'veintiún', 'doscientas')
    """
    if n >= 100:
        word = _words("spanish", "hundreds")[n // 100 - 1]
        return word[:-2] + "as" if feminine and n >= 200 else word
    units = _words("spanish", "units")
    word = units[n] if n < 30 else _words("spanish", "tens")[n // 10 - 3] + (f" y {units[n % 10]}" if n % 10 else "")
    if feminine is None or n % 10 != 1 or n == 11:
        return word
    if feminine:
        return word[:-1] + "a"
    return "veintiún" if n == 21 else word[:-1]
