"""Statistics and problems that several data reports share, and the texts that describe them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from transom.data.batch import Indices, sequence_lengths
from transom.data.split import SplittableData
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.files.message import joined, phrase

MAX_EXAMPLES = 5
"""Maximum number of examples listed per problem."""

SplitStatistics = dict[str, str | int]
"""Statistics of a split, or of one side of a split, by name."""

Distribution = dict[str, int | float]
"""Minimum, quantiles, maximum, mean and total of a set of lengths, by name."""


NOUNS = frozenset(
    [
        "document",
        "file",
        "image",
        "instruction",
        "mention",
        "pair",
        "prompt",
        "sample",
        "sentence",
        "sound",
        "symbol",
        "text",
        "time",
        "token",
        "word",
    ]
)
"""Nouns for which other languages have a singular and a plural; messages about the samples of a plugin stay English."""

SPLIT_NAMES = frozenset(("train", "valid", "test", "source", "target", "prompt", "answer"))
"""Names of splits, and of their sides, that other languages have."""


def count_noun(n: int, noun: str) -> str:
    """Return a number and the singular or plural of a noun, such as "1 text" or "2 texts"."""
    if noun in NOUNS:
        return phrase(f"data.count.{noun}", {"one": f"{{n}} {noun}", "other": f"{{n}} {noun}s"}, n=n)
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def out_of(n: int, noun: str) -> str:
    """Return the whole of which a number of samples is a part, such as "of 2 texts"."""
    if noun in NOUNS:
        return phrase(f"data.out_of.{noun}", {"one": f"of {{n}} {noun}", "other": f"of {{n}} {noun}s"}, n=n)
    return f"of {count_noun(n, noun)}"


def split_name(name: str) -> str:
    """Return the name of a split or of one of its sides, such as "train" or "de valid source"."""
    return joined(" ", [phrase(f"data.names.{word}", word) if word in SPLIT_NAMES else word for word in name.split(" ")])


def reading_notes(parts: Mapping[str, Any]) -> list[str]:
    """Return the notes of all splits, each preceded by the name of its split.

    Args:
        parts: data of each split by name, with the notes made while reading the files.
    """
    return [joined(": ", [split_name(name), note]) for name, part in parts.items() for note in part.notes]


def split_sizes(parts: Mapping[str, SplittableData], keys: Mapping[str, Sequence[object]], noun: str) -> dict[str, SplitStatistics]:
    """Return the size, origin and number of duplicates of each split.

    Args:
        parts: data of each split by name.
        keys: key of each sample, by split. Samples with equal keys count as duplicates.
        noun: singular noun for a sample.
    """
    return {
        name: {f"{noun}s": len(part), "from": part.name, "duplicates": len(part) - len(set(keys[name]))} for name, part in parts.items()
    }


def summarize_sizes(split_sizes: Mapping[str, SplitStatistics], noun: str, details: Callable[[str], Iterable[str]]) -> list[str]:
    """Return one line with the size and origin of each split, each followed by lines with details of the split.

    Args:
        split_sizes: result of ``split_sizes``.
        noun: singular noun for a sample.
        details: a function that returns the details of the split with a given name.
    """
    lines = []
    for name, statistics in split_sizes.items():
        taken = f", {count_noun(int(statistics['samples per epoch']), 'sample')} per epoch" if "samples per epoch" in statistics else ""
        lines.append(f"{name}: {count_noun(int(statistics[f'{noun}s']), noun)} ({statistics['from']}){taken}")
        lines += [f"  {detail}" for detail in details(name)]
    return lines


def first_examples(things: Sequence[object]) -> str:
    """Return the first ``MAX_EXAMPLES`` items as text, separated by commas."""
    shown = [thing if isinstance(thing, str) else str(thing) for thing in things[:MAX_EXAMPLES]]
    return joined(", ", [*shown, *["..."] * (len(things) > MAX_EXAMPLES)])


def length_distribution(rows: Sequence[Sized] | Indices) -> Distribution:
    """Return the minimum, maximum, quantiles, mean and total of the lengths of texts.

    Args:
        rows: token ids of each text, or an array with the number of tokens of each text.
    """
    lengths = rows if isinstance(rows, np.ndarray) else sequence_lengths(rows)
    quantiles = np.quantile(lengths, (0.01, 0.25, 0.5, 0.75, 0.99), method="nearest").tolist()
    return {
        "shortest": int(lengths.min()),
        **dict(zip(("1%", "25%", "median", "75%", "99%"), map(int, quantiles), strict=True)),
        "longest": int(lengths.max()),
        "mean": round(float(lengths.mean()), 2),
        "total": int(lengths.sum()),
    }


def format_distribution(figures: Distribution) -> str:
    """Return the median, 99% quantile, maximum and total of a distribution as text."""
    return f"median {figures['median']:g}, 99% up to {figures['99%']:g}, longest {figures['longest']}, {figures['total']:,} in all"


def format_token_lengths(tokens: Mapping[str, Distribution], part: str, sides: Iterable[str]) -> list[str]:
    """Return one line with the length distribution of each side of a split.

    Args:
        tokens: length distributions, by the name of the split and of the side, such as "train source".
        part: name of the split.
        sides: names of the sides, such as "source" and "target".
    """
    return [f"{side} tokens: {format_distribution(tokens[f'{part} {side}'])}" for side in sides]


def unseen_symbols(tokenizer: Tokenizer, rows: Iterable[Iterable[int]], seen: set[int]) -> SplitStatistics:
    """Count the symbols of texts that are absent from the training data, and the occurrences of these symbols.

    Args:
        tokenizer: tokenizer of the texts.
        rows: token ids of each text.
        seen: token ids that occur in the training data.
    """
    counts = Counter(token for row in rows for token in row if token not in seen)
    examples = [repr(symbol)[1:-1] for symbol in tokenizer.symbols([token for token, _ in counts.most_common(MAX_EXAMPLES)])]
    return {"symbols": len(counts), "occurrences": counts.total(), "such as": " ".join(examples)}


def unseen_by_split(tokenizer: Tokenizer, rows: Mapping[str, Iterable[Iterable[int]]]) -> dict[str, SplitStatistics]:
    """Count the symbols of each split other than training that are absent from the training data.

    Args:
        tokenizer: tokenizer of the texts.
        rows: token ids of each text, by split.
    """
    seen = {token for row in rows["train"] for token in row}
    return {name: unseen_symbols(tokenizer, part, seen) for name, part in rows.items() if name != "train"}


def unseen_problems(never: Mapping[str, SplitStatistics]) -> list[str]:
    """Return one message for each split with symbols that are absent from the training data.

    Args:
        never: result of ``unseen_by_split``.
    """
    return [
        phrase(
            "data.unseen",
            "{name}: {symbols} absent from the training data, {times}, such as {examples}",
            name=split_name(name),
            symbols=count_noun(int(statistics["symbols"]), "symbol"),
            times=count_noun(int(statistics["occurrences"]), "time"),
            examples=str(statistics["such as"]),
        )
        for name, statistics in never.items()
        if statistics["symbols"]
    ]


def overlap_problems(keys: Mapping[str, Sequence[object]], noun: str) -> list[str]:
    """Return one message for each split with samples that also occur in the training data.

    Args:
        keys: key of each sample, by split, including the training split. Samples with equal keys are considered equal.
        noun: singular noun for a sample.
    """
    known, problems = set(keys["train"]), []
    for name, part in keys.items():
        if name != "train" and (n_overlapping := sum(key in known for key in part)):
            problems.append(
                phrase(
                    "data.overlap",
                    "{name}: {number} {total} also in training, so its metrics are too optimistic",
                    name=split_name(name),
                    number=n_overlapping,
                    total=out_of(len(part), noun),
                )
            )
    return problems


def duplicate_indices(keys: Iterable[object]) -> list[int]:
    """Return the indices of keys that are equal to an earlier key."""
    first: dict[object, int] = {}
    return [place for place, key in enumerate(keys) if first.setdefault(key, place) != place]


def contradiction_problems(
    keys: Sequence[str], labels: Sequence[str], named: Callable[[int], str | int], noun: str, what: str
) -> list[str]:
    """Return a message about training samples that are equal to an earlier sample but have another label, if there are any.

    Args:
        keys: key of each training sample. Samples with equal keys are considered equal.
        labels: label of each training sample.
        named: a function that returns the name of the sample at an index.
        noun: singular noun for a sample.
        what: words of the message after "with", such as "another class than an earlier equal text: lines"; a message for other languages.
    """
    first: dict[str, int] = {}
    others = [(first[key], i) for i, key in enumerate(keys) if labels[first.setdefault(key, i)] != labels[i]]
    if not others:
        return []
    places = [phrase("data.both", "{first} and {second}", first=str(named(before)), second=str(named(i))) for before, i in others]
    return [
        phrase(
            "data.contradictions",
            "{name}: {samples} with {what} {examples}",
            name=split_name("train"),
            samples=count_noun(len(others), noun),
            what=what,
            examples=first_examples(places),
        )
    ]


def class_counts(labels: Mapping[str, Sequence[str]], classes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the number of samples of each class, by split.

    Args:
        labels: class of each sample, by split.
        classes: names of the model's classes, which come first. Other classes follow in sorted order.
    """
    counts = {name: Counter(part) for name, part in labels.items()}
    return {name: {label: count[label] for label in (*classes, *sorted(set(count) - set(classes)))} for name, count in counts.items()}


def format_class_fractions(counts: Mapping[str, int], n: int | None = None) -> str:
    """Return the percentage of each class among ``n`` samples as text; by default, every sample has one class."""
    n = sum(counts.values()) if n is None else n
    shares = [f"{label} {count / n:.1%}" for label, count in counts.items()]
    return ", ".join(shares[:10]) + (f", and {len(shares) - 10} classes more" if len(shares) > 10 else "")


def rare_class_problems(counts: Mapping[str, int], noun: str) -> list[str]:
    """Return a message about classes with fewer than 10 training samples, if there are any.

    Args:
        counts: number of training samples of each class.
        noun: singular noun for a sample.
    """
    few = [repr(label) for label, count in counts.items() if count < 10]
    if not few:
        return []
    samples, classes = count_noun(10, noun), first_examples(few)
    return [phrase("data.rare", "{name}: fewer than {samples} of {classes}", name=split_name("train"), samples=samples, classes=classes)]
