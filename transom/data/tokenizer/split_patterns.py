"""Check of the regular expressions in a tokenizer of the ``tokenizers`` library, which come from a file.

The library's engine backtracks, so that a malicious expression such as ``(a+)+b`` takes exponential time on a short text. The check accepts
the expressions of published tokenizers, and those into which rules of SentencePiece are converted, and refuses all that could take more
than quadratic time.
"""

import re
from typing import NamedTuple

MAX_PATTERN_CHARACTERS = 2**15
"""Maximum length of an expression. Published ones have at most 500 characters, those of SentencePiece's rules 20,108."""

MAX_UNBOUNDED = 2
"""Maximum number of unbounded quantifiers per alternative."""

MAX_WORK = 2**16
"""Maximum number of characters and classes that are compared at one position of a text, unbounded quantifiers aside."""

_MAX_NESTED = 32

_MAX_REPEAT = 256
"""Maximum upper bound of a quantifier such as ``{1,3}``."""

_ATOM = re.compile(
    r"\\[pP]\{\^?\w{1,40}\}|\\x[0-9a-fA-F]{1,2}|\\x\{[0-9a-fA-F]{1,6}\}|\\u[0-9a-fA-F]{4}"
    r"|\\[dDsSwWhHrntfvaebBAzZK]|\\[^A-Za-z0-9]|[^\\\[\](){}*+?|]|[\]}]",
    re.DOTALL,
)
_CLASS_PART = re.compile(_ATOM.pattern + r"|[(){*+?|-]|\[:\^?[a-z]{1,10}:\]", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?:[imx]{0,3}:|[=!>]|<[=!]))?")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d{0,4})(,?)(\d{0,4})\})([?+]?)")

_WITHOUT_WIDTH = ("^", "$", *(f"\\{letter}" for letter in "bBAzZK"))
"""Atoms that match a position."""


