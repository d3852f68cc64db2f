"""``transom compare``: whether the difference between two models is more than luck."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.answers import Json, answer, table
from transom.cli.imports import lasting_imports
from transom.cli.options import Source, Target, To, TranslateTooLong

EXAMPLES = """
transom compare runs/a runs/b --source test.en --target test.de
transom compare runs/en-de runs/joint --to de --source test.en --target test.de
transom compare runs/a runs/b --source test.en --target test.de --samples 10000 --seed 7 --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run folder.")],
    b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another.")],
    source: Source,
    target: Target,
    to: To = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    samples: Annotated[int, typer.Option("--samples", min=1, max=1_000_000, help="Test sets drawn with replacement.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the draws.")] = 12345,
    too_long: TranslateTooLong = "split",
    as_json: Json = False,
) -> None:
    """Paired bootstrap resampling (Koehn 2004) of BLEU on the same sentences; each model searches as its own recipe says.

    --to is for those of the two that know several target languages.
    """
    with lasting_imports():
        from transom.cli.reading import read_test_set, translate_test_set
        from transom.decoding.predictors.translator import Translator
        from transom.tasks.load import load_as
        from transom.training.evaluation import compare as bootstrap

    translators = {run: load_as(Translator, run) for run in (a, b)}
    several = [translator for translator in translators.values() if translator.tokenizers.source.tags]
    for translator in several or translators.values():
        translator.tokenizers.source.prefix(to)  # before the reading is noted
    pairs = read_test_set([a, b], source, target, "compare")
    found = {
        run: translate_test_set(
            *(translator, pairs.source, f"sentences by {run}", as_json),
            to=to if translator in several else None,
            too_long=too_long,
            name=str(source),
        )
        for run, translator in translators.items()
    }
    result = bootstrap(found[a].lines, found[b].lines, pairs.target, lowercase=lowercase, n_samples=samples, seed=seed)
    counts = {"a_n_longer": found[a].n_longer, "b_n_longer": found[b].n_longer}
    answer({"a_run": str(a), "b_run": str(b), **asdict(result), **counts}, as_json, _lines(a, b, result))


def _lines(a: Path, b: Path, result: Any) -> list[str]:
    rows = [["", "BLEU", "95 % interval"]]
    for name, value, (low, high) in (
        (str(a), result.a, result.a_interval),
        (str(b), result.b, result.b_interval),
        ("difference", result.difference, result.difference_interval),
    ):
        rows.append([name, f"{value:.2f}", f"{low:.2f} to {high:.2f}"])
    better = f"{b if result.difference > 0 else a} is better"
    verdict = better if result.difference and result.p_value < 0.05 else "no difference that luck would not explain"
    return [
        *table(rows),
        "",
        f"p = {result.p_value:.4f}: {verdict}",
        f"{result.n_samples:,} samples, seed {result.seed}; {result.signature}",
    ]
