"""Statistics and problems that several data reports share, and their wording."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from transom.data.batch import Indices, lengths_of
from transom.data.pairs.loader import Encoded
from transom.data.split import Divisible
from transom.data.tokenizer.tokenizer import Tokenizer

SHOWN = 5
"""Maximum number of examples listed per problem."""

Row = dict[str, str | int]
"""Statistics of a split, or of one side of a split."""

Distribution = dict[str, int | float]


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, as in "2 texts"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def sizes(parts: Mapping[str, Divisible], keys: Mapping[str, Sequence[object]], noun: str) -> dict[str, Row]:
    """Return the size, origin and number of duplicates of each split.

    Args:
        parts: the splits by name.
        keys: the keys of each split's samples; equal samples have equal keys.
        noun: singular noun for a sample.
    """
    return {name: {f"{noun}s": len(part), "from": part.name, "doubles": len(part) - len(set(keys[name]))} for name, part in parts.items()}


def summary(sizes: Mapping[str, Row], noun: str, details: Callable[[str], Iterable[str]]) -> list[str]:
    """Return a line with the size and origin of each split, followed by the split's details."""
    lines = []
    for name, facts in sizes.items():
        taken = f", {counted(int(facts['an epoch']), 'sample')} per epoch" if "an epoch" in facts else ""
        lines.append(f"{name}: {counted(int(facts[f'{noun}s']), noun)} ({facts['from']}){taken}")
        lines += [f"  {detail}" for detail in details(name)]
    return lines


def shown(things: Sequence[object]) -> str:
    """Return the first items, separated by commas."""
    return ", ".join(map(str, things[:SHOWN])) + ", ..." * (len(things) > SHOWN)


def distribution(rows: Sequence[Sequence[int]] | Indices) -> Distribution:
    """Return minimum, maximum, quantiles, mean and total of the lengths of token rows, or of the given lengths."""
    lengths = rows if isinstance(rows, np.ndarray) else lengths_of(rows)
    quantiles = np.quantile(lengths, (0.01, 0.25, 0.5, 0.75, 0.99), method="nearest").tolist()
    return {
        "shortest": int(lengths.min()),
        **dict(zip(("1 %", "25 %", "median", "75 %", "99 %"), map(int, quantiles), strict=True)),
        "longest": int(lengths.max()),
        "mean": round(float(lengths.mean()), 2),
        "total": int(lengths.sum()),
    }


def told(figures: Distribution) -> str:
    """Return a distribution as text."""
    return f"median {figures['median']:g}, 99 % up to {figures['99 %']:g}, longest {figures['longest']}, {figures['total']:,} in all"


def tokens_told(tokens: Mapping[str, Distribution], part: str, sides: Iterable[str]) -> list[str]:
    """Return a line with the length distribution of each side of a split."""
    return [f"{side} tokens: {told(tokens[f'{part} {side}'])}" for side in sides]


def unseen(tokenizer: Tokenizer, rows: Encoded, seen: set[int]) -> Row:
    """Count the symbols in ``rows`` that are not in ``seen``, and their occurrences."""
    counts = Counter(token for row in rows for token in row if token not in seen)
    examples = [repr(symbol)[1:-1] for symbol in tokenizer.symbols([token for token, _ in counts.most_common(SHOWN)])]
    return {"symbols": len(counts), "occurrences": counts.total(), "such as": " ".join(examples)}


def unseen_in(tokenizer: Tokenizer, rows: Mapping[str, Encoded]) -> dict[str, Row]:
    """Count, for each split except training, the symbols that are absent from the training data."""
    seen = {token for row in rows["train"] for token in row}
    return {name: unseen(tokenizer, part, seen) for name, part in rows.items() if name != "train"}


def unseen_problems(never: Mapping[str, Row]) -> list[str]:
    """Describe the splits with symbols that are absent from the training data."""
    return [
        f"{name}: {counted(int(facts['symbols']), 'symbol')} absent from the training data,"
        f" {counted(int(facts['occurrences']), 'time')}, such as {facts['such as']}"
        for name, facts in never.items()
        if facts["symbols"]
    ]


def overlaps(keys: Mapping[str, Sequence[object]], noun: str) -> list[str]:
    """Describe the splits with samples that also occur in the training data.

    Args:
        keys: the keys of each split's samples, training included; equal samples have equal keys.
        noun: singular noun for a sample.
    """
    known, problems = set(keys["train"]), []
    for name, part in keys.items():
        if name != "train" and (also := sum(key in known for key in part)):
            problems.append(f"{name}: {also:,} of {counted(len(part), noun)} also in training, so its metrics are too optimistic")
    return problems


def again(keys: Iterable[object]) -> list[int]:
    """Return the indices of keys that occurred before."""
    first: dict[object, int] = {}
    return [place for place, key in enumerate(keys) if first.setdefault(key, place) != place]


def contradictions(keys: Sequence[str], labels: Sequence[str], named: Callable[[int], object], noun: str, what: str) -> list[str]:
    """Describe training samples that are equal but have different labels.

    Args:
        keys: the key of each sample; equal samples have equal keys.
        labels: the label of each sample.
        named: returns the name of the sample at an index, for messages.
        noun: singular noun for a sample.
        what: wording of the contradiction, after "with another".
    """
    first: dict[str, int] = {}
    others = [(first[key], i) for i, key in enumerate(keys) if labels[first.setdefault(key, i)] != labels[i]]
    places = [f"{named(before)} and {named(i)}" for before, i in others]
    return [f"train: {counted(len(others), noun)} with another {what} {shown(places)}"] if others else []


def class_counts(labels: Mapping[str, Sequence[str]], classes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the samples per class in each split; classes unknown to the model come last."""
    counts = {name: Counter(part) for name, part in labels.items()}
    return {name: {label: count[label] for label in (*classes, *sorted(set(count) - set(classes)))} for name, count in counts.items()}


def class_shares(counts: Mapping[str, int]) -> str:
    """Return the percentage of each class as text."""
    n = sum(counts.values())
    shares = [f"{label} {count / n:.1%}" for label, count in counts.items()]
    return ", ".join(shares[:10]) + (f", and {len(shares) - 10} classes more" if len(shares) > 10 else "")


def rare_classes(counts: Mapping[str, int], noun: str) -> list[str]:
    """Describe the classes with few training samples."""
    few = [repr(label) for label, count in counts.items() if count < 10]
    return [f"train: fewer than 10 {noun}s of {shown(few)}"] if few else []
