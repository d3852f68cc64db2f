"""Bound the work of a regular expression from an unknown origin.

The library's engine backtracks. An expression may take exponential time if a repeated group matches in several ways, and time of a high
power if many repetitions follow one another. The expressions of published tokenizers have neither.
"""

import re

MAX_REGEX_CHARACTERS = 2**15
"""Maximum length. The expressions of published tokenizers have fewer than 1,000 characters; those of SentencePiece's rules have 20,108."""

MAX_REPETITIONS = 4
"""Maximum number of unbounded repetitions in one alternative."""

_MAX_COUNT, _FEW = 1_000, 3
_MAX_GROUPS = 32
_REPETITION = re.compile(r"[*+]|\{(\d{1,9})?(,?)(\d{1,9})?\}|\?")
_FORBIDDEN = re.compile(r"\\(?:[1-9]|k<|k'|g<|g'|R|X|O)|\(\?(?:\(|[&R0-9~]|P[>=]|<[A-Za-z_])")


def check_regex(pattern: str) -> None:
    """Raise an error if a regular expression could take long.

    Raises:
        ValueError: the expression repeats a group of choices or repetitions, has too many repetitions, refers to groups, or is not closed.
            The message is a noun phrase.
    """
    if len(pattern) > MAX_REGEX_CHARACTERS:
        raise ValueError(f"a regular expression of {len(pattern):,} characters")
    if _FORBIDDEN.search(pattern.replace("\\\\", "")):
        raise ValueError(f"a regular expression that refers to groups ({pattern!r:.60})")
    # Each entry is a group: most repetitions in a finished alternative, those in the current one, and whether its matches vary.
    stack = [[0, 0, 0]]
    at = varying_group = 0
    while at < len(pattern):
        character = pattern[at]
        if found := _REPETITION.match(pattern, at):
            if varying_group and found[0] != "?":
                raise ValueError(f"a regular expression that repeats a group of choices or repetitions ({pattern!r:.60})")
            stack[-1][1] += _is_long(found)
            stack[-1][2] = 1
            at = found.end()
            continue
        step, varying_group = 1, 0
        if character == "\\":
            step = 2
        elif character == "[":
            step = _class_length(pattern, at)
        elif character == "(":
            stack.append([0, 0, 0])
            step = _opening(pattern, at)
        elif character == "|":
            stack[-1] = [max(stack[-1][:2]), 0, 1]
        elif character == ")":
            if len(stack) == 1:
                raise ValueError(f"a regular expression with a group that is not open ({pattern!r:.60})")
            finished, current, varying_group = stack.pop()
            stack[-1][1] += max(finished, current)
            stack[-1][2] |= varying_group
        if len(stack) > _MAX_GROUPS or max(stack[-1][:2]) > MAX_REPETITIONS:
            raise ValueError(f"a regular expression with more than {MAX_REPETITIONS} repetitions in a row ({pattern!r:.60})")
        at += step
    if len(stack) != 1 or max(stack[0][:2]) > MAX_REPETITIONS:
        raise ValueError(f"a regular expression with an open group or too many repetitions ({pattern!r:.60})")


def _class_length(pattern: str, start: int) -> int:
    """Return the length of a class of characters, which may contain classes."""
    at, depth = start, 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 1
        elif character == "[":
            depth += 1
            at += pattern.startswith("^", at + 1)
            at += pattern.startswith("]", at + 1)
        elif character == "]":
            depth -= 1
            if depth == 0:
                return at + 1 - start
        at += 1
    raise ValueError(f"a regular expression with an open class ({pattern!r:.60})")


def _is_long(found: re.Match[str]) -> bool:
    """Return whether a repetition matches more than a few times."""
    if found[0] in "*+?":
        return found[0] != "?"
    least, comma, most = found.groups()
    if int(least or 0) > _MAX_COUNT or int(most or 0) > _MAX_COUNT:
        raise ValueError(f"a regular expression with the repetition {found[0]!r:.40}")
    return bool(comma) and (not most or int(most) > _FEW)


def _opening(pattern: str, at: int) -> int:
    """Return the number of characters that open a group, such as ``(?i:``."""
    found = re.compile(r"\((?:\?(?:[imx-]*[:)]|<?[=!]|>))?").match(pattern, at)
    assert found is not None
    return found.end() - at - (found[0].endswith(")"))
