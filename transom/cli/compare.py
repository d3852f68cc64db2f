"""``transom compare``: test whether two runs of the same kind differ significantly on test data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import (
    CompareTooLong,
    LabeledColumns,
    PairFiles,
    SecondFieldOption,
    TargetLanguageOption,
    TextFileOptions,
    column_option,
    expand_options,
    reject_options,
    too_long_policy,
)
from transom.cli.output import JsonOption
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.cli.comparisons import Runs

EXAMPLES = """
transom compare runs/a runs/b --source test.en --target test.de
transom compare runs/en-de runs/joint --to de --source test.en --target test.de
transom compare runs/a runs/b --source test.en --target test.de --resamples 10000 --seed 7 --json
transom compare runs/notes runs/large --text test --suffix .md
transom compare runs/reviews runs/tuned --labeled-data test.tsv
"""

PAIRS, TEXT, LABELED_DATA = "--source and --target (or --pairs)", "--text", "--labeled-data"
N_RESAMPLES, SEED = 1000, 12345

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def compare(
    a: Annotated[Path, typer.Argument(metavar="RUN_A", help="Run folder of the first model.")],
    b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Run folder of the second model.")],
    files: PairFiles,
    text_files: TextFileOptions,
    labeled_data: Annotated[
        Path | None, typer.Option("--labeled-data", metavar="PATH", help="Labeled data to compare classifiers on, as for transom classify.")
    ] = None,
    second_field: SecondFieldOption = None,
    label_field: Annotated[str | None, column_option("label", "class")] = None,
    to: TargetLanguageOption = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Compute BLEU on lower-cased text.")] = False,
    samples: Annotated[
        int | None,
        typer.Option("--resamples", min=1, max=1_000_000, help=f"Number of bootstrap samples of the test set. Default: {N_RESAMPLES}."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help=f"Random seed of the resampling. Default: {SEED}.")] = None,
    too_long: CompareTooLong = None,
    as_json: JsonOption = False,
) -> None:
    """Print a metric of each run, the difference and its p-value: which of two systems is better?

    transom diff compares two models number by number instead, and names the first site of the pass where they part.

    Translators (--source and --target): BLEU, with 95% confidence intervals by paired bootstrap over the sentences (Koehn 2004). Each model
    decodes with the settings of its own recipe. --to applies only to multilingual models.

    Language models (--text): bits per byte, which are comparable between tokenizers, with 95% confidence intervals by paired bootstrap over
    the documents. If there are fewer than 30, paragraphs or else lines are resampled, each scored with the text before it as context.

    Classifiers (--labeled-data): accuracy, with McNemar's exact test.
    """
    given = [flag for flag, value in ((PAIRS, files.paths), (TEXT, text_files.text), (LABELED_DATA, labeled_data)) if value]
    if len(given) > 1:
        raise ConfigError(f"expected {PAIRS}, {TEXT} or {LABELED_DATA}, found {' and '.join(given)}; give one of them")
    if files.paths:
        files.check()
    with gc_frozen_imports():
        from transom.cli import comparisons

    kind, runs = _load_runs(a, b)
    needed = {"a translator": PAIRS, "a language model": TEXT}.get(kind, LABELED_DATA)
    if given != [needed]:
        raise ConfigError(f"{a}: expected {needed} for {kind}, found {given[0] if given else 'no test data'}; give {needed}")
    of_pairs = {"--to": to, "--lowercase": lowercase or None, "--source-field": files.source_field, "--target-field": files.target_field}
    of_texts = {f"--{name}": getattr(text_files, name) for name in ("suffix", "document", "start", "overlap")}
    for options, data in (
        (of_pairs, (PAIRS,)),
        (of_texts, (TEXT,)),
        ({"--second-field": second_field, "--label-field": label_field}, (LABELED_DATA,)),
        ({"--text-field": text_files.text_field}, (TEXT, LABELED_DATA)),
        ({"--header": files.header}, (PAIRS, LABELED_DATA)),
        ({"--resamples": samples, "--seed": seed}, (PAIRS, TEXT)),
    ):
        if needed not in data:
            reject_options(options, " or ".join(data), needed)
    bootstrap = (samples or N_RESAMPLES, SEED if seed is None else seed, as_json)
    if needed == PAIRS:
        comparisons.compare_translators(runs, files, to, lowercase, too_long_policy(too_long, ("split", "refuse"), kind), *bootstrap)
    elif needed == TEXT:
        comparisons.compare_language_models(runs, text_files, too_long_policy(too_long, ("window", "refuse"), kind), *bootstrap)
    else:
        assert labeled_data is not None
        columns = LabeledColumns(text_files.text_field, second_field, label_field, files.header)._asdict()
        _check_columns(runs, columns, too_long, kind)
        treatment = too_long_policy(too_long, ("truncate", "window", "refuse"), kind)
        comparisons.compare_classifiers(runs, labeled_data, columns, treatment, as_json)


def _load_runs(a: Path, b: Path) -> tuple[str, "Runs"]:
    """Load both runs, and return the kind of their models with the runs.

    Raises:
        ConfigError: the runs are of different kinds, or of a kind that cannot be compared.
    """
    from transom.cli.comparisons import Runs, load_kind

    loaded = {run: load_kind(run) for run in (a, b)}
    (kind, _), (other, _) = loaded[a], loaded[b]
    if kind != other:
        raise ConfigError(f"{b}: expected {kind} as in {a}, found {other}; compare two runs of the same kind")
    return kind, Runs(a, b, {run: model for run, (_, model) in loaded.items()})


def _check_columns(runs: "Runs", columns: dict[str, Any], too_long: str | None, kind: str) -> None:
    """Reject options that have no effect on classifiers of images or sounds."""
    if runs.models[runs.a].max_tokens is None:
        flags = {f"--{name.replace('_', '-')}": value for name, value in columns.items()}
        reject_options({"--too-long": too_long, **flags}, "a classifier of texts", kind)
