"""Messages about damaged files among labeled samples such as images, which are refused or skipped all at once."""

from collections.abc import Mapping, Sequence

from transom.errors import DataError

MAX_NAMES = 5
"""Maximum number of damaged files named in a message."""

MAX_NAME_CHARACTERS, MAX_EXAMPLE_CHARACTERS = 60, 240
"""Maximum number of characters of a file's name, and of all files named in a message.

A message of more than ``MAX_ERROR_CHARACTERS`` characters would be shortened in the middle.
"""


def report_damaged(
    reasons: Mapping[str, str], names: Sequence[str], labels: Sequence[str], origin: str, noun: str, skip: bool | None
) -> tuple[str, ...]:
    """Raise an error about damaged files, or return a note about the files that are skipped.

    Args:
        reasons: why each damaged file cannot be read, by its name.
        names: names of all files.
        labels: class of each file.
        origin: folder of the files, for messages.
        noun: singular noun for a file, such as "image".
        skip: whether damaged files are skipped. None refuses them without naming the option that skips them.

    Returns:
        A note with the number and the first names of the skipped files; empty if no file is damaged.

    Raises:
        DataError: a file is damaged and ``skip`` is not set, or all files of a class are damaged.
    """
    if not reasons:
        return ()
    if not skip:
        them = "it" if len(reasons) == 1 else "them"
        option = "" if skip is None else f", or skip {them} with --skip-damaged (data.skip_damaged=true)"
        raise DataError(
            f"{origin}: expected {noun}s that can be read, found {len(reasons):,} of {len(names):,} that cannot: {_with_reasons(reasons)};"
            f" repair or remove {them}{option}"
        )
    whole = {label for name, label in zip(names, labels, strict=True) if name not in reasons}
    if lost := sorted(set(labels) - whole):
        shown = ", ".join(map(repr, lost[:MAX_NAMES])) + ", ..." * (len(lost) > MAX_NAMES)
        of_lost = {name: reasons[name] for name, label in zip(names, labels, strict=True) if label not in whole}
        raise DataError(
            f"{origin}: expected {noun}s that can be read of every class, found none of {shown}: {_with_reasons(of_lost)};"
            " repair some of these files, or remove them all"
        )
    return (f"{len(reasons):,} of {len(names):,} {noun}s skipped, because they cannot be read: {_with_reasons(reasons)}",)


def _with_reasons(reasons: Mapping[str, str]) -> str:
    """Return the first names as text, those with equal reasons together before their reason.

    >>> _with_reasons({"a.jpg": "truncated", "b.jpg": "empty", "c.jpg": "truncated"})
    'a.jpg, c.jpg (truncated), b.jpg (empty)'
    """
    by_reason, n_named, n_characters = dict[str, list[str]](), 0, 0
    for name, reason in reasons.items():
        shown = name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:15]}...{name[18 - MAX_NAME_CHARACTERS :]}"
        n_characters += len(shown) + 2 + (0 if reason in by_reason else len(reason) + 3)
        if n_named == MAX_NAMES or (n_named and n_characters > MAX_EXAMPLE_CHARACTERS):
            break
        by_reason.setdefault(reason, []).append(shown)
        n_named += 1
    named = ", ".join(f"{', '.join(of_reason)} ({reason})" for reason, of_reason in by_reason.items())
    return named + ", ..." * (n_named < len(reasons))
