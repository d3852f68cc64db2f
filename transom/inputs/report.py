"""What is known of the data before step 1: sizes, lengths, doubles, overlap, outliers, symbols never seen."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from transom.inputs.loader import Encoded, Loader, encode
from transom.inputs.mixture import Mixture
from transom.inputs.pairs import Pairs, Splits
from transom.inputs.sampler import Indices
from transom.inputs.tokenizer import Tokenizer, Tokenizers

SHOWN = 5
"""How many examples of a kind are named."""

_OUTLIER_RATIO = 3.0
_OUTLIER_TOKENS = 5


@dataclass(frozen=True)
class DataReport:
    """The facts of the data.

    Attributes:
        problems: sentences that name what a person should look at.
        pairs: for each split its size, origin, doubles, and pairs that also stand in training.
        tokens: for each split and side the distribution of lengths in tokens, without special symbols but with the target language's tag.
        longest: the longest training pairs, with their lines.
        dropped: training pairs that are not trained on, by reason.
        unseen: for each split and side but training's, the symbols that training never shows.
        padding_waste: share of the first epoch's tokens that is padding.
    """

    problems: list[str]
    pairs: dict[str, dict[str, str | int]]
    tokens: dict[str, dict[str, int | float]]
    longest: list[dict[str, Any]]
    dropped: dict[str, int]
    unseen: dict[str, dict[str, str | int]]
    padding_waste: float

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Give the report for people, the problems last."""
        lines = []
        for name, facts in self.pairs.items():
            taken = f", {counted(int(facts['an epoch']), 'sample')} an epoch" if "an epoch" in facts else ""
            lines.append(f"{name}: {counted(int(facts['pairs']), 'pair')} ({facts['from']}){taken}")
            for side in ("source", "target"):
                figures = self.tokens[f"{name} {side}"]
                lines.append(
                    f"  {side} tokens: median {figures['median']:g}, 99 % up to {figures['99 %']:g}, longest {figures['longest']},"
                    f" {figures['total']:,} in all"
                )
        longest = ", ".join(
            f"{pair.get('to', '')} {pair['line']:,} ({max(pair['source_tokens'], pair['target_tokens'])} tokens)".strip()
            for pair in self.longest
        )
        lines.append(f"longest training lines: {longest}")
        lines += [f"dropped from training: {n:,} {reason}" for reason, n in self.dropped.items()]
        lines.append(f"padding: {self.padding_waste:.1%} of the tokens in the first epoch's batches")
        return [*lines, *(f"look at this: {problem}" for problem in self.problems)]


def report_languages(
    splits: Mapping[str | None, Splits], tokenizers: Tokenizers, loaders: Mapping[str | None, Loader], mixture: Mixture | None
) -> DataReport:
    """Examine the data of a run, language by language.

    Args:
        splits: all pairs, by the tag of their target language; None for the only one.
        tokenizers: of both sides.
        loaders: of the training pairs, by the same.
        mixture: of them all, where there are several languages.
    """
    reports = {to: report_data(splits[to], tokenizers, loader) for to, loader in loaders.items()}
    if mixture is None:
        return reports[None]
    joined = DataReport([], {}, {}, [], {}, {}, mixture.padding_waste)
    for to, report in reports.items():
        for name in ("pairs", "tokens", "dropped", "unseen"):
            getattr(joined, name).update({f"{to} {key}": value for key, value in getattr(report, name).items()})
        joined.pairs[f"{to} train"]["an epoch"] = mixture.counts[str(to)]
        joined.longest.extend({"to": to, **pair} for pair in report.longest)
        joined.problems.extend(f"{to} {problem}" for problem in report.problems)
    return joined


def report_data(splits: Splits, tokenizers: Tokenizers, loader: Loader) -> DataReport:
    """Examine the data of a run.

    Args:
        splits: all pairs.
        tokenizers: of both sides.
        loader: of the training pairs.
    """
    others = {name: pairs for name, pairs in (("valid", splits.valid), ("test", splits.test)) if pairs is not None}
    problems = [_lines_of(loader.pairs, samples, f"dropped {reason}") for reason, samples in loader.left_out.items()]
    pairs = {"train": _sizes(splits.train)}
    tokens = _distributions("train", *loader.lengths)
    problems += _doubles(splits.train) + _outliers(splits.train, *loader.lengths)
    seen, never = loader.seen(), dict[str, dict[str, str | int]]()
    for name, other in others.items():
        overlap = _overlap(splits.train, other)
        pairs[name] = {**_sizes(other), **overlap}
        if overlap["also in training"]:
            problems.append(
                f"{name}: {overlap['also in training']:,} of {counted(len(other), 'pair')} also in training, so its scores flatter"
            )
        rows = encode(tokenizers.source, other.source, loader.prefix), encode(tokenizers.target, other.target)
        lengths = [np.array([len(row) for row in side], dtype=np.int64) for side in rows]
        tokens |= _distributions(name, *lengths)
        too_long = np.flatnonzero(np.maximum(*lengths) + 1 > loader.max_seq_len).tolist()
        if too_long:
            problems.append(_lines_of(other, too_long, f"{name}: left out longer than {loader.max_seq_len} tokens"))
        never[f"{name} source"] = unseen(tokenizers.source, rows[0], seen[0])
        never[f"{name} target"] = unseen(tokenizers.target, rows[1], seen[1])
    problems += [
        f"{name}: {counted(int(facts['symbols']), 'symbol')} that training never shows, {counted(int(facts['occurrences']), 'time')},"
        f" such as {facts['such as']}"
        for name, facts in never.items()
        if facts["symbols"]
    ]
    return DataReport(problems, pairs, tokens, _longest(splits.train, *loader.lengths), loader.dropped, never, loader.padding_waste)


