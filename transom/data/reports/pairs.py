"""What is known of sentence pairs before step 1: sizes, lengths, doubles, overlap, outliers, symbols never seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transom.data.pairs.loader import Loader, encode
from transom.data.pairs.mixture import LanguageMixture
from transom.data.pairs.pairs import Pairs
from transom.data.reports.report import (
    SHOWN,
    Distribution,
    Report,
    Row,
    again,
    counted,
    distribution,
    shown,
    told,
    unseen,
    unseen_problems,
)
from transom.data.sampler import Indices, lengths_of
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizers

_OUTLIER_RATIO = 3.0
_OUTLIER_TOKENS = 5


@dataclass(frozen=True)
class PairReport(Report):
    """The facts of the pairs.

    Attributes:
        pairs: for each split its size, origin, doubles, and pairs that also stand in training.
        tokens: for each split and side the distribution of lengths in tokens, without special symbols but with the target language's tag.
        longest: the longest training pairs, with their lines.
        dropped: training pairs that are not trained on, by reason.
        unseen: for each split and side but training's, the symbols that training never shows.
        padding_waste: share of the first epoch's tokens that is padding.
    """

    pairs: dict[str, Row]
    tokens: dict[str, Distribution]
    longest: list[dict[str, Any]]
    dropped: dict[str, int]
    unseen: dict[str, Row]
    padding_waste: float

    def figures(self) -> list[str]:
        """Give all but the problems for people."""
        lines = []
        for name, facts in self.pairs.items():
            taken = f", {counted(int(facts['an epoch']), 'sample')} an epoch" if "an epoch" in facts else ""
            lines.append(f"{name}: {counted(int(facts['pairs']), 'pair')} ({facts['from']}){taken}")
            lines += [f"  {side} tokens: {told(self.tokens[f'{name} {side}'])}" for side in ("source", "target")]
        longest = ", ".join(
            f"{pair.get('to', '')} {pair['line']:,} ({max(pair['source_tokens'], pair['target_tokens'])} tokens)".strip()
            for pair in self.longest
        )
        lines.append(f"longest training lines: {longest}")
        lines += [f"dropped from training: {n:,} {reason}" for reason, n in self.dropped.items()]
        return [*lines, f"padding: {self.padding_waste:.1%} of the tokens in the first epoch's batches"]


def report_languages(
    splits: Mapping[str | None, Splits[Pairs]],
    tokenizers: Tokenizers,
    loaders: Mapping[str | None, Loader],
    mixture: LanguageMixture | None,
) -> PairReport:
    """Examine the data of a run, language by language.

    Args:
        splits: all pairs, by the tag of their target language; None for the only one.
        tokenizers: of both sides.
        loaders: of the training pairs, by the same.
        mixture: of them all, where there are several languages.
    """
    reports = {to: report_pairs(splits[to], tokenizers, loader) for to, loader in loaders.items()}
    if mixture is None:
        return reports[None]
    joined = PairReport([], {}, {}, [], {}, {}, mixture.padding_waste)
    for to, report in reports.items():
        for name in ("pairs", "tokens", "dropped", "unseen"):
            getattr(joined, name).update({f"{to} {key}": value for key, value in getattr(report, name).items()})
        joined.pairs[f"{to} train"]["an epoch"] = mixture.counts[str(to)]
        joined.longest.extend({"to": to, **pair} for pair in report.longest)
        joined.problems.extend(f"{to} {problem}" for problem in report.problems)
    return joined


def report_pairs(splits: Splits[Pairs], tokenizers: Tokenizers, loader: Loader) -> PairReport:
    """Examine the data of a run.

    Args:
        splits: all pairs.
        tokenizers: of both sides.
        loader: of the training pairs.
    """
    problems = [_lines_of(loader.pairs, samples, f"dropped {reason}") for reason, samples in loader.left_out.items()]
    pairs = {"train": _sizes(splits.train)}
    tokens = _distributions("train", *loader.lengths)
    problems += _doubles(splits.train) + _outliers(splits.train, *loader.lengths)
    seen, never = loader.seen(), dict[str, Row]()
    for name, other in splits.parts.items():
        if name == "train":
            continue
        overlap = _overlap(splits.train, other)
        pairs[name] = {**_sizes(other), **overlap}
        if overlap["also in training"]:
            problems.append(
                f"{name}: {overlap['also in training']:,} of {counted(len(other), 'pair')} also in training, so its scores flatter"
            )
        rows = encode(tokenizers.source, other.source, loader.prefix), encode(tokenizers.target, other.target)
        lengths = [lengths_of(side) for side in rows]
        tokens |= _distributions(name, *lengths)
        too_long = np.flatnonzero(np.maximum(*lengths) + 1 > loader.max_seq_len).tolist()
        if too_long:
            problems.append(_lines_of(other, too_long, f"{name}: left out longer than {loader.max_seq_len} tokens"))
        never[f"{name} source"] = unseen(tokenizers.source, rows[0], seen[0])
        never[f"{name} target"] = unseen(tokenizers.target, rows[1], seen[1])
    problems += unseen_problems(never)
    return PairReport(problems, pairs, tokens, _longest(splits.train, *loader.lengths), loader.dropped, never, loader.padding_waste)


def _overlap(train: Pairs, other: Pairs) -> dict[str, int]:
    pairs, sources = set(zip(train.source, train.target, strict=True)), set(train.source)
    return {
        "also in training": sum(pair in pairs for pair in zip(other.source, other.target, strict=True)),
        "sources also in training": sum(source in sources for source in other.source),
    }


def _sizes(pairs: Pairs) -> Row:
    different = len(set(zip(pairs.source, pairs.target, strict=True)))
    return {
        "pairs": len(pairs),
        "from": pairs.name,
        "doubles": len(pairs) - different,
        "different sources": len(set(pairs.source)),
    }


def _distributions(name: str, source: Indices, target: Indices) -> dict[str, Distribution]:
    return {f"{name} {side}": distribution(lengths) for side, lengths in (("source", source), ("target", target))}


def _longest(pairs: Pairs, source: Indices, target: Indices) -> list[dict[str, int]]:
    order = np.argsort(-np.maximum(source, target), kind="stable")[:SHOWN].tolist()
    return [{"line": pairs.line(i), "source_tokens": int(source[i]), "target_tokens": int(target[i])} for i in order]


def _doubles(pairs: Pairs) -> list[str]:
    found = again(zip(pairs.source, pairs.target, strict=True))
    return [_lines_of(pairs, found, "train: the same as an earlier pair")] if found else []


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
    lines = shown([pairs.line(sample) for sample in samples])
    return f"{what}: {len(samples):,} of {counted(len(pairs), 'pair')}, line{'s' if len(samples) > 1 else ''} {lines}"
