"""``transom compare``: paired bootstrap test of two translation models."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import (
    PairFiles,
    TargetLanguageOption,
    TranslateTooLong,
    expand_options,
)
from transom.cli.output import JsonOption, align_columns, print_result

EXAMPLES = """
transom compare runs/a runs/b --source test.en --target test.de
transom compare runs/en-de runs/joint --to de --source test.en --target test.de
transom compare runs/a runs/b --source test.en --target test.de --resamples 10000 --seed 7 --json
"""

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def compare(
    a: Annotated[Path, typer.Argument(metavar="RUN_A", help="Run folder of the first model.")],
    b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Run folder of the second model.")],
    files: PairFiles,
    to: TargetLanguageOption = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Compute BLEU on lower-cased text.")] = False,
    samples: Annotated[int, typer.Option("--resamples", min=1, max=1_000_000, help="Number of bootstrap samples of the test set.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of the resampling.")] = 12345,
    too_long: TranslateTooLong = "split",
    as_json: JsonOption = False,
) -> None:
    """Print the BLEU of each model and their difference with 95% confidence intervals, and the p-value of the difference (Koehn 2004).

    Each model decodes with the settings of its own recipe. --to applies only to multilingual models.
    """
    files.check()
    with gc_frozen_imports():
        from transom.cli.evaluation_data import read_test_set, translate_test_set
        from transom.decoding.predictors.translator import Translator
        from transom.tasks.load import load
        from transom.training.translation_metrics import paired_bootstrap as bootstrap

    translators = {run: load(run, kind=Translator) for run in (a, b)}
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
    result = bootstrap(translations[a].lines, translations[b].lines, test_set.target, lowercase=lowercase, n_samples=samples, seed=seed)
    counts = {"a_n_too_long": translations[a].n_too_long, "b_n_too_long": translations[b].n_too_long}
    print_result({"a_run": str(a), "b_run": str(b), **asdict(result), **counts}, as_json, _format_lines(a, b, result))


def _format_lines(a: Path, b: Path, result: Any) -> list[str]:
    rows = [["", "BLEU", "95% interval"]]
    for name, value, (low, high) in (
        (str(a), result.a, result.a_interval),
        (str(b), result.b, result.b_interval),
        ("difference", result.difference, result.difference_interval),
    ):
        rows.append([name, f"{value:.2f}", f"{low:.2f} to {high:.2f}"])
    better = f"{b if result.difference > 0 else a} is better"
    verdict = better if result.difference and result.p_value < 0.05 else "no significant difference"
    return [
        *align_columns(rows),
        "",
        f"p = {result.p_value:.4f}: {verdict}",
        f"{result.n_samples:,} resamples, seed {result.seed}; {result.signature}",
    ]
