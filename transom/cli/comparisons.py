"""The comparisons of ``transom compare``: two translators, two language models or two classifiers on the same test data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from transom.cli.evaluation_data import read_labeled_data, read_test_set, record_access, translate_test_set
from transom.cli.options import TRUNCATED_NOTE, WINDOWS_NOTE, PairFiles, TextFileOptions
from transom.cli.output import align_columns, note_too_long, print_note, print_result
from transom.data.text.documents import list_files, read_documents, split_parts
from transom.decoding.predictors.generator import Generator
from transom.decoding.predictors.likelihood import TextScore
from transom.decoding.predictors.text_scoring import score_parts
from transom.decoding.predictors.translator import Translator
from transom.errors import DataError
from transom.tasks.classification.command import MultiLabelClassifyCommand
from transom.tasks.load import build_for, load_with_task, wrong_task_error
from transom.tasks.progress import show_progress
from transom.training.significance import PairedComparison, compare_ratios, exact_mcnemar
from transom.training.translation_metrics import paired_bootstrap

MIN_UNITS = 30
"""Minimum number of documents, or else of paragraphs, or else of lines, that a bootstrap resamples."""

MAX_P_VALUE = 0.05
"""A difference is significant if its p-value is smaller."""

UNITS: dict[str, tuple[Literal["paragraph", "line"], ...]] = {"file": ("paragraph", "line"), "paragraph": ("line",), "line": ()}
"""Smaller units by the unit of text that forms a document (``--document``)."""


class Runs(NamedTuple):
    """Two runs, and the object of each that the comparison uses: a ``Translator``, ``Generator`` or ``ClassifyCommand``."""

    a: Path
    b: Path
    models: Mapping[Path, Any]


def load_kind(run: Path) -> tuple[str, Any]:
    """Load a run, and return the kind of its model for messages, and the object that the comparison uses.

    Raises:
        CheckpointError: the folder contains no intact run.
        ConfigError: runs of this task cannot be compared.
    """
    predictor, recipe = load_with_task(run)
    if isinstance(predictor, Translator):
        return "a translator", predictor
    if isinstance(predictor, Generator):
        return "a language model", predictor
    if (classifier := build_for("classify", predictor, recipe)) is None:
        raise wrong_task_error(run, "compare", recipe)
    several = ", with any number of labels each" if isinstance(classifier, MultiLabelClassifyCommand) else ""
    return f"a classifier of {classifier.NOUN}{several}", classifier


def compare_translators(
    runs: Runs, files: PairFiles, to: str | None, lowercase: bool, too_long: Any, n_samples: int, seed: int, as_json: bool
) -> None:
    """Translate a test set with both models, and print the BLEU of each and the paired bootstrap test of the difference."""
    a, b, translators = runs
    multilingual = [translator for translator in translators.values() if translator.tokenizers.source.tags]
    for translator in multilingual or translators.values():
        translator.tokenizers.source.language_prefix(to)  # checks `to` before the test set is read and logged
    test_set = read_test_set([a, b], files, "compare")
    translations = {
        run: translate_test_set(
            *(translator, test_set.source, f"sentences by {run}", as_json),
            to=to if translator in multilingual else None,
            too_long=too_long,
            name=str(files.paths[0]),
        )
        for run, translator in translators.items()
    }
    result = paired_bootstrap(
        translations[a].lines, translations[b].lines, test_set.target, lowercase=lowercase, n_samples=n_samples, seed=seed
    )
    counts = {"a_n_too_long": translations[a].n_too_long, "b_n_too_long": translations[b].n_too_long}
    value = {"a_run": str(a), "b_run": str(b), "metric": "bleu", **asdict(result), **counts}
    settings = f"{result.n_samples:,} resamples, seed {result.seed}; {result.signature}"
    print_result(value, as_json, [*_bootstrap_lines(runs, "BLEU", result, 2, higher_is_better=True), settings])


def compare_language_models(runs: Runs, options: TextFileOptions, too_long: Any, n_samples: int, seed: int, as_json: bool) -> None:
    """Score texts with both models, and print the bits per byte of each and the paired bootstrap test of the difference.

    The bootstrap resamples documents. If there are fewer than ``MIN_UNITS``, it resamples paragraphs or lines, which are still scored with
    the text before them as context.
    """
    a, b, generators = runs
    files = options.config()
    documents = read_documents(files, Path.cwd())
    unit, parts = _split_units(documents.texts, options.document or "file", documents.name)
    record_access([a, b], list_files(files, Path.cwd()), "compare", is_part=files.start > 0)
    scores = dict[Path, list[TextScore]]()
    n_too_long = dict[Path, int]()
    for run, generator in generators.items():
        with show_progress(f"tokens by {run}", as_json) as notify:
            overlap = options.overlap or 0
            found = score_parts(generator.model, generator.tokenizer, parts, overlap, name=documents.name, too_long=too_long, notify=notify)
        scores[run], n_too_long[run] = [each for of_text in found for each in of_text], sum(of_text[0].windows > 1 for of_text in found)
    bits = {run: [-each.log_p / math.log(2) for each in of_run] for run, of_run in scores.items()}
    sizes = [each.n_bytes for each in scores[a]]
    result = compare_ratios(bits[a], bits[b], sizes, n_samples, seed)
    unknown = {run: sum(each.n_unknown for each in of_run) for run, of_run in scores.items()}
    value = {
        "a_run": str(a),
        "b_run": str(b),
        "metric": "bits_per_byte",
        **asdict(result),
        "unit": unit,
        "n_units": len(sizes),
        "n_texts": len(parts),
        "n_bytes": sum(sizes),
        "a_n_too_long": n_too_long[a],
        "b_n_too_long": n_too_long[b],
        "a_n_unknown": unknown[a],
        "b_n_unknown": unknown[b],
    }
    texts = f"{len(parts):,} {_plural(options.document or 'file')} with {sum(sizes):,} bytes"
    settings = f"{n_samples:,} resamples of {len(sizes):,} {unit}, seed {seed}; {texts}"
    print_result(value, as_json, [*_bootstrap_lines(runs, "bits per byte (lower is better)", result, 4, higher_is_better=False), settings])
    if not as_json:
        _note_limits_of_texts(runs, n_too_long, len(parts), unknown)


def _note_limits_of_texts(runs: Runs, n_too_long: Mapping[Path, int], n: int, unknown: Mapping[Path, int]) -> None:
    """Print notes on long texts, and on what makes bits per byte incomparable."""
    for run, generator in runs.models.items():
        note_too_long(n_too_long[run], n, f"texts by {run}", generator.model.config.max_seq_len - 1, WINDOWS_NOTE)
        if unknown[run]:
            print_note(
                f"warning: {run}: {unknown[run]:,} tokens are out of vocabulary and were scored as the unknown token, so its bits per byte"
                " are underestimated"
            )
    if len({generator.tokenizer.lowercase for generator in runs.models.values()}) > 1:
        print_note("warning: one of the models reads lower-cased text, which needs fewer bits, so the bits per byte are not comparable")


def compare_classifiers(runs: Runs, data: Path, columns: Mapping[str, Any], too_long: Any, as_json: bool) -> None:
    """Classify labeled data with both models, and print the accuracy of each and McNemar's exact test of the difference."""
    a, b, classifiers = runs
    noun, max_tokens = classifiers[a].NOUN, {run: classifier.max_tokens for run, classifier in classifiers.items()}
    known = read_labeled_data([a, b], classifiers[a], data, columns, "compare")
    metrics = dict[Path, Any]()
    for run, classifier in classifiers.items():
        if max_tokens[run] is None and run != a:  # the input size of the model determines how its data are read
            known = classifier.labeled_data(data, {})
        with show_progress(f"{noun} by {run}", as_json) as notify:
            metrics[run] = classifier.score(known, too_long, notify)
    pairs = list(zip(metrics[a].right, metrics[b].right, strict=True))
    n, right = len(pairs), {run: 100 * sum(metrics[run].right) / len(pairs) for run in metrics}
    only_a, only_b = sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs)
    p_value = exact_mcnemar(only_a, only_b)
    value = {
        "a_run": str(a),
        "b_run": str(b),
        "metric": "accuracy",
        "a": right[a],
        "b": right[b],
        "difference": right[b] - right[a],
        "p_value": p_value,
        "n": n,
        "n_only_a_right": only_a,
        "n_only_b_right": only_b,
        "a_n_too_long": metrics[a].n_too_long,
        "b_n_too_long": metrics[b].n_too_long,
    }
    rows = [["", "accuracy", "only this run is right"]]
    rows += [[str(run), f"{right[run]:.2f}%", f"{n_only:,}"] for run, n_only in ((a, only_a), (b, only_b))]
    lines = [*align_columns([*rows, ["difference", f"{right[b] - right[a]:.2f}", ""]]), ""]
    print_result(value, as_json, [*lines, _verdict(runs, only_b - only_a, p_value), f"McNemar's exact test on {n:,} {noun}"])
    for run in () if as_json else metrics:
        if (limit := max_tokens[run]) is not None:
            treatment = TRUNCATED_NOTE if too_long == "truncate" else WINDOWS_NOTE
            note_too_long(metrics[run].n_too_long, n, f"{noun} by {run}", limit, treatment, metrics[run].n_dropped_tokens)


