"""Data report on sentence pairs, with sizes, lengths, duplicates, overlap of splits, outliers and unseen symbols."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transom.data.batch import Indices, sequence_lengths
from transom.data.pairs.loader import PairLoader, encode, longer_than
from transom.data.pairs.multilingual import MultilingualLoader
from transom.data.pairs.pairs import Pairs
from transom.data.reports import findings
from transom.data.reports.report import DataReport
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.files.message import joined, phrase

_OUTLIER_RATIO = 3.0
_OUTLIER_TOKENS = 5


def report_languages(
    splits: Mapping[str | None, Splits[Pairs]],
    tokenizers: Tokenizers,
    loaders: Mapping[str | None, PairLoader],
    mixture: MultilingualLoader | None,
) -> DataReport:
    """Examine the sentence pairs of a run with one or several target languages and return a data report.

    The keys of the statistics are those of ``report_pairs``. With several target languages, the report covers each language separately.

    Args:
        splits: pairs of all splits, by the tag of the target language. The tag is None if there is only one target language.
        tokenizers: tokenizers of source and target.
        loaders: loader of the training pairs of each target language, by the language's tag.
        mixture: loader that mixes the languages. None if there is only one target language.
    """
    reports = {to: report_pairs(splits[to], tokenizers, loader) for to, loader in loaders.items()}
    if mixture is None:
        return reports[None]
    statistics: dict[str, Any] = {
        "pairs": {},
        "tokens": {},
        "longest": [],
        "dropped": {},
        "unseen": {},
        "padding_waste": mixture.padding_waste,
    }
    for to, report in reports.items():
        for name in ("pairs", "tokens", "dropped", "unseen"):
            statistics[name] |= {f"{to} {key}": value for key, value in report.statistics[name].items()}
        statistics["pairs"][f"{to} train"]["samples per epoch"] = mixture.samples_per_epoch[str(to)]
        statistics["longest"] += [{"to": to, **pair} for pair in report.statistics["longest"]]
    problems = [joined(" ", [str(to), problem]) for to, report in reports.items() for problem in report.problems]
    return _report(problems, statistics, [joined(" ", [str(to), note]) for to, report in reports.items() for note in report.notes])


def _report(problems: list[str], statistics: dict[str, Any], notes: list[str]) -> DataReport:
    longest = ", ".join(
        f"{pair.get('to', '')} {pair['line']:,} ({max(pair['source_tokens'], pair['target_tokens'])} tokens)".strip()
        for pair in statistics["longest"]
    )
    lines = [
        *findings.summarize_sizes(
            statistics["pairs"], "pair", lambda name: findings.format_token_lengths(statistics["tokens"], name, ("source", "target"))
        ),
        f"longest training lines: {longest}",
        *(f"dropped from training: {n:,} {reason}" for reason, n in statistics["dropped"].items()),
        f"padding: {statistics['padding_waste']:.1%} of the tokens in the first epoch's batches",
    ]
    return DataReport(problems, statistics, lines, notes)


def report_pairs(splits: Splits[Pairs], tokenizers: Tokenizers, loader: PairLoader) -> DataReport:
    """Examine the sentence pairs of a run with one target language and return a data report.

    Args:
        splits: pairs of all splits.
        tokenizers: tokenizers of source and target.
        loader: loader of the training pairs.

    Returns:
        A report with these statistics:

        - ``pairs``: size, origin, number of duplicates and number of different sources of each split. For splits other than training, also
          the numbers of pairs and of sources that occur in the training data.
        - ``tokens``: distribution of the lengths of sources and of targets of each split, in tokens. Of the special tokens, only the tag of
          the target language is included.
        - ``longest``: line numbers and lengths of the longest training pairs.
        - ``dropped``: number of dropped training pairs by the reason for dropping them.
        - ``unseen``: symbols in the sources and targets of each split other than training that are absent from the training data.
        - ``padding_waste``: fraction of padding among the source and target tokens of the first epoch.
    """
    train, keys = splits.train, {name: list(zip(part.source, part.target, strict=True)) for name, part in splits.parts.items()}
    problems = [_lines_of(loader.pairs, samples, _dropped("train", reason)) for reason, samples in loader.dropped.items()]
    if found := findings.duplicate_indices(keys["train"]):
        equal = phrase("data.equal", "{name}: equal to an earlier pair", name=findings.split_name("train"))
        problems.append(_lines_of(train, found, equal))
    problems += _outliers(train, *loader.lengths)
    pairs: dict[str, findings.SplitStatistics] = {
        name: {**statistics, "different sources": len(set(part.source))}
        for (name, part), statistics in zip(splits.parts.items(), findings.split_sizes(splits.parts, keys, "pair").values(), strict=True)
    }
    tokens, unseen = _distributions("train", *loader.lengths), dict[str, findings.SplitStatistics]()
    known, sources, seen = set(keys["train"]), set(train.source), loader.seen_tokens()
    for name, other in list(splits.parts.items())[1:]:
        n_overlapping = sum(pair in known for pair in keys[name])
        pairs[name] |= {"also in training": n_overlapping, "sources also in training": sum(source in sources for source in other.source)}
        if n_overlapping:
            problems.append(
                phrase(
                    "data.overlap_of_pairs",
                    "{name}: {number} {total} also in training, so its scores are too optimistic",
                    name=findings.split_name(name),
                    number=n_overlapping,
                    total=findings.out_of(len(other), "pair"),
                )
            )
        rows = encode(tokenizers.source, other.source, loader.source_prefix), encode(tokenizers.target, other.target)
        lengths = [sequence_lengths(side) for side in rows]
        tokens |= _distributions(name, *lengths)
        too_long = np.flatnonzero(np.maximum(*lengths) + loader.n_added > loader.max_seq_len).tolist()
        if too_long:
            problems.append(_lines_of(other, too_long, _dropped(name, longer_than(loader.max_seq_len))))
        unseen[f"{name} source"] = findings.unseen_symbols(tokenizers.source, rows[0], seen[0])
        unseen[f"{name} target"] = findings.unseen_symbols(tokenizers.target, rows[1], seen[1])
    problems += findings.unseen_problems(unseen)
    statistics = {
        "pairs": pairs,
        "tokens": tokens,
        "longest": _longest(train, *loader.lengths),
        "dropped": loader.n_dropped,
        "unseen": unseen,
    }
    return _report(problems, {**statistics, "padding_waste": loader.padding_waste}, findings.reading_notes(splits.parts))


def _distributions(name: str, source: Indices, target: Indices) -> dict[str, findings.Distribution]:
    return {f"{name} {side}": findings.length_distribution(lengths) for side, lengths in (("source", source), ("target", target))}


def _longest(pairs: Pairs, source: Indices, target: Indices) -> list[dict[str, int]]:
    order = np.argsort(-np.maximum(source, target), kind="stable")[: findings.MAX_EXAMPLES].tolist()
    return [{"line": pairs.line_number(i), "source_tokens": int(source[i]), "target_tokens": int(target[i])} for i in order]


def _outliers(pairs: Pairs, source: Indices, target: Indices) -> list[str]:
    """Return a message about pairs whose length ratio is far from the median length ratio, if there are any.

    The two sides of such pairs are often not translations of each other.

    Args:
        pairs: training pairs.
        source: number of source tokens of each pair.
        target: number of target tokens of each pair.
    """
    both = (source > 0) & (target > 0)
    logs = np.log(np.maximum(target, 1) / np.maximum(source, 1))
    usual = float(np.median(logs[both])) if both.any() else 0.0
    odd = both & (np.abs(logs - usual) > np.log(_OUTLIER_RATIO)) & (np.abs(target - source * np.exp(usual)) >= _OUTLIER_TOKENS)
    samples = np.flatnonzero(odd)
    samples = samples[np.argsort(-np.abs(logs - usual)[samples], kind="stable")].tolist()
    what = phrase(
        "data.outliers",
        "{name}: length ratio more than {factor} times above or below the median",
        name=findings.split_name("train"),
        factor=f"{_OUTLIER_RATIO:g}",
    )
    return [_lines_of(pairs, samples, what)] if samples else []


def _lines_of(pairs: Pairs, samples: Sequence[int], what: str) -> str:
    return phrase(
        "data.lines",
        {"one": "{what}: {n} {total}, line {lines}", "other": "{what}: {n} {total}, lines {lines}"},
        what=what,
        n=len(samples),
        total=findings.out_of(len(pairs), "pair"),
        lines=findings.first_examples([pairs.line_number(sample) for sample in samples]),
    )


def _dropped(name: str, reason: str) -> str:
    return phrase("data.dropped", "{name}: dropped ({reason})", name=findings.split_name(name), reason=reason)
