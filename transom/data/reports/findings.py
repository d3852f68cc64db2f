"""What several data reports find, and the words for it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from transom.data.batch import Indices, lengths_of
from transom.data.pairs.loader import Encoded
from transom.data.split import Divisible
from transom.data.tokenizer.tokenizer import Tokenizer

SHOWN = 5
"""How many examples of a kind are named."""

Row = dict[str, str | int]
"""What is known of a part of the data, or of a side of it."""

Distribution = dict[str, int | float]


def counted(n: int, noun: str) -> str:
    """Write a number of things."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def sizes(parts: Mapping[str, Divisible], keys: Mapping[str, Sequence[object]], noun: str) -> dict[str, Row]:
    """Count the samples of each part of the data and name their origin.

    Args:
        parts: of the data, by name.
        keys: of each part: what is the same where the data are.
        noun: what they are.
    """
    return {name: {f"{noun}s": len(part), "from": part.name, "doubles": len(part) - len(set(keys[name]))} for name, part in parts.items()}


def summary(sizes: Mapping[str, Row], noun: str, details: Callable[[str], Iterable[str]]) -> list[str]:
    """Write the size and origin of each part of the data as a line, and below it the part's details."""
    lines = []
    for name, facts in sizes.items():
        taken = f", {counted(int(facts['an epoch']), 'sample')} an epoch" if "an epoch" in facts else ""
        lines.append(f"{name}: {counted(int(facts[f'{noun}s']), noun)} ({facts['from']}){taken}")
        lines += [f"  {detail}" for detail in details(name)]
    return lines


def shown(things: Sequence[object]) -> str:
    """Name the first of some things."""
    return ", ".join(map(str, things[:SHOWN])) + ", ..." * (len(things) > SHOWN)


def distribution(rows: Sequence[Sequence[int]] | Indices) -> Distribution:
    """Sum up the lengths of rows of tokens, or lengths: the extremes, some quantiles, mean and total."""
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
    """Write what matters of a distribution."""
    return f"median {figures['median']:g}, 99 % up to {figures['99 %']:g}, longest {figures['longest']}, {figures['total']:,} in all"


def tokens_told(tokens: Mapping[str, Distribution], part: str, sides: Iterable[str]) -> list[str]:
    """Write what matters of the lengths of each side of a part of the data."""
    return [f"{side} tokens: {told(tokens[f'{part} {side}'])}" for side in sides]


def unseen(tokenizer: Tokenizer, rows: Encoded, seen: set[int]) -> Row:
    """Count the symbols of some texts that are not among those seen."""
    counts = Counter(token for row in rows for token in row if token not in seen)
    examples = [repr(symbol)[1:-1] for symbol in tokenizer.symbols([token for token, _ in counts.most_common(SHOWN)])]
    return {"symbols": len(counts), "occurrences": counts.total(), "such as": " ".join(examples)}


def unseen_in(tokenizer: Tokenizer, rows: Mapping[str, Encoded]) -> dict[str, Row]:
    """Count for each part but training's the symbols that training never shows."""
    seen = {token for row in rows["train"] for token in row}
    return {name: unseen(tokenizer, part, seen) for name, part in rows.items() if name != "train"}


def unseen_problems(never: Mapping[str, Row]) -> list[str]:
    """Name the parts of the data with symbols that training never shows."""
    return [
        f"{name}: {counted(int(facts['symbols']), 'symbol')} that training never shows, {counted(int(facts['occurrences']), 'time')},"
        f" such as {facts['such as']}"
        for name, facts in never.items()
        if facts["symbols"]
    ]


def overlaps(keys: Mapping[str, Sequence[object]], noun: str) -> list[str]:
    """Name the parts of the data of which some also stand in training.

    Args:
        keys: of each part, training's among them: what is the same where the data are.
        noun: what they are.
    """
    known, problems = set(keys["train"]), []
    for name, part in keys.items():
        if name != "train" and (also := sum(key in known for key in part)):
            problems.append(f"{name}: {also:,} of {counted(len(part), noun)} also in training, so its figures flatter")
    return problems


def again(keys: Iterable[object]) -> list[int]:
    """Give the places at which something stands that stood before."""
    first: dict[object, int] = {}
    return [place for place, key in enumerate(keys) if first.setdefault(key, place) != place]


def contradictions(keys: Sequence[str], labels: Sequence[str], named: Callable[[int], object], noun: str, what: str) -> list[str]:
    """Name training data that stand there with two labels.

    Args:
        keys: what is the same where the data are.
        labels: of each.
        named: names one, for people.
        noun: what they are.
        what: is wrong with them.
    """
    first: dict[str, int] = {}
    others = [(first[key], i) for i, key in enumerate(keys) if labels[first.setdefault(key, i)] != labels[i]]
    places = [f"{named(before)} and {named(i)}" for before, i in others]
    return [f"train: {counted(len(others), noun)} with another {what} {shown(places)}"] if others else []


def class_counts(labels: Mapping[str, Sequence[str]], classes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the samples of each class in each part of the data; classes that the model does not have come last."""
    counts = {name: Counter(part) for name, part in labels.items()}
    return {name: {label: count[label] for label in (*classes, *sorted(set(count) - set(classes)))} for name, count in counts.items()}


def class_shares(counts: Mapping[str, int]) -> str:
    """Write how much of the data is of each class."""
    n = sum(counts.values())
    shares = [f"{label} {count / n:.1%}" for label, count in counts.items()]
    return ", ".join(shares[:10]) + (f", and {len(shares) - 10} classes more" if len(shares) > 10 else "")


def rare_classes(counts: Mapping[str, int], noun: str) -> list[str]:
    """Name the classes that training has few samples of."""
    few = [repr(label) for label, count in counts.items() if count < 10]
    return [f"train: fewer than 10 {noun}s of {shown(few)}"] if few else []
