"""Compare the BLEU of two runs by sentence length, for example a recurrent model with a Transformer.

    python -m benchmarks.by_length runs/lstm runs/en-de --source test.en --target test.de [--edges 5 10 15 20 30] [--results FILE]

Sentences are grouped by the number of words of the source. Each group, and the whole test set, has the BLEU of both runs with 95%
confidence intervals, their difference and its p-value, from a paired bootstrap (Koehn 2004). BLEU is lowercased if either model is
uncased. The access log of both runs records that the test set was read.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import describe_environment
from transom.cli.evaluation_data import read_test_set
from transom.cli.options import PairFiles
from transom.data.pairs.pairs import Pairs
from transom.decoding.predictors.translator import Translator
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads
from transom.tasks.load import load
from transom.training.translation_metrics import LENGTH_BUCKETS, BootstrapComparison, paired_bootstrap


def length_buckets(sources: Sequence[str], edges: Sequence[int]) -> dict[str, list[int]]:
    """Group sentences by their number of words; return the indices of each bucket, without empty buckets.

    >>> length_buckets(["a", "a b c", "a b", "a b c d e"], [1, 3])
    {'1 to 1': [0], '2 to 3': [1, 2], '4 and more': [3]}
    """
    bucket_of = np.searchsorted(edges, [len(source.split()) for source in sources])
    first = [1, *(edge + 1 for edge in edges)]
    names = [*(f"{start} to {end}" for start, end in zip(first, edges, strict=False)), f"{first[-1]} and more"]
    buckets = {name: np.flatnonzero(bucket_of == bucket).tolist() for bucket, name in enumerate(names)}
    return {name: rows for name, rows in buckets.items() if rows}


def compare_by_length(
    a: Sequence[str], b: Sequence[str], pairs: Pairs, edges: Sequence[int], lowercase: bool
) -> dict[str, tuple[int, BootstrapComparison]]:
    """Compare two systems' translations per bucket and over all sentences; return (number of sentences, comparison) of each."""

    def compare(rows: Sequence[int]) -> tuple[int, BootstrapComparison]:
        chosen = ([sentences[i] for i in rows] for sentences in (a, b, pairs.target))
        return len(rows), paired_bootstrap(*chosen, lowercase=lowercase)

    buckets = length_buckets(pairs.source, edges) | {"all": list(range(len(pairs.source)))}
    return {name: compare(rows) for name, rows in buckets.items()}


def format_table(comparisons: dict[str, tuple[int, BootstrapComparison]]) -> list[str]:
    """Format the comparisons as the lines of a table."""
    head = f"{'words':>12}  {'sentences':>9}  {'A':>20}  {'B':>20}  {'B - A':>21}  p"
    rows = []
    for name, (n, c) in comparisons.items():
        a, b = (f"{x:6.2f} ({low:5.2f} {high:5.2f})" for x, (low, high) in ((c.a, c.a_interval), (c.b, c.b_interval)))
        low, high = c.difference_interval
        rows.append(f"{name:>12}  {n:>9,}  {a:>20}  {b:>20}  {c.difference:+6.2f} ({low:+.2f} {high:+.2f})  {c.p_value:.3f}")
    return [head, *rows]


def main(arguments: list[str] | None = None) -> None:
    """Translate with both runs, print the comparison, and write it to ``--results`` if given."""
    args = _parser().parse_args(arguments)
    edges = sorted(set(args.edges))
    pairs = read_test_set([args.a, args.b], PairFiles(args.source, args.target), "by_length")
    translators = [load(run, kind=Translator) for run in (args.a, args.b)]
    lowercase = any(translator.tokenizers.target.lowercase for translator in translators)
    a, b = (translator.translate(pairs.source) for translator in translators)
    comparisons = compare_by_length(a, b, pairs, edges, lowercase)
    print("\n".join([f"A: {args.a}", f"B: {args.b}", *format_table(comparisons), comparisons["all"][1].signature]))
    if args.results is not None:
        command = "python -m benchmarks.by_length " + " ".join(arguments or sys.argv[1:])
        record: dict[str, Any] = {"a": str(args.a), "b": str(args.b), "source": str(args.source), "target": str(args.target)}
        record["words"] = {name: {"sentences": n, **vars(comparison)} for name, (n, comparison) in comparisons.items()}
        record["facts"] = describe_environment(command, choose_threads().count, measure_peak())
        args.results.parent.mkdir(parents=True, exist_ok=True)
        args.results.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.by_length", description=__doc__, formatter_class=form)
    parser.add_argument("a", type=Path, help="first run folder")
    parser.add_argument("b", type=Path, help="second run folder")
    parser.add_argument("--source", type=Path, required=True, help="source sentences, one per line")
    parser.add_argument("--target", type=Path, required=True, help="reference translations, one per line")
    parser.add_argument("--edges", type=int, nargs="+", default=list(LENGTH_BUCKETS), help="maximum number of words of each bucket")
    parser.add_argument("--results", type=Path, help="JSON file to write the comparison to")
    return parser


if __name__ == "__main__":
    main()
