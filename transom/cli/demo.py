"""``transom demo``: train the built-in phrasebook translator and translate held-out sentences."""

from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.options import SetOption
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.tasks.signals import defer_signals

EXAMPLES = """
transom demo
transom demo --out runs/mine --set training.max_steps=300
"""

GREETING = "hello world"
N_SAMPLES = 8
"""Maximum number of translations to print."""

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Run folder to write, or to continue if it contains a run.")] = Path(
        "runs/phrasebook"
    ),
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Train for a few minutes, print translations of held-out sentences and the alignment of one of them, and write a report.

    If training was stopped, the same command continues it.
    """
    with defer_signals():
        from transom.config.recipe import load_recipe
        from transom.data.pairs.datasets import load_translation_data
        from transom.data.pairs.retrieval_baseline import retrieval_baseline
        from transom.decoding.predictors.translator import Translator
        from transom.tasks.load import load
        from transom.tasks.progress import TrainingProgress
        from transom.tasks.train import run_training
        from transom.tasks.translation.schema import TranslationRecipe
        from transom.training.translation_metrics import exact_match

    recipe, base = load_recipe("phrasebook", overrides or [])
    with TrainingProgress() as progress:
        quiet: dict[str, Any] = {} if as_json else {"callbacks": [progress], "notify": progress.show_status}
        result = run_training(recipe, base, out, resume=True, **quiet)
    if result.exit_code:
        print_result(result.to_json(), as_json, [f"stopped at step {result.step:,}; saved in {out}; repeat the command to continue"])
        return result.exit_code

    assert isinstance(recipe, TranslationRecipe)
    splits = load_translation_data(recipe.data, base)
    test = splits.test
    assert test is not None
    if not as_json:
        print_note(f"translating {len(test.source):,} held-out sentences ...")
    translator = load(out, kind=Translator)
    translations = translator.translate(test.source)
    accuracy = exact_match(translations, test.target)
    baseline = exact_match(retrieval_baseline(splits.train, test.source), test.target)
    shown = _choose_samples(test.source)
    samples = [{"source": test.source[i], "reference": test.target[i], "translation": translations[i]} for i in shown]
    value = {
        **result.to_json(),
        "held_out": len(test.source),
        "exact_match": accuracy,
        "nearest_sentence_exact_match": baseline,
        "samples": samples,
    }
    report = out / "report.html"
    print_result(
        {**value, "report": str(report)}, as_json, _format_lines(translator, samples, len(test.source), accuracy, baseline, report)
    )
    return 0


def _choose_samples(sources: list[str]) -> list[int]:
    """Return the indices of the sentences to print: the greeting, and evenly spaced sentences of at least six words."""
    long = [i for i, source in enumerate(sources) if len(source.split()) >= 6 and source != GREETING]
    greeting = [sources.index(GREETING)] if GREETING in sources else []
    return greeting + long[:: max(1, len(long) // (N_SAMPLES - 1))][: N_SAMPLES - 1]


def _format_lines(translator: Any, samples: list[dict[str, str]], n: int, accuracy: float, baseline: float, report: Path) -> list[str]:
    from transom.inspection.alignment import align
    from transom.inspection.pages.alignment_pictures import alignment_text

    longest = max(samples, key=lambda sample: len(sample["translation"]))
    alignment = align(translator.model, translator.tokenizers, longest["source"], longest["translation"])
    rows = [
        ["exact match", ""],
        ["this model", f"{100 * accuracy:.2f}%"],
        ["nearest training sentence", f"{100 * baseline:.2f}%"],
    ]
    return [
        "",
        "Held-out sentences, whose word combinations do not occur in the training set:",
        "",
        *(f"  {sample['source']}\n    -> {sample['translation']}{_mismatch(sample)}" for sample in samples),
        "",
        f"{n:,} held-out sentences",
        *align_columns(rows),
        "",
        f"Cross-attention of each Spanish word ({alignment.origin}):",
        "",
        alignment_text(alignment),
        "",
        f"report: {report}",
        f'try:    transom translate {report.parent} "hello world"',
        f"        transom explore {report.parent}   every number of the model in a web page, with its calculation",
    ]


def _mismatch(sample: dict[str, str]) -> str:
    return "" if sample["translation"] == sample["reference"] else f"   (expected: {sample['reference']})"
