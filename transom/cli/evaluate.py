"""``transom evaluate``: translate a test set and compute BLEU, chrF and exact match."""

from pathlib import Path
from typing import Annotated, Any

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import (
    BeamSizeOption,
    DecodingPrecisionOption,
    LengthPenaltyOption,
    PairFiles,
    RunArgument,
    TargetLanguageOption,
    TranslateTooLong,
    expand_options,
)
from transom.cli.output import JsonOption, align_columns, print_result, select_options

EXAMPLES = """
transom evaluate runs/en-de --source test.en --target test.de
transom evaluate runs/en-de --source test.en --target test.de --output translations.de --json
transom evaluate runs/en-de --source test.en --target test.de --tokenized de
transom evaluate runs/en-de --pairs test.csv --source-field english --target-field german
transom evaluate runs/joint --to fr --source test.en --target test.fr
"""

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def evaluate(
    run: RunArgument,
    files: PairFiles,
    to: TargetLanguageOption = None,
    output_file: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Also write the translations to this file.")] = None,
    tokenized: Annotated[
        str | None,
        typer.Option(
            "--tokenized",
            metavar="LANGUAGE",
            help="Also compute lower-cased BLEU on Moses tokens of this language, such as de (Wu et al. 2021).",
        ),
    ] = None,
    beam_size: BeamSizeOption = None,
    length_penalty: LengthPenaltyOption = None,
    too_long: TranslateTooLong = "split",
    precision: DecodingPrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print BLEU, chrF and exact match of the translations, with sacreBLEU signatures, and BLEU by length of the reference.

    Every access to a test set is recorded in the run folder. Select models on validation data, and evaluate only the selected model on
    test data.
    """
    parameters = {**locals()}
    files.check()
    with gc_frozen_imports():
        from transom.cli.evaluation_data import read_test_set, translate_test_set
        from transom.decoding.predictors.translator import TranslateOptions, Translator
        from transom.files.atomic_io import write_file
        from transom.tasks.load import load
        from transom.training import translation_metrics

    if tokenized is not None:
        translation_metrics.moses_normalizer(tokenized)  # rejects unsupported languages before the test set is read and logged
    check_output_path(output_file, [run, *files.paths])
    translator = load(run, precision, kind=Translator)
    translator.tokenizers.source.language_prefix(to)  # checks `to` before the test set is read and logged
    test_set = read_test_set([run], files, "evaluate")
    options = {**select_options(parameters, TranslateOptions), "name": str(files.paths[0])}
    translations, n_too_long = translate_test_set(translator, test_set.source, "sentences", as_json, **options)
    if output_file is not None:
        write_file(output_file, "".join(f"{line}\n" for line in translations).encode())
    scores = {
        "bleu": translation_metrics.bleu(translations, test_set.target),
        "bleu_lc": translation_metrics.bleu(translations, test_set.target, lowercase=True),
        "chrf": translation_metrics.chrf(translations, test_set.target),
    }
    if tokenized is not None:
        scores["bleu_tokenized_lc"] = translation_metrics.wu2021_bleu(translations, test_set.target, tokenized)
    exact = translation_metrics.exact_match(translations, test_set.target)
    buckets = translation_metrics.bleu_by_length(translations, test_set.target, lowercase=True)
    value = {
        "run": str(run),
        **({} if to is None else {"to": to}),
        "sentences": len(test_set),
        "n_too_long": n_too_long,
        **{name: {"score": score.value, "signature": score.signature} for name, score in scores.items()},
        "exact_match": exact,
        "bleu_lc_by_length": [bucket._asdict() for bucket in buckets],
    }
    print_result(value, as_json, _format_lines(scores, exact, buckets, len(test_set)))


def _format_lines(scores: dict[str, Any], exact: float, buckets: list[Any], n_sentences: int) -> list[str]:
    rows = [
        ["metric", "score"],
        *([name, f"{score.value:.2f}"] for name, score in scores.items()),
        ["exact match", f"{100 * exact:.2f}%"],
    ]
    lengths = [["reference words", "sentences", "bleu_lc"]]
    for bucket in buckets:
        end = f"to {bucket.max_words}" if bucket.max_words is not None else "or more"
        lengths.append([f"{bucket.min_words} {end}", f"{bucket.n_sentences:,}", f"{bucket.bleu:.2f}"])
    signatures = [f"{name}: {score.signature}" for name, score in scores.items()]
    return [f"{n_sentences:,} sentences", "", *align_columns(rows), "", *align_columns(lengths), "", *signatures]