def check_pattern(pattern: str) -> int:
    r"""Return the least number of characters that a regular expression matches, unless it may take more than quadratic time.

    Refused are quantifiers on groups (except ``?``), quantifiers of quantifiers, backreferences, named groups, and alternatives with more
    than two unbounded quantifiers, with anything mandatory after the second one, or with much work at one position, such as many ``a?``.
    Outside groups, possessive quantifiers such as ``a*+`` do not count before the first other one. Each alternative then takes at most
    linear time at each position of the text. An expression with ``\K`` may match no character.

    Raises:
        ValueError: the expression is refused or not understood. The message is a noun phrase.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise ValueError(f"a regular expression of {len(pattern):,} characters")
    try:
        found = _Reader(pattern).alternatives(0, 0, 0)
    except ValueError as error:
        raise ValueError(f"the regular expression {pattern!r:.80} ({error})") from error
    if found.end < len(pattern):
        raise ValueError(f"the regular expression {pattern!r:.80} (unbalanced brackets)")
    return 0 if "\\K" in pattern else found.width


class _Part(NamedTuple):
    """A part of an expression that was read.

    Attributes:
        end: index after the part.
        choices: number of ways in which the part can match, unbounded quantifiers aside: ``a?a?`` has four, ``(a|b|c)`` three. 1 of
            an atomic group and one that looks around, to which the engine does not return.
        n_unbounded: unbounded quantifiers on the way to its end, including those before it.
        work: number of characters and classes that all these ways compare.
        width: least number of characters that it matches.
    """

    end: int
    choices: int
    n_unbounded: int
    work: int
    width: int


class _Reader:
    """Recursive reader of an expression."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def alternatives(self, at: int, depth: int, n_unbounded: int) -> _Part:
        """Check alternatives up to a closing bracket or the end.

        Args:
            at: index of the first one.
            depth: number of groups around them.
            n_unbounded: unbounded quantifiers before them.
        """
        if depth > _MAX_NESTED:
            raise ValueError(f"more than {_MAX_NESTED} nested groups")
        found = [self._alternative(at, depth, n_unbounded)]
        while self._pattern.startswith("|", found[-1].end):
            found.append(self._alternative(found[-1].end + 1, depth, n_unbounded))
        choices, work = sum(each.choices for each in found), sum(each.work for each in found)
        return _Part(found[-1].end, choices, max(each.n_unbounded for each in found), work, min(each.width for each in found))

    def _alternative(self, at: int, depth: int, n_unbounded: int) -> _Part:
        """Check a sequence of quantified atoms."""
        choices, work, width = 1, 0, 0
        while at < len(self._pattern) and self._pattern[at] not in "|)":
            is_group, looks = self._pattern[at] == "(", self._pattern.startswith(("(?=", "(?!", "(?<"), at)
            n_before = n_unbounded
            part = self._group(at, depth, n_unbounded) if is_group else self._atom(at, n_unbounded)
            least, most, is_possessive, at = self._quantifier(part.end)
            if is_group and (most is None or most > 1):
                raise ValueError("a repeated group")
            if n_before >= MAX_UNBOUNDED and (most is None or looks or (least and not is_group)):
                raise ValueError(f"an alternative that continues after {MAX_UNBOUNDED} unbounded quantifiers")
            is_linear = is_possessive and depth == 0 and n_before == 0  # the engine comes here once and does not return
            n_unbounded = part.n_unbounded + (most is None and not is_linear)
            work += choices * part.work * (most or 1)
            width += least * part.width
            choices *= part.choices if most is None else part.choices * (most - least + 1)
            if max(work, choices) > MAX_WORK:
                raise ValueError(f"more than {MAX_WORK:,} comparisons at one position")
        return _Part(at, choices, n_unbounded, work, width)

    def _group(self, at: int, depth: int, n_unbounded: int) -> _Part:
        start = _GROUP.match(self._pattern, at)
        assert start is not None
        if self._pattern[start.end() : start.end() + 1] in ("?", "*"):
            raise ValueError("a special group")
        inside = self.alternatives(start.end(), depth + 1, 0)
        if not self._pattern.startswith("?", inside.end + 1):  # an optional group that fails is skipped
            inside = self.alternatives(start.end(), depth + 1, n_unbounded)
        elif n_unbounded:
            inside = inside._replace(n_unbounded=inside.n_unbounded + n_unbounded)
        if inside.end >= len(self._pattern):
            raise ValueError("an open group")
        returns = start[0] in ("(", "(?:") or start[0][2] in "imx"
        looks = start[0].startswith(("(?=", "(?!", "(?<"))
        return inside._replace(end=inside.end + 1, choices=inside.choices if returns else 1, width=0 if looks else inside.width)

    def _atom(self, at: int, n_unbounded: int) -> _Part:
        if self._pattern[at] == "[":
            return _Part(self._class(at + 1, 0), 1, n_unbounded, 1, 1)
        found = _ATOM.match(self._pattern, at)
        if found is None:
            raise ValueError(f"{self._pattern[at : at + 2]!r} is not supported")
        return _Part(found.end(), 1, n_unbounded, 1, int(found[0] not in _WITHOUT_WIDTH))

    def _class(self, at: int, depth: int) -> int:
        """Return the index after a character class, which may contain classes."""
        if depth > 4:
            raise ValueError("more than 4 nested classes")
        at += self._pattern.startswith("^", at)
        first = at
        while at < len(self._pattern) and (self._pattern[at] != "]" or at == first):
            if self._pattern[at] == "[" and not self._pattern.startswith("[:", at):
                at = self._class(at + 1, depth + 1)
                continue
            found = _CLASS_PART.match(self._pattern, at)
            if found is None:
                raise ValueError(f"{self._pattern[at : at + 2]!r} in a class is not supported")
            at = found.end()
        if at >= len(self._pattern):
            raise ValueError("an open class")
        return at + 1

    def _quantifier(self, at: int) -> tuple[int, int | None, bool, int]:
        """Return the least and largest number of repetitions, None for any number, whether it is possessive, and the index after it."""
        found = _QUANTIFIER.match(self._pattern, at)
        if found is None:
            return 1, 1, False, at
        low, comma, high, suffix = found.groups()
        if (low is not None and suffix == "+") or _QUANTIFIER.match(self._pattern, found.end()):
            raise ValueError("a quantifier of a quantifier")
        if low is None:
            symbol = found[0][0]
            return int(symbol == "+"), 1 if symbol == "?" else None, suffix == "+", found.end()
        if not low and not high:
            raise ValueError("a quantifier without numbers")
        most = int(high) if high else None if comma else int(low)
        if most is not None and most > _MAX_REPEAT:
            raise ValueError(f"more than {_MAX_REPEAT} repetitions")
        return int(low or 0), most, False, found.end()
