"""What is known of labelled texts before step 1: sizes, classes, lengths, doubles, contradictions, overlap, symbols never seen."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from transom.inputs.labelled import LabelledLoader
from transom.inputs.loader import encode
from transom.inputs.pairs import Pairs, Splits
from transom.inputs.report import SHOWN, counted, distribution, unseen
from transom.inputs.tokenizer import Tokenizer


@dataclass(frozen=True)
class LabelledReport:
    """The facts of the texts.

    Attributes:
        problems: sentences that name what a person should look at.
        texts: for each split its size, origin, doubles, and texts that also stand in training.
        classes: for each split the number of texts of each class.
        tokens: for each split the distribution of lengths in tokens, without special symbols.
        longer: training texts of more tokens than the model reads, and what becomes of them.
        unseen: for each split but training's, the symbols that training never shows.
    """

    problems: list[str]
    texts: dict[str, dict[str, str | int]]
    classes: dict[str, dict[str, int]]
    tokens: dict[str, dict[str, int | float]]
    longer: dict[str, int]
    unseen: dict[str, dict[str, str | int]]

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Give the report for people, the problems last."""
        lines = []
        for name, facts in self.texts.items():
            n, lengths = int(facts["texts"]), self.tokens[name]
            shares = [f"{label} {share / n:.1%}" for label, share in self.classes[name].items()]
            shown = ", ".join(shares[:10]) + (f", and {len(shares) - 10} classes more" if len(shares) > 10 else "")
            lines += [
                f"{name}: {counted(n, 'text')} ({facts['from']})",
                f"  classes: {shown}",
                f"  tokens: median {lengths['median']:g}, 99 % up to {lengths['99 %']:g}, longest {lengths['longest']},"
                f" {lengths['total']:,} in all",
            ]
        return [*lines, *(f"look at this: {problem}" for problem in self.problems)]


def report_labelled(splits: Splits, classes: Sequence[str], tokenizer: Tokenizer, loader: LabelledLoader) -> LabelledReport:
    """Examine the texts of a run.

    Args:
        splits: all texts, each with its class as target.
        classes: by number.
        tokenizer: of the texts.
        loader: of the training texts.
    """
    parts = {name: part for name, part in (("train", splits.train), ("valid", splits.valid), ("test", splits.test)) if part is not None}
    rows = {name: encode(tokenizer, part.source) for name, part in parts.items()}
    seen = {token for row in rows["train"] for token in row}
    texts, never, problems = dict[str, dict[str, str | int]](), dict[str, dict[str, str | int]](), _contradictions(splits.train)
    if loader.n_longer:
        fate = "their beginning stands for them" if loader.n_kept == len(splits.train) else "they are left out"
        problems.append(
            f"train: {counted(loader.n_longer, 'text')} longer than the {loader.max_seq_len} tokens that the model reads; {fate}"
        )
    known = set(splits.train.source)
    for name, part in parts.items():
        texts[name] = {"texts": len(part), "from": part.name, "doubles": len(part) - len(set(part.source))}
        if name == "train":
            continue
        if also := sum(text in known for text in part.source):
            problems.append(f"{name}: {also:,} of {counted(len(part), 'text')} also in training, so its figures flatter")
        never[name] = unseen(tokenizer, rows[name], seen)
    counts = {name: Counter(part.target) for name, part in parts.items()}
    few = [label for label in classes if counts["train"][label] < 10]
    if few:
        problems.append(f"train: fewer than 10 texts of {', '.join(map(repr, few[:SHOWN]))}{', ...' * (len(few) > SHOWN)}")
    return LabelledReport(
        problems=problems,
        texts=texts,
        classes={name: {label: count[label] for label in (*classes, *sorted(set(count) - set(classes)))} for name, count in counts.items()},
        tokens={name: distribution(np.array([len(row) for row in of_part], np.int64)) for name, of_part in rows.items()},
        longer={"texts": loader.n_longer, "left out": len(splits.train) - loader.n_kept},
        unseen=never,
    )


def _contradictions(train: Pairs) -> list[str]:
    """Name texts that stand in training with two classes."""
    first: dict[str, int] = {}
    again = [i for i, text in enumerate(train.source) if train.target[first.setdefault(text, i)] != train.target[i]]
    if not again:
        return []
    places = ", ".join(f"{train.line(first[train.source[i]])} and {train.line(i)}" for i in again[:SHOWN])
    return [
        f"train: {counted(len(again), 'text')} with another class than the same text before, lines {places}{', ...' * (len(again) > SHOWN)}"
    ]