def _split_units(texts: Sequence[str], document: str, name: str) -> tuple[str, list[list[str]]]:
    """Return the plural name of the largest unit with at least ``MIN_UNITS`` of it, and the units of each text.

    Raises:
        DataError: there are too few units of every kind.
    """
    parts, unit = [[text] for text in texts], document
    for smaller in UNITS[document]:
        if sum(map(len, parts)) >= MIN_UNITS:
            break
        parts, unit = [split_parts(text, smaller) for text in texts], smaller
    if (n := sum(map(len, parts))) < MIN_UNITS:
        raise DataError(f"{name}: expected at least {MIN_UNITS} {_plural(unit)} to resample, found {n}; give more text")
    return _plural(unit), parts


def _plural(unit: str) -> str:
    return "documents" if unit == "file" else f"{unit}s"


def _bootstrap_lines(runs: Runs, metric: str, result: PairedComparison, n_digits: int, higher_is_better: bool) -> list[str]:
    """Format a metric with its intervals as a table, and the p-value below it."""
    rows = [["", metric, "95% interval"]]
    for name, value, (low, high) in (
        (str(runs.a), result.a, result.a_interval),
        (str(runs.b), result.b, result.b_interval),
        ("difference", result.difference, result.difference_interval),
    ):
        rows.append([name, f"{value:.{n_digits}f}", f"{low:.{n_digits}f} to {high:.{n_digits}f}"])
    advantage = result.difference if higher_is_better else -result.difference
    return [*align_columns(rows), "", _verdict(runs, advantage, result.p_value)]


def _verdict(runs: Runs, advantage: float, p_value: float) -> str:
    """State whether the difference is significant; ``advantage`` is positive if the second run is better."""
    better = f"{runs.b if advantage > 0 else runs.a} is better"
    return f"p = {p_value:.4f}: {better if advantage and p_value < MAX_P_VALUE else 'no significant difference'}"
