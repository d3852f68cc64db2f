"""``transom demo``: train the built-in phrasebook translator and translate held-out sentences."""

from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.answers import Json, answer, note, table
from transom.cli.options import Set
from transom.tasks.imports import signals_held

EXAMPLES = """
transom demo
transom demo --out runs/mine --set training.max_steps=300
"""

GREETING = "hello world"
SHOWN = 8
"""Number of printed translations."""

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Run folder to write or resume.")] = Path("runs/phrasebook"),
    overrides: Set = None,
    as_json: Json = False,
) -> int:
    """Train for a few minutes (or resume), translate held-out sentences, print a cross-attention alignment and write a report."""
    with signals_held():
        from transom.config.recipe import load_recipe
        from transom.data.pairs.datasets import load_data
        from transom.data.pairs.nearest import nearest_baseline
        from transom.decoding.predictors.translator import Translator
        from transom.tasks.load import load_as
        from transom.tasks.progress import TrainingProgress
        from transom.tasks.train import run_training
        from transom.tasks.translation.schema import TranslationRecipe
        from transom.training.evaluation import exact_match

    recipe, base = load_recipe("phrasebook", overrides or [])
    with TrainingProgress() as progress:
        quiet: dict[str, Any] = {} if as_json else {"observers": [progress], "tell": progress.doing}
        sitting = run_training(recipe, base, out, resume=True, **quiet)
    if sitting.stopped_by:
        answer(sitting.to_json(), as_json, [f"stopped at step {sitting.step:,}; saved in {out}; repeat the command to continue"])
        return sitting.exit_code

    assert isinstance(recipe, TranslationRecipe)
    splits = load_data(recipe.data, base)
    test = splits.test
    assert test is not None
    if not as_json:
        note(f"translating {len(test.source):,} held-out sentences ...")
    translator = load_as(Translator, out)
    translations = translator.translate(test.source)
    exact = exact_match(translations, test.target)
    baseline = exact_match(nearest_baseline(splits.train, test.source), test.target)
    shown = _chosen(test.source)
    samples = [{"source": test.source[i], "reference": test.target[i], "translation": translations[i]} for i in shown]
    value = {
        **sitting.to_json(),
        "held_out": len(test.source),
        "exact_match": exact,
        "nearest_sentence_exact_match": baseline,
        "samples": samples,
    }
    report = out / "report.html"
    answer({**value, "report": str(report)}, as_json, _lines(translator, samples, len(test.source), exact, baseline, report))
    return 0


def _chosen(sources: list[str]) -> list[int]:
    """Choose the greeting and evenly spaced test sentences of at least six words; return their indices."""
    long = [i for i, source in enumerate(sources) if len(source.split()) >= 6 and source != GREETING]
    greeting = [sources.index(GREETING)] if GREETING in sources else []
    return greeting + long[:: max(1, len(long) // (SHOWN - 1))][: SHOWN - 1]


def _lines(translator: Any, samples: list[dict[str, str]], n: int, exact: float, baseline: float, report: Path) -> list[str]:
    from transom.inspection.alignment import align
    from transom.inspection.pictures import alignment_text

    longest = max(samples, key=lambda sample: len(sample["translation"]))
    alignment = align(translator.model, translator.tokenizers, longest["source"], longest["translation"])
    rows = [
        ["exact match", ""],
        ["this model", f"{100 * exact:.2f} %"],
        ["nearest training sentence", f"{100 * baseline:.2f} %"],
    ]
    return [
        "",
        "Held-out sentences, whose word combinations do not occur in the training set:",
        "",
        *(f"  {sample['source']}\n    -> {sample['translation']}{_wrong(sample)}" for sample in samples),
        "",
        f"{n:,} held-out sentences",
        *table(rows),
        "",
        f"Cross-attention of each Spanish word ({alignment.origin}):",
        "",
        alignment_text(alignment),
        "",
        f"report: {report}",
        f'try:    transom translate {report.parent} "hello world"',
    ]


def _wrong(sample: dict[str, str]) -> str:
    return "" if sample["translation"] == sample["reference"] else f"   (expected: {sample['reference']})"
