"""``transom evaluate``: translate a test set or answer its prompts, and score the results against the references."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.edits import EditOption, edits_in_force
from transom.cli.evaluate_answers import InstructionFiles
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import (
    BeamSizeOption,
    EvaluateTooLong,
    InferencePrecisionOption,
    LengthPenaltyOption,
    PairFiles,
    RunArgument,
    TargetLanguageOption,
    expand_options,
    given_options,
    reject_options,
    too_long_policy,
)
from transom.cli.output import JsonOption, align_columns, print_result
from transom.cli.sampling import SamplingOptions, SeedOption, TemperatureOption
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.decoding.predictors.translator import Translator

EXAMPLES = """
transom evaluate runs/en-de --source test.en --target test.de
transom evaluate runs/en-de --source test.en --target test.de --output translations.de --json
transom evaluate runs/en-de --source test.en --target test.de --tokenized de
transom evaluate runs/en-de --pairs test.csv --source-field english --target-field german
transom evaluate runs/en-de --edit without-head-2.json --source test.en --target test.de
transom evaluate runs/joint --to fr --source test.en --target test.fr
transom evaluate runs/assistant --instructions test.jsonl
transom evaluate runs/assistant --instructions test.csv --prompt-field question --output answers.jsonl
"""

TokenizedOption = Annotated[
    str | None,
    typer.Option(
        "--tokenized",
        metavar="LANGUAGE",
        help="Also compute lower-cased BLEU on Moses tokens of this language, such as de (Wu et al. 2021).",
    ),
]

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def evaluate(
    run: RunArgument,
    files: PairFiles,
    instructions: InstructionFiles,
    to: TargetLanguageOption = None,
    output_file: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Also write the translations to this file, one per line, or the answers, as JSON lines."
        ),
    ] = None,
    tokenized: TokenizedOption = None,
    beam_size: BeamSizeOption = None,
    length_penalty: LengthPenaltyOption = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens per answer. Default: decoding.max_new_tokens of the recipe.")
    ] = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    too_long: EvaluateTooLong = None,
    edit: EditOption = None,
    precision: InferencePrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """For a translator, print BLEU, chrF and exact match of translations, with sacreBLEU signatures, and BLEU by length of the reference.

    For an instruction-tuned model, print exact match and chrF of the answers, and up to ten wrong answers. Answers are decoded greedily
    unless --temperature is given. Options that are not given default to the decoding settings of the run's recipe.

    Every access to a test set is recorded in the run folder. Select models on validation data, and evaluate only the selected model on
    test data.
    """
    if files.paths and instructions.instructions is not None:
        raise ConfigError("expected --source and --target (or --pairs), or --instructions, found both; give one of them")
    if files.paths:
        files.check()
    with gc_frozen_imports():
        from transom.cli.evaluate_answers import evaluate_answers
        from transom.decoding.predictors.generator import Generator
        from transom.decoding.predictors.translator import Translator
        from transom.tasks.load import load_with_task, wrong_task_error
        from transom.training import translation_metrics

    if tokenized is not None:
        translation_metrics.moses_normalizer(tokenized)  # rejects unsupported languages before the test set is read and logged
    check_output_path(output_file, [run, *files.paths, instructions.instructions])
    predictor, recipe = load_with_task(run, precision)
    of_search = {"--to": to, "--tokenized": tokenized, "--beam-size": beam_size, "--length-penalty": length_penalty}
    sampling = SamplingOptions(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    if isinstance(predictor, Translator):
        treatment = too_long_policy(too_long, ("split", "refuse"), "a translator")
        reject_options({**given_options(instructions), **given_options(sampling)}, "an instruction-tuned model", "a translator")
        files.check()
        options = {"to": to, "beam_size": beam_size, "length_penalty": length_penalty, "too_long": treatment}
        with edits_in_force(predictor, edit, precision, decodes=True):
            _evaluate_translations(predictor, run, files, options, output_file, tokenized, as_json)
    elif isinstance(predictor, Generator) and predictor.instruction_tuned:
        treatment = too_long_policy(too_long, ("window", "refuse"), "an instruction-tuned model")
        instructions.check(run, files)
        reject_options({**of_search, **given_options(files), "--header": None}, "a translator", "an instruction-tuned model")
        with edits_in_force(predictor, edit, precision, decodes=True):
            evaluate_answers(predictor, run, instructions, files.header, sampling, treatment, output_file, as_json)
    else:
        raise wrong_task_error(run, "evaluate", recipe)


def _evaluate_translations(
    translator: "Translator",
    run: Path,
    files: PairFiles,
    options: dict[str, Any],
    output_file: Path | None,
    tokenized: str | None,
    as_json: bool,
) -> None:
    """Translate a test set, and print the scores of the translations."""
    from transom.cli.evaluation_data import read_test_set, translate_test_set
    from transom.files.atomic_io import write_file
    from transom.training import translation_metrics

    to = options["to"]
    translator.tokenizers.source.language_prefix(to)  # checks `to` before the test set is read and logged
    test_set = read_test_set([run], files, "evaluate")
    translations, n_too_long = translate_test_set(*(translator, test_set.source, "sentences", as_json), **options, name=str(files.paths[0]))
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