def _overlap(train: Pairs, other: Pairs) -> dict[str, int]:
    pairs, sources = set(zip(train.source, train.target, strict=True)), set(train.source)
    return {
        "also in training": sum(pair in pairs for pair in zip(other.source, other.target, strict=True)),
        "sources also in training": sum(source in sources for source in other.source),
    }


def unseen(tokenizer: Tokenizer, rows: Encoded, seen: set[int]) -> dict[str, str | int]:
    """Count the symbols of some texts that are not among those seen."""
    counts = Counter(token for row in rows for token in row if token not in seen)
    examples = [repr(symbol)[1:-1] for symbol in tokenizer.symbols([token for token, _ in counts.most_common(SHOWN)])]
    return {"symbols": len(counts), "occurrences": counts.total(), "such as": " ".join(examples)}


def _sizes(pairs: Pairs) -> dict[str, str | int]:
    different = len(set(zip(pairs.source, pairs.target, strict=True)))
    return {
        "pairs": len(pairs),
        "from": pairs.name,
        "doubles": len(pairs) - different,
        "different sources": len(set(pairs.source)),
    }


def _distributions(name: str, source: Indices, target: Indices) -> dict[str, dict[str, int | float]]:
    return {f"{name} {side}": distribution(lengths) for side, lengths in (("source", source), ("target", target))}


def distribution(lengths: Indices) -> dict[str, int | float]:
    """Sum up lengths: the extremes, some quantiles, mean and total."""
    quantiles = np.quantile(lengths, (0.01, 0.25, 0.5, 0.75, 0.99), method="nearest").tolist()
    return {
        "shortest": int(lengths.min()),
        **dict(zip(("1 %", "25 %", "median", "75 %", "99 %"), map(int, quantiles), strict=True)),
        "longest": int(lengths.max()),
        "mean": round(float(lengths.mean()), 2),
        "total": int(lengths.sum()),
    }


def _longest(pairs: Pairs, source: Indices, target: Indices) -> list[dict[str, int]]:
    order = np.argsort(-np.maximum(source, target), kind="stable")[:SHOWN].tolist()
    return [{"line": pairs.line(i), "source_tokens": int(source[i]), "target_tokens": int(target[i])} for i in order]


def _doubles(pairs: Pairs) -> list[str]:
    first: dict[tuple[str, str], int] = {}
    again = [i for i, pair in enumerate(zip(pairs.source, pairs.target, strict=True)) if first.setdefault(pair, i) != i]
    return [_lines_of(pairs, again, "train: the same as an earlier pair")] if again else []


def _outliers(pairs: Pairs, source: Indices, target: Indices) -> list[str]:
    """Name pairs whose length ratio is far from the usual one, which are often not translations."""
    both = (source > 0) & (target > 0)
    logs = np.log(np.maximum(target, 1) / np.maximum(source, 1))
    usual = float(np.median(logs[both])) if both.any() else 0.0
    odd = both & (np.abs(logs - usual) > np.log(_OUTLIER_RATIO)) & (np.abs(target - source * np.exp(usual)) >= _OUTLIER_TOKENS)
    samples = np.flatnonzero(odd)
    samples = samples[np.argsort(-np.abs(logs - usual)[samples], kind="stable")].tolist()
    return [_lines_of(pairs, samples, f"train: over {_OUTLIER_RATIO:g} times off the usual length ratio")] if samples else []


def _lines_of(pairs: Pairs, samples: Sequence[int], what: str) -> str:
    lines = ", ".join(str(pairs.line(sample)) for sample in samples[:SHOWN])
    more = ", ..." if len(samples) > SHOWN else ""
    return f"{what}: {len(samples):,} of {counted(len(pairs), 'pair')}, line{'s' if len(samples) > 1 else ''} {lines}{more}"


def counted(n: int, noun: str) -> str:
    """Write a number of things."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
